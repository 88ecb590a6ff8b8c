"""
Show which cluster the database belongs to, or give it another name.

The first worker leaves its CLUSTER and its key's fingerprint in the database; a worker with another CLUSTER refuses to
start. Signatures are salted with the name: what was signed under the former one is refused under the new one.
So `--rename` refuses while workers of the former name live, and while runs are unfinished.
"""

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_manta import conf
from django_manta.commands import choosing
from django_manta.commands.printing import Printer, add_format, runs
from django_manta.exceptions import WrongCluster, WrongKey
from django_manta.ledger import clusters
from django_manta.models import Run
from django_manta.payload import Seal

HELP = "show or rename the cluster of the database"

_COUNT_LIMIT = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rename", metavar="NAME", help="From now on the database belongs to the cluster NAME.")
    parser.add_argument("--force", action="store_true", help="Rename it also while runs are unfinished.")
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    printer = Printer(command, options)
    backend = choosing.backend_of(options)
    wanted = options["rename"]
    former: list[str] = []
    if wanted is not None:
        former = _rename(backend, wanted, force=options["force"])
    known = sorted(clusters.known(backend.ledger))
    if printer.wants_json:
        printer.data({"database": backend.database, "clusters": known, "setting": backend.config.cluster})
        return
    if former:
        printer.line(f"Renamed {', '.join(map(repr, former))}. Set CLUSTER = {wanted!r} for every process.")
    belongs = f"belongs to the cluster {', '.join(map(repr, known))}" if known else "belongs to no cluster yet"
    printer.line(f"Database {backend.database!r} {belongs}; CLUSTER is {backend.config.cluster!r}.")


def _rename(backend: Any, wanted: str, *, force: bool) -> list[str]:
    problems = list(conf.problems_of({"CLUSTER": wanted}))
    if problems:
        raise CommandError(problems[0].message)
    unfinished = len(Run.objects.using(backend.database).filter(finished_at=None).values("pk")[:_COUNT_LIMIT])
    if unfinished and not force:
        more = "at least " if unfinished >= _COUNT_LIMIT else ""
        raise CommandError(
            f"Unfinished: {more}{runs(unfinished)}. Those that were enqueued under the former name would be refused "
            "and FAILED: let workers with the former CLUSTER finish them first, or give --force."
        )
    try:
        return clusters.rename(backend.ledger, Seal(wanted))
    except (WrongCluster, WrongKey) as error:
        raise CommandError(str(error)) from error
