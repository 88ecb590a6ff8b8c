"""
Remove finished runs that are past their retention, with their attempts, as workers do by themselves.

How long each end is kept is the setting RETENTION of the alias that a run belongs to. Runs of an alias that TASKS
does not name are kept.
"""

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from django_manta.commands import choosing
from django_manta.commands.printing import Printer, add_format, counts, runs
from django_manta.ledger import house
from django_manta.worker import retention

HELP = "remove finished runs past their retention"

#: A dry run counts no further, for each end.
COUNT_LIMIT = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="Say how many of each end would go; remove nothing.")
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    printer = Printer(command, options)
    backend = choosing.backend_of(options)
    if options["dry_run"]:
        found: dict[str, int] = {}
        for (state, age), aliases in retention.rules(backend.database).items():
            counted = house.count_prunable(backend.ledger, state, age, COUNT_LIMIT, aliases)
            found[state.value] = min(COUNT_LIMIT, found.get(state.value, 0) + counted)
        capped = [name for name, number in found.items() if number >= COUNT_LIMIT]
    else:
        found = {state.value: number for state, number in retention.prune(backend.database, backend.ledger).items()}
        capped = []
    kept = retention.unnamed(backend.ledger, backend.database, COUNT_LIMIT)
    if printer.wants_json:
        printer.data({"dry_run": options["dry_run"], "removed": found, "capped": capped, "kept": kept})
        return
    done = "Would remove" if options["dry_run"] else "Removed"
    total = f"{COUNT_LIMIT}+ runs" if capped else runs(sum(found.values()))
    some = {f"{name}{' or more' if name in capped else ''}": number for name, number in found.items() if number}
    printer.line(f"{done} {total}{': ' + counts(some) if some else ''}.")
    for alias, number in kept.items():
        printer.line(f"Kept {runs(number)} of the alias {alias!r}, which TASKS does not name.")
