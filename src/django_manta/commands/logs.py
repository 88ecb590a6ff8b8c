"""
Print what an attempt at a run has printed: from Ray while Ray has it, else the end that was stored.

Of a run that is under way on Ray, what it has printed so far. Stored is the end of what an attempt printed that failed
or crashed, and nothing of the others.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError

from django_manta.backend import MantaBackend
from django_manta.commands import choosing
from django_manta.commands.printing import Printer, add_format
from django_manta.execution import envelope
from django_manta.execution.runners.ray import messages, printed, reader
from django_manta.execution.runners.ray.dashboard import Away, Dashboard
from django_manta.ledger import AttemptRecord, RunRecord
from django_manta.ledger.records import read_foremen
from django_manta.models import Worker

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
    #: Asks Ray for it. Raises LookupError or Away, or says None where Ray never had one.
    on_ray: Callable[[], str | None]
    stored: str = ""
    #: Where Ray's dashboard shows it.
    link: str = ""


def handle(command: BaseCommand, options: dict[str, Any]) -> int:
    printer = Printer(command, options)
    [run_id] = choosing.run_ids([options["id"]])
    backend = choosing.backend_of(options)
    found = backend.ledger.fetch([run_id])
    if not found:
        raise choosing.no_run(run_id)
    source = _source(backend, found[0], options["attempt"])
    log, trouble = _from_ray(source)
    told, text = ("ray", log) if log is not None else ("stored", source.stored)
    if printer.wants_json:
        printer.data(
            {
                "run": str(run_id),
                "attempt": source.number,
                "from": told,
                "log": text,
                "trouble": trouble,
                "link": source.link,
            }
        )
    else:
        if trouble:
            rest = "This is the end of it that was stored." if text else "Nothing of it was stored."
            command.stderr.write(f"{trouble} {rest}")
        printer.line(text.rstrip("\n"))
    return 0 if text else 1


def _source(backend: MantaBackend, run: RunRecord, wanted: int | None) -> Source:
    runner = backend.config.queue_options.get(run.queue, {}).get("runner")
    if run.token is not None and wanted in (None, run.attempts) and runner in ("ray", "ray_job"):
        return _under_way(backend, run, run.token, runner)
    attempts = [attempt for attempt in run.history if wanted in (None, attempt.number)]
    if not attempts:
        which = "no attempt" if wanted is None else f"no attempt {wanted}"
        raise CommandError(f"Run {run.id} has {which} that ended. See `manta show {run.id}`.")
    return _ended(backend, attempts[-1])


def _under_way(backend: MantaBackend, run: RunRecord, token: int, runner: str) -> Source:
    if runner == "ray_job":
        job = envelope.name_of(run.id, token)
        return Source(run.attempts, lambda: _job_log(backend, job), link=link(backend, envelope.LOG_REF + job))
    workers = Worker.objects.using(backend.database).filter(pk=run.worker)
    foremen = [each for row in workers for each in read_foremen(row.foremen)]
    address, namespace = backend.config.ray["ADDRESS"], backend.config.ray["NAMESPACE"]

    def ask() -> str | None:
        found = reader.find(address, namespace, foremen, messages.key_of(run.id.hex, token))
        reference = printed.Reference.parse(found)
        return "" if reference is None else reader.read(reference, address)

    return Source(run.attempts, ask)


def _ended(backend: MantaBackend, attempt: AttemptRecord) -> Source:
    reference = printed.Reference.parse(attempt.log_ref)

    def ask() -> str | None:
        if attempt.log_ref.startswith(envelope.LOG_REF):
            return _job_log(backend, attempt.log_ref.removeprefix(envelope.LOG_REF))
        return None if reference is None else reader.read(reference, backend.config.ray["ADDRESS"])

    return Source(attempt.number, ask, attempt.output, link(backend, attempt.log_ref))


def link(backend: MantaBackend, log_ref: str) -> str:
    """Where Ray's dashboard shows an attempt, if there is one and its address is known."""
    url = backend.config.ray["DASHBOARD"]
    reference = printed.Reference.parse(log_ref)
    if url is None:
        return ""
    if reference is not None:
        return reference.link(url)
    if log_ref.startswith(envelope.LOG_REF):
        return f"{url.rstrip('/')}/#/jobs/{log_ref.removeprefix(envelope.LOG_REF)}"
    return ""


def _from_ray(source: Source) -> tuple[str | None, str]:
    """The log that Ray has, or why there is none."""
    try:
        return source.on_ray(), ""
    except (LookupError, Away) as trouble:
        return None, str(trouble)


def _job_log(backend: MantaBackend, job: str) -> str | None:
    url = backend.config.ray["DASHBOARD"]
    if url is None:
        return None
    try:
        log, _ = Dashboard(url).log(job)
    except LookupError:
        raise LookupError("Ray does not have its log any more.") from None
    return envelope.without_marks(log)
