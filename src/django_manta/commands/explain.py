"""
Why is it not running? The answer in a sentence, and what to do, for a run in any state.

If it waits for others, or failed because of them, also the run at the root of it, and why that one stands
where it stands.
"""

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from django_manta.commands import choosing, explaining
from django_manta.commands.printing import Printer, add_format

HELP = "say why a run is not running"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="The run's id.")
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    printer = Printer(command, options)
    [run_id] = choosing.run_ids([options["id"]])
    told = explaining.explain(choosing.backend_of(options), run_id)
    if told is None:
        raise choosing.no_run(run_id)
    if printer.wants_json:
        printer.data(told)
        return
    printer.line(f"{told.name} {told.id} is {told.state.value}.")
    printer.line(told.words)
    for words in told.also:
        printer.line(f"And: {words}")
    if told.root is not None:
        printer.line()
        printer.line(f"At the root of it: {told.root.name} {told.root.id} is {told.root.state.value}.")
        printer.line(told.root.words)
        for words in told.root.also:
            printer.line(f"And: {words}")
