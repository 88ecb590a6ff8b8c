"""
Show the whole story of a run: what was asked, where it stands and why, and each attempt at it.

Everything comes from the rows, never from the task's code, which may be gone. Tracebacks and output
are cut to their last lines; --format json has them whole.
"""

import argparse
import json
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand

from django_manta import payload
from django_manta.backend import MantaBackend
from django_manta.commands import choosing, explaining, logs
from django_manta.commands.printing import Printer, add_format, duration, shortened, tail
from django_manta.ledger import AttemptRecord, RunRecord, around
from django_manta.ledger.records import plain
from django_manta.models import Workflow
from django_manta.result import read_progress
from django_manta.states import ENDS, OWNED, State

HELP = "show the whole story of a run"

#: Lines of a traceback and of output, and characters of a value.
_TAIL_LINES, _VALUE_LENGTH = 20, 2_000

#: Runs around it that are told, and printed.
_NEIGHBOURS, _NAMED = 100, 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="The run's id.")
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    printer = Printer(command, options)
    [run_id] = choosing.run_ids([options["id"]])
    backend = choosing.backend_of(options)
    found = backend.ledger.fetch([run_id])
    if not found:
        raise choosing.no_run(run_id)
    [run] = found
    explained = explaining.explain(backend, run_id) if run.state not in ENDS - {State.UPSTREAM_FAILED} else None
    why = "" if explained is None else explained.words
    neighbours = around_it(backend, run)
    if printer.wants_json:
        printer.data(story(run, why) | neighbours)
    else:
        links = [logs.link(backend, attempt.log_ref) for attempt in run.history]
        _print(printer, run, why, neighbours, links)


def story(run: RunRecord, why: str) -> dict[str, Any]:
    """All there is to tell, as plain data."""
    told = plain(run)
    for name in ("arguments", "references", "overrides", "metadata", "progress", "result", "delegate"):
        told[name] = decoded(told[name])
    told["why"] = why
    told["history"] = [plain(attempt) | {"duration_seconds": round(took(attempt), 6)} for attempt in run.history]
    return told


def decoded(text: str | None) -> Any:
    """A row altered by hand must still be shown: what is no JSON stays text."""
    try:
        return payload.decode(text) if text else None
    except ValueError:
        return text


def took(attempt: AttemptRecord) -> float:
    return (attempt.finished_at - attempt.started_at).total_seconds()


def around_it(backend: MantaBackend, run: RunRecord) -> dict[str, Any]:
    """What it waits for, who waits for it, and in which workflow: as plain data, no more than is worth reading."""
    ledger = backend.ledger
    stance = around.stances(ledger, [run.id]).get(run.id)
    gate = None if stance is None else stance.gate
    waits_for = around.preconditions(ledger, run.id, _NEIGHBOURS + 1)
    waited_for_by = around.dependents(ledger, run.id, _NEIGHBOURS + 1)
    found = around.stances(ledger, {*(link.on for link in waits_for), *(link.run for link in waited_for_by)})
    flow = Workflow.objects.using(backend.database).filter(pk=run.workflow).first() if run.workflow else None
    return {
        "workflow": None if run.workflow is None else {"id": run.workflow, "name": "" if flow is None else flow.name},
        "promise": None if stance is None else stance.promise,
        "when": None if gate is None else gate.mode.value,
        "laters": 0 if gate is None else gate.laters,
        "waits_for": [_neighbour(link, link.on, found) for link in waits_for[:_NEIGHBOURS]],
        "waited_for_by": [_neighbour(link, link.run, found) for link in waited_for_by[:_NEIGHBOURS]],
        "more": {
            "waits_for": len(waits_for) > _NEIGHBOURS,
            "waited_for_by": len(waited_for_by) > _NEIGHBOURS,
        },
    }


def _neighbour(link: around.Link, run_id: UUID, found: dict[UUID, around.Stance]) -> dict[str, Any]:
    stance = found.get(run_id)
    return {
        "id": run_id,
        "role": link.role.value,
        "task": None if stance is None else stance.task,
        "state": None if stance is None else stance.state.value,
    }


# -- for people ------------------------------------------------------------------------------------


