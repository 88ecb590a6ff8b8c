"""
List runs, newest first.
"""

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from django_manta.commands import choosing
from django_manta.commands.printing import Printer, add_format, shortened

HELP = "list runs"

#: The keys of ``--format json``, which are columns of the table.
FIELDS = (
    "id",
    "task",
    "backend",
    "queue",
    "priority",
    "state",
    "reason",
    "attempts",
    "worker",
    "enqueued_at",
    "due_at",
    "deadline",
    "expires_at",
    "started_at",
    "finished_at",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choosing.add_filters(parser)
    parser.add_argument("--limit", default=50, metavar="N", help="At most so many (default: 50).")
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    printer = Printer(command, options)
    backend = choosing.backend_of(options)
    limit = choosing.positive(options["limit"], "--limit")
    matching = choosing.filtered(backend, options, choosing.states(options["state"]))
    found = list(matching.order_by("-pk").values(*FIELDS)[: limit + 1])
    runs, more = found[:limit], len(found) > limit
    if printer.wants_json:
        printer.data(runs)
        return
    if not runs:
        printer.line("No runs match." if choosing.has_filters(options) else "There are no runs.")
        return
    printer.table(
        ["id", "state", "task", "queue", "attempts", "enqueued", "finished", "reason"],
        [
            [
                run["id"],
                run["state"],
                run["task"],
                run["queue"],
                run["attempts"],
                run["enqueued_at"],
                run["finished_at"],
                shortened(run["reason"], 60),
            ]
            for run in runs
        ],
    )
    if more:
        printer.line(f"… and more: --limit shows more than {limit}.")
