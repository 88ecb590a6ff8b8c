"""
Draw the graph around a run: what it waits for, who waits for it, and all that those wait for, with states,
durations and the critical path (the chain that decided when it ended, or on which it still waits).

Or the graph of a workflow, by its name or id; of several that share a name, the newest.
"""

import argparse
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from django_manta.backend import MantaBackend
from django_manta.commands import charting, choosing, drawing
from django_manta.commands.printing import Printer, clean, data_text
from django_manta.ids import parse_run_id
from django_manta.ledger import around, house
from django_manta.models import Run, Workflow

HELP = "draw the graph around a run"

#: So many runs are drawn unless more are asked for.
LIMIT = 500

FORMATS = ("text", "json", "mermaid", "svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", metavar="ID", help="The run's id.")
    parser.add_argument("--workflow", metavar="NAME_OR_ID", help="Instead of a run: all runs of a workflow.")
    parser.add_argument(
        "--limit", default=LIMIT, metavar="N", help=f"Draw at most so many runs, the nearest (default: {LIMIT})."
    )
    parser.add_argument("--output", metavar="FILE", help="Write it there instead of printing it.")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="How to draw (default: text; svg, mermaid or json if FILE ends in .svg, .mmd or .json).",
    )


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    options["format"] = options["format"] or _format_of(options["output"])
    printer = Printer(command, options)
    backend = choosing.backend_of(options)
    limit = choosing.positive(options["limit"], "--limit")
    chart = _chart(backend, _centre(backend, options, limit), limit)
    note = f"There is more: only the {len(chart.runs)} nearest runs are drawn. --limit draws more." if chart.cut else ""
    if options["output"] is not None:
        _write(options["output"], _drawn(chart, options["format"], note))
        if printer.verbosity:
            command.stderr.write(clean(f"Wrote {options['output']}: {drawing.summary(chart)} {note}".rstrip()))
    elif options["format"] != "text":
        command.stdout.write(_drawn(chart, options["format"], note))
    else:
        printer.line(drawing.summary(chart))
        printer.line()
        printer.styled(drawing.tree(chart))
        if note:
            printer.line()
            printer.line(note)


def _format_of(output: str | None) -> str:
    return {".svg": "svg", ".mmd": "mermaid", ".json": "json"}.get(Path(output or "").suffix.lower(), "text")


def _drawn(chart: charting.Chart, how: str, note: str) -> str:
    match how:
        case "json":
            return data_text(chart.data()) + "\n"
        case "mermaid":
            return drawing.mermaid(chart, note)
        case "svg":
            return drawing.svg(chart, note)
    lines = [drawing.summary(chart), "", drawing.plain(drawing.tree(chart))]
    return "\n".join([*lines, *([note, ""] if note else [])])


def _write(output: str, text: str) -> None:
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--output {output!r} cannot be written: {error.strerror or error}.") from error


# -- what to draw ------------------------------------------------------------------------------------


def _chart(backend: MantaBackend, centre: list[UUID], limit: int) -> charting.Chart:
    found = around.surroundings(backend.ledger, centre, limit)
    return charting.chart(found, frozenset(centre), house.clock(backend.ledger))


def _centre(backend: MantaBackend, options: dict[str, Any], limit: int) -> list[UUID]:
    if (options["id"] is None) == (options["workflow"] is None):
        raise CommandError("Say what to draw: the id of a run, or --workflow and its name or id.")
    if options["workflow"] is not None:
        return _runs_of(backend, options["workflow"], limit)
    [run_id] = choosing.run_ids([options["id"]])
    if not around.stances(backend.ledger, [run_id]):
        raise choosing.no_run(run_id)
    return [run_id]


def _runs_of(backend: MantaBackend, name_or_id: str, limit: int) -> list[UUID]:
    flows = Workflow.objects.using(backend.database)
    flow_id = parse_run_id(name_or_id)
    found = flows.filter(pk=flow_id).first() if flow_id is not None else None
    found = found or flows.filter(name=name_or_id).order_by("-created_at", "-pk").first()
    if found is None:
        raise CommandError(f"There is no workflow {name_or_id!r}: it never was, or retention removed it.")
    runs = Run.objects.using(backend.database).filter(workflow_id=found.pk).order_by("pk")
    ids = list(runs.values_list("pk", flat=True)[: limit + 1])
    if not ids:
        raise CommandError(f"Workflow {name_or_id!r} has no runs, or retention removed them.")
    return ids