def _print(printer: Printer, run: RunRecord, why: str, neighbours: dict[str, Any], links: list[str]) -> None:
    flow = neighbours["workflow"]
    printer.facts(
        [
            ("run", run.id),
            ("task", run.task),
            ("state", run.state.value),
            ("reason", run.reason),
            ("why", why),
            ("progress", _progress(run.progress)),
            ("result", _value(run.result) if run.state is State.SUCCESSFUL else ""),
            ("delegated to", decoded(run.delegate)),
            ("promise", neighbours["promise"]),
            ("workflow", "" if flow is None else f"{flow['name']} {flow['id']}".strip()),
            ("when", neighbours["when"] if neighbours["waits_for"] else ""),
            ("waits for" if run.state is State.WAITING else "waited for", _neighbours(neighbours, "waits_for")),
            ("waited for by", _neighbours(neighbours, "waited_for_by")),
            ("called again", f"{neighbours['laters']} times asked for" if neighbours["laters"] else ""),
            ("arguments", _arguments(run.arguments)),
            ("overrides", _value(run.overrides)),
            ("metadata", "" if run.metadata == "{}" else _value(run.metadata)),
            ("queue", run.queue),
            ("priority", run.priority),
            ("backend", run.backend),
            ("enqueued", run.enqueued_at),
            ("run after", run.run_after),
            ("due", run.due_at),
            ("deadline", run.deadline),
            ("expires", run.expires_at),
            ("first started", run.started_at),
            ("last started", run.last_attempted_at),
            ("finished", run.finished_at if run.state in ENDS else None),
            ("worker", run.worker if run.state in OWNED else ""),
            ("attempts", f"{run.attempts} ({run.failures} failures, {run.crashes} crashes, {run.losses} losses)"),
        ]
    )
    for attempt, link in zip(run.history, links, strict=True):
        printer.line()
        _print_attempt(printer, attempt, link)


def _print_attempt(printer: Printer, attempt: AttemptRecord, link: str) -> None:
    printer.line(f"attempt {attempt.number}: {attempt.outcome.value} after {duration(took(attempt))}")
    error = f"{attempt.error_class}: {attempt.error_message}" if attempt.error_class else ""
    peak = f"{attempt.peak_memory / 2**20:.1f} MiB" if attempt.peak_memory is not None else ""
    printer.facts(
        [
            ("  started", attempt.started_at),
            ("  finished", attempt.finished_at),
            ("  worker", attempt.worker),
            ("  executor", attempt.executor),
            ("  peak memory", peak),
            ("  log", attempt.log_ref),
            ("  on Ray's dashboard", link),
            ("  error", shortened(error, _VALUE_LENGTH)),
            ("  traceback", tail(attempt.traceback, _TAIL_LINES)),
            ("  output", tail(attempt.output, _TAIL_LINES)),
        ]
    )


def _neighbours(neighbours: dict[str, Any], which: str) -> str:
    lines = [
        f"{each['id']} {each['state'] or 'gone'} {each['task'] or ''} ({each['role']})"
        for each in neighbours[which][:_NAMED]
    ]
    if neighbours["more"][which] or len(neighbours[which]) > _NAMED:
        lines.append("… and more: `manta graph` draws them")
    return "\n".join(lines)


def _value(stored: str | None) -> str:
    return shortened(stored or "", _VALUE_LENGTH)


def _arguments(stored: str) -> str:
    """As a call would write them; as they are stored, if that cannot be read."""
    try:
        found: Any = payload.decode_arguments(stored)
    except (ValueError, TypeError):
        return _value(stored)
    if list(map(type, found)) != [list, dict]:
        return _value(stored)
    args, kwargs = found
    written = [json.dumps(value, ensure_ascii=False) for value in args]
    written += [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in kwargs.items()]
    return shortened(f"({', '.join(written)})", _VALUE_LENGTH)


def _progress(stored: str | None) -> str:
    progress = read_progress(stored)
    if progress is None:
        return _value(stored)
    of = f" of {progress.total:g}" if progress.total else ""
    return f"{progress.done:g}{of} {progress.message}".strip()
