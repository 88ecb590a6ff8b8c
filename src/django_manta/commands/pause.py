"""
Pause queues: nothing more is claimed from them until they are resumed.

Enqueueing goes on, and so does what was claimed before.
"""

import argparse
import difflib
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_manta.backend import MantaBackend
from django_manta.commands import choosing
from django_manta.commands.printing import Printer, add_format, moment
from django_manta.models import Queue

HELP = "stop claiming from queues"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queues", nargs="+", metavar="QUEUE", help="The queues, by name.")
    parser.add_argument("--force", action="store_true", help="Also a queue that the settings do not declare.")
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    printer = Printer(command, options)
    backend = choosing.backend_of(options)
    before = paused(backend)
    names = known_queues(backend, options)
    for name in names:
        backend.ledger.pause(name)
    if printer.wants_json:
        printer.data([{"queue": name, "paused": True, "changed": name not in before} for name in names])
        return
    for name in names:
        since = f" already, since {moment(before[name])}" if name in before else ""
        printer.line(f"Queue {name!r} is paused{since}.")


def paused(backend: MantaBackend) -> dict[str, Any]:
    """Since when each paused queue is."""
    rows = Queue.objects.using(backend.database).filter(paused_at__isnull=False)
    return dict(rows.order_by("name").values_list("name", "paused_at"))


def known_queues(backend: MantaBackend, options: dict[str, Any]) -> list[str]:
    """The queues given, each once. Raise CommandError if one is neither declared nor known by a pause."""
    given = list(dict.fromkeys(choosing.names(options["queues"], "QUEUE")))
    # A backend that declares no queues takes every name.
    known = set(backend.queues) | set(paused(backend))
    for name in given:
        if backend.queues and name not in known and not options["force"]:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            raise CommandError(
                f"Queue {name!r} is not declared.{meant} TASKS[{backend.alias!r}] has: "
                f"{', '.join(sorted(backend.queues))}. --force takes any name."
            )
    return given
