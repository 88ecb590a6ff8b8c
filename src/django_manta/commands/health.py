"""
For a probe: exit code 0 when the database answers, else 1; one line of output.

With --worker also that worker's lease must be fresh: it was renewed within LEASE_SECONDS, and nobody
declared it lost. A process id is one on this machine.
"""

import argparse
import socket
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError

from django_manta.commands import choosing, workers
from django_manta.commands.printing import Printer, add_format, duration
from django_manta.ledger import house
from django_manta.worker import troubles

HELP = "an exit code for a probe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--worker",
        metavar="NAME_OR_PID",
        help="Also that this worker is alive: its name, its id or its process id.",
    )
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> int:
    printer = Printer(command, options)
    try:
        healthy, words = look(options)
    except (DatabaseError, ImproperlyConfigured, CommandError) as error:
        healthy, words = False, " ".join(str(error).split())
    if printer.wants_json:
        printer.data({"healthy": healthy, "message": words}, on_one_line=True)
    else:
        printer.line(f"{'ok' if healthy else 'unhealthy'}: {words}")
    return 0 if healthy else 1


def look(options: dict[str, Any]) -> tuple[bool, str]:
    backend = choosing.backend_of(options)
    wanted = options["worker"]
    if wanted is None:
        house.clock(backend.ledger)
        # To start this process anew would help none of them.
        waiting = [words for words, _ in workers.needed(backend).values()]
        waiting += [f"worker {each.id}: {words}" for each in workers.seen(backend) for words in _hindrances(each)]
        return True, "; ".join([f"database {backend.database!r} answers", *waiting])
    # A worker that was started again under its name has a former self whose lease was lost.
    matching = [worker for worker in workers.seen(backend) if _is(worker, wanted)]
    if not matching:
        return False, f"there is no worker {wanted!r}"
    freshest = min(matching, key=lambda worker: (not worker.alive, worker.seen_seconds_ago))
    ago = duration(freshest.seen_seconds_ago)
    if freshest.alive:
        words = f"worker {freshest.id} was seen {ago} ago{', stopping' if freshest.stopping else ''}"
        # A Ray that does not answer is none of its failings: it goes on by itself.
        return True, "; ".join([words, *_hindrances(freshest)])
    state = "was declared lost" if freshest.lost else "is silent"
    return False, f"worker {freshest.id} {state}, last seen {ago} ago"


def _hindrances(worker: workers.Seen) -> list[str]:
    """What a live worker says that keeps it from working, beside single runs."""
    if not worker.alive:
        return []
    return [*filter(None, [worker.obstacle]), *troubles.about_others(worker.troubles)]


def _is(worker: workers.Seen, wanted: str) -> bool:
    here = worker.host == socket.gethostname()
    return wanted in (worker.id, worker.name) or (here and wanted == str(worker.pid))
