"""What is concluded from how a Ray job ended: from its own words, or, if it left none, from what Ray says of it."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from django_manta.execution import envelope
from django_manta.execution.admission import refuse
from django_manta.execution.job import FAILED, REFUSED
from django_manta.execution.output import TAIL_BYTES
from django_manta.execution.runners.flights import Died, Flight
from django_manta.execution.runners.ray import dashboard
from django_manta.states import Outcome
from django_manta.text import clean
from django_manta.worker.hosting import Host
from django_manta.worker.losses import lost
from django_manta.worker.obituaries import obituary

#: What Ray says of jobs whose command was never executed, and of those that went with their node.
_NEVER_BEGUN = frozenset(
    {
        "RUNTIME_ENV_SETUP_FAILURE",
        "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
        "JOB_SUPERVISOR_ACTOR_START_FAILURE",
        "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE",
        "JOB_ENTRYPOINT_COMMAND_START_ERROR",
    }
)
_VANISHED = frozenset({"JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE"})

_STOPPED = Outcome.CANCELLED, "Its Ray job was stopped."


def conclude(
    host: Host, flight: Flight, found: dict[str, Any], log: str | None, whole: bool, unbegun: Callable[[], None]
) -> None:
    """
    Tell ``host`` what became of a job that has ended, or that it was stopped before it began (``unbegun``).
    ``whole``: the log has its beginning.
    """
    claim = flight.claim
    told = envelope.read(log or "", claim)
    if told.ended:
        if flight.started_at is None:
            host.started(flight)
        if _was_stopped(flight, found, told):
            flight.doomed = flight.doomed or _STOPPED
            host.settle(flight, obituary(flight, _died(flight, found, log, killed=True)))
        else:
            host.ended(flight, told.row, told.settled)
        return
    status, kind, words = found["status"], found.get("error_type"), clean(found.get("message") or "")
    if status == dashboard.STOPPED and whole and not told.begun and (flight.unwanted or flight.doomed):
        unbegun()
    elif status == dashboard.STOPPED:
        flight.doomed = flight.doomed or _STOPPED
        host.died(_died(flight, found, log, killed=True))
    elif kind in _VANISHED or log is None:
        # If it has settled itself, nothing of this moves its run.
        host.settle(flight, lost(claim, alone=True, words=f"Its node on Ray is gone. {words}".strip()))
    elif not told.begun and (kind in _NEVER_BEGUN or whole or found.get("driver_exit_code") == REFUSED):
        said = envelope.without_marks(log).strip()[-1000:] or words
        host.settle(flight, refuse(claim, RuntimeError(f"Ray could not begin it: {said}"), "ray_job"))
    elif flight.timeout is not None and _was_overdue(found, log):
        flight.doomed = timed_out(flight.timeout)
        host.died(_died(flight, found, log, killed=True))
    else:
        host.died(_died(flight, found, log, killed=False))


def _was_stopped(flight: Flight, found: Mapping[str, Any], told: envelope.Told) -> bool:
    """
    Whether a job that was interrupted was stopped on purpose: by this worker, which has a reason for it, or by a
    person. A node that is stopped interrupts its jobs as well, and one that had not begun in time is stopped by us.
    """
    if told.settled or told.row is None or told.row.outcome is not Outcome.INTERRUPTED:
        return False
    return flight.doomed is not None or (found["status"] == dashboard.STOPPED and not flight.unwanted)


def timed_out(timeout: float) -> tuple[Outcome, str]:
    return Outcome.TIMED_OUT, f"The task ran longer than its timeout of {timeout:g} s."


def _was_overdue(found: Mapping[str, Any], log: str) -> bool:
    """Whether its own process ended it, in the words of the interpreter (faulthandler.dump_traceback_later)."""
    return found.get("driver_exit_code") == FAILED and "\nTimeout (" in log


def _died(flight: Flight, found: Mapping[str, Any], log: str | None, *, killed: bool) -> Died:
    now = time.monotonic()
    began, end = found.get("start_time"), found.get("end_time")
    if began and end:
        # As Ray saw it; we may have been told much later.
        flight.started_at = now - max(end - began, 0) / 1000
    flight.kill_at = now if killed else None
    job = envelope.name_of(flight.claim.id, flight.claim.token)
    return Died(
        pid=0,
        code=found.get("driver_exit_code"),
        started=[flight],
        unstarted=[],
        output=clean(envelope.printed(log or "").strip()[-TAIL_BYTES:]),
        peak_memory=None,
        killed=killed,
        words="Its Ray job was stopped." if killed else "",
        executor=job,
        log_ref=envelope.LOG_REF + job,
    )
