"""
Another attempt, or the end?

The executor asks while it holds the live exception; whoever finds an execution dead or lost asks
with the counters alone.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_manta import backoff, importing
from django_manta.exceptions import TaskTimeout
from django_manta.ledger import AttemptRecord
from django_manta.options import Effective
from django_manta.states import Outcome, State, may_start_again

logger = logging.getLogger("django_manta")

#: A run that this code cannot verify, or for which it cannot reach the database, waits this long at first, and at most,
#: before it is claimed again.
FIRST_REFUSAL_SECONDS, LAST_REFUSAL_SECONDS = 1.0, 60.0

#: An attempt that was RETURNED with one of these was given back because its executor could not reach the database.
UNREACHABLE = frozenset({"django.db.utils.OperationalError", "django.db.utils.InterfaceError"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where the run goes, after how long, and why it goes no further if it does not."""

    state: State
    delay: float | None = None
    reason: str = ""


def after_failure(error: BaseException, failures: int, options: Effective, task_result: Any) -> Verdict:
    """What follows the ``failures``-th charged failure, this one included."""
    if failures >= options.max_attempts:
        return Verdict(State.FAILED, reason=_spent(failures, options))
    if not is_retried(error, options):
        return Verdict(State.FAILED, reason=f"{type(error).__name__} is not retried.")
    try:
        delay = backoff.next_delay(options.backoff, failures, error, task_result)
    except Exception:
        logger.exception("The backoff function of %s failed.", task_result.task.module_path)
        return Verdict(State.FAILED, reason="Its backoff function raised an exception; see the log.")
    if delay is None:
        return Verdict(State.FAILED, reason="Its backoff function gave up.")
    return again_after(delay)


def after_unfinished(max_losses: int, reason: str) -> Verdict:
    """What follows an execution that began, did not end by itself, and is charged to nobody."""
    if may_start_again(max_losses):
        return Verdict(State.READY, reason=reason)
    return Verdict(State.LOST, reason=f"{reason} It is not started again: max_losses is 0.".strip())


def again_after(delay: float) -> Verdict:
    return Verdict(State.SCHEDULED, delay) if delay > 0 else Verdict(State.READY)


def is_retried(error: BaseException, options: Effective) -> bool:
    """``no_retry_on`` wins; then ``retry_on``, where None stands for everything."""
    if any(_matches(error, path) for path in options.no_retry_on):
        return False
    return options.retry_on is None or any(_matches(error, path) for path in options.retry_on)


def _matches(error: BaseException, path: str) -> bool:
    if isinstance(error, TaskTimeout) and path == "builtins.OSError":
        # By inheritance only: who names OSError thinks of files and sockets.
        return False
    if any(f"{kind.__module__}.{kind.__qualname__}" == path for kind in type(error).__mro__):
        return True
    # The path may be where the class is exported, not where it is defined.
    try:
        named = importing.load(path)
    except ImportError:
        # A module that cannot be imported names no exception that was raised.
        return False
    return isinstance(named, type) and isinstance(error, named)


def after_refusal(refused_for: float | None, skew_seconds: float) -> Verdict | None:
    """
    How long to give back a run that this code cannot verify or find, or None when the time is over.

    In a rolling deploy an old worker must not fail the new release's runs.
    """
    so_far = refused_for or 0.0
    if so_far >= skew_seconds:
        return None
    delay = min(max(so_far, FIRST_REFUSAL_SECONDS), LAST_REFUSAL_SECONDS)
    return Verdict(State.SCHEDULED, min(delay, skew_seconds - so_far))


def refused_since(history: Sequence[AttemptRecord], refused_at: datetime) -> datetime | None:
    """
    Since when code that cannot verify or find a run has given it back, if workers have given it back since
    ``refused_at`` for whatever reason. None if the last one could not reach its database: it had verified the run, so
    the time for a newer release begins anew.
    """
    since = None
    for attempt in reversed(history):
        if attempt.outcome is not Outcome.RETURNED or not attempt.error_class:
            return refused_at
        if attempt.error_class in UNREACHABLE:
            return None if since is None else max(since, refused_at)
        since = attempt.finished_at
    return refused_at


def after_unreachable(refused_for: float | None) -> Verdict:
    """
    How long to give back a run for which the database could not be reached before the task was called: a little longer
    each time, and as often as it takes.
    """
    return Verdict(State.SCHEDULED, min(max(refused_for or 0.0, FIRST_REFUSAL_SECONDS), LAST_REFUSAL_SECONDS))


def _spent(failures: int, options: Effective) -> str:
    if options.max_attempts == 1:
        return "It failed, and max_attempts is 1."
    return f"It failed {failures} times, and max_attempts is {options.max_attempts}."
