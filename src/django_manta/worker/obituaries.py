"""How executions are settled whose process died under them."""

import socket
import time
from typing import Any

from django_manta.exceptions import BadTaskSignature, TaskCrashed, TaskNotFound, TaskTimeout
from django_manta.execution import policy
from django_manta.execution.admission import admit, max_losses_of
from django_manta.execution.runners.flights import Died, Flight
from django_manta.ledger import Claimed, Settlement
from django_manta.states import CRASHES_TO_QUARANTINE, Outcome, State


def obituary(flight: Flight, died: Died) -> Settlement:
    """The settlement of one of the executions that ``died`` had begun."""
    claim = flight.claim
    now = time.monotonic()
    facts: dict[str, Any] = {
        "run_id": claim.id,
        "token": claim.token,
        "duration": now - (flight.started_at or now),
        "executor": died.executor or f"{socket.gethostname()}:{died.pid}",
        "log_ref": died.log_ref,
        "output": died.output,
        "peak_memory": died.peak_memory,
        "error_message": died.evidence,
    }
    overdue = [each for each in died.started if each.kill_at is not None and now >= each.kill_at]
    if died.killed and flight.doomed is not None and flight in overdue:
        # Where several time limits have passed at once, one of them may have kept the others from ending in time.
        if flight.doomed[0] is not Outcome.TIMED_OUT or len(overdue) == 1:
            return _condemned(flight, facts)
        return _in_company(claim, died, facts, suspect=True)
    unexplained = (died.code is None or died.presumed) and not claim.suspect
    if died.killed or unexplained or len(died.started) > 1:
        # It died for another's sake, or nobody can say whose fault it was: uncharged, and alone next time.
        return _in_company(claim, died, facts, suspect=not died.killed)
    crashes = claim.crashes + 1
    verdict = policy.after_unfinished(max_losses_of(claim), died.evidence)
    if crashes >= CRASHES_TO_QUARANTINE:
        verdict = policy.Verdict(State.QUARANTINED, reason=f"It killed {crashes} processes. {died.evidence}")
    return Settlement(
        outcome=Outcome.CRASHED,
        next_state=verdict.state,
        reason=verdict.reason,
        error_class=f"{TaskCrashed.__module__}.{TaskCrashed.__qualname__}",
        suspect=False,
        **facts,
    )


def _in_company(claim: Claimed, died: Died, facts: dict[str, Any], *, suspect: bool) -> Settlement:
    company = "Its process died while it held other runs."
    verdict = policy.after_unfinished(max_losses_of(claim), company if len(died.started) > 1 else died.evidence)
    return Settlement(
        outcome=Outcome.INTERRUPTED,
        next_state=verdict.state,
        reason=verdict.reason,
        suspect=suspect,
        **facts,
    )


def _condemned(flight: Flight, facts: dict[str, Any]) -> Settlement:
    """It would not stop when it was told, and its process was killed for it."""
    assert flight.doomed is not None
    outcome, reason = flight.doomed
    if outcome is Outcome.CANCELLED:
        return Settlement(outcome=outcome, next_state=State.CANCELLED, reason=reason, **facts)
    if outcome is Outcome.INTERRUPTED:
        verdict = policy.after_unfinished(max_losses_of(flight.claim), reason)
        return Settlement(outcome=outcome, next_state=verdict.state, reason=verdict.reason, **facts)
    return _timed_out(flight, reason, facts)


def _timed_out(flight: Flight, reason: str, facts: dict[str, Any]) -> Settlement:
    claim = flight.claim
    killed = "It did not stop when it was told to, and its process was killed."
    if flight.excused:
        killed = "Its process was killed."
    facts |= {
        "error_class": f"{TaskTimeout.__module__}.{TaskTimeout.__qualname__}",
        "error_message": f"{reason} {killed}",
    }
    try:
        admitted = admit(claim)
    except (TaskNotFound, BadTaskSignature):
        verdict = policy.Verdict(State.FAILED, reason=reason)
    else:
        verdict = policy.after_failure(TaskTimeout(reason), claim.failures + 1, admitted.options, admitted.result)
    return Settlement(
        outcome=Outcome.TIMED_OUT,
        next_state=verdict.state,
        delay=verdict.delay,
        reason=verdict.reason,
        **facts,
    )
