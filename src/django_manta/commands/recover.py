"""
Give up what lost workers had on a Ray that is gone for good: their runs are LOST, and tried again.

What a lost worker had on Ray goes on there, and a worker of the same Ray takes it over. If none ever will,
nobody can say what became of it: you can. What still runs there is started a second time; what it
ends with is refused. Each run is tried again as its `max_losses` allows.
"""

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_manta.backend import MantaBackend
from django_manta.commands import choosing, workers
from django_manta.commands.printing import Printer, add_format, counts, runs
from django_manta.states import State
from django_manta.worker import caretaker

HELP = "give up what lost workers had on a Ray that is gone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workers", nargs="+", metavar="WORKER", help="Ids of lost workers; `manta doctor` names them.")
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    printer = Printer(command, options)
    backend = choosing.backend_of(options)
    _refuse_living(backend, options["workers"])
    reached: dict[str, int] = {}
    for worker in dict.fromkeys(options["workers"]):
        for state in _recover(backend, worker):
            reached[state.value] = reached.get(state.value, 0) + 1
    if printer.wants_json:
        printer.data({"recovered": sum(reached.values()), "states": reached})
        return
    total = runs(sum(reached.values()))
    printer.line(f"Recovered {total}{': ' + counts(reached) if reached else ''}.")


def _refuse_living(backend: MantaBackend, named: list[str]) -> None:
    known = {worker.id: worker for worker in workers.seen(backend)}
    for worker in named:
        if worker not in known:
            raise CommandError(f"There is no worker {worker!r}. `manta info` shows them by their ids.")
        if not known[worker].lost:
            raise CommandError(
                f"Worker {worker} was not declared lost: its runs are its own. If it is dead, another worker declares "
                "it lost after LEASE_SECONDS: start one."
            )


def _recover(backend: MantaBackend, worker: str) -> list[State]:
    reached: list[State] = []
    while moved := caretaker.recover_worker(backend, backend.ledger, worker):
        reached += moved
    return reached
