"""
Show the whole story of a run: what was asked, where it stands and why, and each attempt at it.

Everything comes from the rows, never from the task's code, which may be gone. Tracebacks and output
are cut to their last lines; --format json has them whole.
"""

import argparse
import json
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_manta import payload
from django_manta.backend import MantaBackend
from django_manta.commands import choosing, workers
from django_manta.commands.pause import paused
from django_manta.commands.printing import Printer, add_format, duration, moment, shortened, tail
from django_manta.ledger import AttemptRecord, RunRecord, house
from django_manta.ledger.records import plain
from django_manta.states import ENDS, OWNED, State

HELP = "show the whole story of a run"

#: Lines of a traceback and of output, and characters of a value.
_TAIL_LINES, _VALUE_LENGTH = 20, 2_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="The run's id.")
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    printer = Printer(command, options)
    [run_id] = choosing.run_ids([options["id"]])
    backend = choosing.backend_of(options)
    found = backend.ledger.fetch([run_id])
    if not found:
        raise CommandError(f"There is no run {run_id}: it never was, or retention removed it. See `manta list`.")
    [run] = found
    why = standing(backend, run, house.clock(backend.ledger))
    if printer.wants_json:
        printer.data(story(run, why))
    else:
        _print(printer, run, why)


def story(run: RunRecord, why: str) -> dict[str, Any]:
    """All there is to tell, as plain data."""
    told = plain(run)
    for name in ("arguments", "overrides", "metadata", "progress", "result"):
        told[name] = decoded(told[name])
    told["why"] = why
    told["history"] = [plain(attempt) | {"duration_seconds": round(took(attempt), 6)} for attempt in run.history]
    return told


def decoded(text: str | None) -> Any:
    """A row altered by hand must still be shown: what is no JSON stays text."""
    try:
        return payload.decode(text) if text else None
    except ValueError:
        return text


def took(attempt: AttemptRecord) -> float:
    return (attempt.finished_at - attempt.started_at).total_seconds()


def standing(backend: MantaBackend, run: RunRecord, now: datetime) -> str:
    """Why the run is where it is, and what would move it."""
    match run.state:
        case State.HELD:
            return f"A person keeps it back: `manta release {run.id}` lets it go."
        case State.SCHEDULED if run.due_at is not None:
            left = (run.due_at - now).total_seconds()
            if left >= 0:
                return f"Due in {duration(left)}."
            return f"Overdue by {duration(-left)}: a worker makes it ready, if one is alive."
        case State.READY:
            return _why_nobody_has_it(backend, run)
        case State.RUNNING | State.CANCELLING:
            return _who_has_it(backend, run)
    return ""


def _why_nobody_has_it(backend: MantaBackend, run: RunRecord) -> str:
    since = paused(backend).get(run.queue)
    if since is not None:
        return f"Queue {run.queue!r} is paused since {moment(since)}: `manta resume {run.queue}`."
    if run.queue not in workers.claiming(workers.seen(backend)):
        return f"No live worker claims from queue {run.queue!r}: start one."
    return "It waits for a worker to claim it."


def _who_has_it(backend: MantaBackend, run: RunRecord) -> str:
    for worker in workers.seen(backend):
        if worker.id == run.worker:
            ago = duration(worker.seen_seconds_ago)
            lost = ", declared lost: it will be recovered" if worker.lost else ""
            return f"Worker {worker.id} has it ({worker.host}, process {worker.pid}, seen {ago} ago{lost})."
    return f"Worker {run.worker!r} had it and is gone: a live worker recovers it."


# -- for people ------------------------------------------------------------------------------------


def _print(printer: Printer, run: RunRecord, why: str) -> None:
    printer.facts(
        [
            ("run", run.id),
            ("task", run.task),
            ("state", run.state.value),
            ("reason", run.reason),
            ("why", why),
            ("progress", _progress(run.progress)),
            ("result", _value(run.result) if run.state is State.SUCCESSFUL else ""),
            ("arguments", _arguments(run.arguments)),
            ("overrides", _value(run.overrides)),
            ("metadata", "" if run.metadata == "{}" else _value(run.metadata)),
            ("queue", run.queue),
            ("priority", run.priority),
            ("backend", run.backend),
            ("enqueued", run.enqueued_at),
            ("run after", run.run_after),
            ("due", run.due_at),
            ("deadline", run.deadline),
            ("expires", run.expires_at),
            ("first started", run.started_at),
            ("last started", run.last_attempted_at),
            ("finished", run.finished_at if run.state in ENDS else None),
            ("worker", run.worker if run.state in OWNED else ""),
            ("attempts", f"{run.attempts} ({run.failures} failures, {run.crashes} crashes, {run.losses} losses)"),
        ]
    )
    for attempt in run.history:
        printer.line()
        _print_attempt(printer, attempt)


def _print_attempt(printer: Printer, attempt: AttemptRecord) -> None:
    printer.line(f"attempt {attempt.number}: {attempt.outcome.value} after {duration(took(attempt))}")
    error = f"{attempt.error_class}: {attempt.error_message}" if attempt.error_class else ""
    peak = f"{attempt.peak_memory / 2**20:.1f} MiB" if attempt.peak_memory is not None else ""
    printer.facts(
        [
            ("  started", attempt.started_at),
            ("  finished", attempt.finished_at),
            ("  worker", attempt.worker),
            ("  executor", attempt.executor),
            ("  peak memory", peak),
            ("  log", attempt.log_ref),
            ("  error", shortened(error, _VALUE_LENGTH)),
            ("  traceback", tail(attempt.traceback, _TAIL_LINES)),
            ("  output", tail(attempt.output, _TAIL_LINES)),
        ]
    )


def _value(stored: str | None) -> str:
    return shortened(stored or "", _VALUE_LENGTH)


def _arguments(stored: str) -> str:
    """As a call would write them; as they are stored, if that cannot be read."""
    try:
        args, kwargs = payload.decode_arguments(stored)
    except (ValueError, TypeError):
        return _value(stored)
    written = [json.dumps(value, ensure_ascii=False) for value in args]
    written += [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in kwargs.items()]
    return shortened(f"({', '.join(written)})", _VALUE_LENGTH)


def _progress(stored: str | None) -> str:
    progress = decoded(stored)
    if not isinstance(progress, dict):
        return _value(stored)
    of = f" of {progress['total']:g}" if progress.get("total") else ""
    return f"{progress.get('done', 0):g}{of} {progress.get('message', '')}".strip()
