"""
Resume paused queues: claims from them go on, at once.
"""

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from django_manta.commands import choosing, moving
from django_manta.commands.pause import known_queues
from django_manta.commands.printing import Printer, add_format

HELP = "claim from paused queues again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queues", nargs="+", metavar="QUEUE", help="The queues, by name.")
    parser.add_argument("--force", action="store_true", help="Also a queue that the settings do not declare.")
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    printer = Printer(command, options)
    backend = choosing.backend_of(options)
    changed = {name: backend.ledger.resume(name) for name in known_queues(backend, options)}
    moving.ring(backend.database, changed)
    if printer.wants_json:
        printer.data([{"queue": name, "paused": False, "changed": was} for name, was in changed.items()])
        return
    for name, was in changed.items():
        printer.line(f"Queue {name!r} is resumed." if was else f"Queue {name!r} was not paused.")
