"""
Print what an attempt at a run has printed: the log of its Ray job while Ray has it, else the end that was stored.

Of a run that is running on Ray as a job, what it has printed so far. Stored is the end of what an attempt printed
that failed or crashed, and nothing of the others.
"""

import argparse
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError

from django_manta.backend import MantaBackend
from django_manta.commands import choosing
from django_manta.commands.printing import Printer, add_format
from django_manta.execution import envelope
from django_manta.execution.runners.ray.dashboard import Away, Dashboard
from django_manta.ledger import AttemptRecord, RunRecord
from django_manta.worker.jobs import LOG_REF, name_of

HELP = "print the log of a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="The run's id.")
    parser.add_argument(
        "--attempt", type=int, metavar="N", help="Which attempt (default: the one under way, or the last)."
    )
    add_format(parser)


class Source(NamedTuple):
    """Where the log of an attempt may be."""

    number: int
    job: str
    stored: str


def handle(command: BaseCommand, options: dict[str, Any]) -> int:
    printer = Printer(command, options)
    [run_id] = choosing.run_ids([options["id"]])
    backend = choosing.backend_of(options)
    found = backend.ledger.fetch([run_id])
    if not found:
        raise CommandError(f"There is no run {run_id}: it never was, or retention removed it. See `manta list`.")
    source = _source(backend, found[0], options["attempt"])
    log, trouble = _from_ray(backend, source.job)
    told, text = ("ray", log) if log is not None else ("stored", source.stored)
    if printer.wants_json:
        printer.data({"run": str(run_id), "attempt": source.number, "from": told, "log": text, "trouble": trouble})
    else:
        if trouble:
            command.stderr.write(f"{trouble} This is the end of it that was stored.")
        printer.line(text.rstrip("\n"))
    return 0 if text else 1


def _source(backend: MantaBackend, run: RunRecord, wanted: int | None) -> Source:
    runner = backend.config.queue_options.get(run.queue, {}).get("runner")
    if run.token is not None and runner == "ray_job" and wanted in (None, run.attempts):
        return Source(run.attempts, name_of(run.id, run.token), "")
    attempts = [attempt for attempt in run.history if wanted in (None, attempt.number)]
    if not attempts:
        which = "no attempt" if wanted is None else f"no attempt {wanted}"
        raise CommandError(f"Run {run.id} has {which} that ended. See `manta show {run.id}`.")
    last: AttemptRecord = attempts[-1]
    job = last.log_ref.removeprefix(LOG_REF) if last.log_ref.startswith(LOG_REF) else ""
    return Source(last.number, job, last.output)


def _from_ray(backend: MantaBackend, job: str) -> tuple[str | None, str]:
    """The log that Ray has, or why there is none."""
    url = backend.config.ray["DASHBOARD"]
    if not job or url is None:
        return None, ""
    try:
        log, _ = Dashboard(url).log(job)
    except LookupError:
        return None, "Ray does not have its log any more."
    except Away as away:
        return None, str(away)
    return envelope.without_marks(log), ""
