"""
How long to wait before the next attempt.

The delays documented are the delays waited: the n-th failed attempt of ``exponential(first=10)``
is followed by 10, 20, 40, … seconds, to which up to ``JITTER`` of themselves is added so that
runs which failed together do not come back together.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django_manta import importing

#: The longest duration anybody can mean, about three years: timers and calendars take no more.
LONGEST_SECONDS = 100_000_000

#: At most this share of a delay is added to it.
JITTER = 0.1


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same delay after every failed attempt."""

    seconds: float

    def delay(self, failures: int) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Exponential:
    """``first`` seconds after the first failed attempt, doubled after each further one, up to ``limit``."""

    first: float = 10.0
    limit: float = 3600.0

    def delay(self, failures: int) -> float:
        # The exponent is bounded so that a run retried thousands of times overflows nothing.
        return min(self.first * 2.0 ** min(failures - 1, 62), self.limit)


#: Called with the exception and the task's result; returns seconds, or None to give up.
type BackoffFunction = Callable[[BaseException, Any], float | timedelta | None]
type Backoff = Fixed | Exponential | BackoffFunction


def exponential(*, first: float | timedelta = 10.0, limit: float | timedelta = 3600.0) -> Exponential:
    """A backoff that doubles from ``first`` to ``limit`` (seconds or timedelta)."""
    return Exponential(first=_seconds("exponential(first=…)", first), limit=_seconds("exponential(limit=…)", limit))


def parse(value: Any) -> Backoff:
    """The backoff that a task's ``backoff`` option means. Raise TypeError or ValueError."""
    if isinstance(value, Fixed | Exponential):
        return value
    if value == "exponential":
        return Exponential()
    if isinstance(value, str):
        raise ValueError(f"backoff {value!r} is unknown; give seconds, a timedelta, 'exponential' or a function.")
    if callable(value):
        _path_of(value)
        function: BackoffFunction = value
        return function
    return Fixed(_seconds("backoff", value))


def next_delay(backoff: Backoff, failures: int, error: BaseException, task_result: Any) -> float | None:
    """Seconds to wait after the ``failures``-th failed attempt, or None to give up."""
    if isinstance(backoff, Fixed | Exponential):
        delay = backoff.delay(failures)
        return delay + random.uniform(0, JITTER * delay)
    answer = backoff(error, task_result)
    # What a function asks for is what it gets: no jitter on top.
    return None if answer is None else _seconds("the answer of the backoff function", answer)


def to_json(backoff: Backoff) -> Any:
    if isinstance(backoff, Fixed):
        return backoff.seconds
    if isinstance(backoff, Exponential):
        return {"first": backoff.first, "limit": backoff.limit}
    return _path_of(backoff)


def from_json(value: Any) -> Backoff:
    if isinstance(value, dict):
        return Exponential(first=value["first"], limit=value["limit"])
    if isinstance(value, str):
        # Of a run whose signature was verified: nobody else's overrides are read.
        function: BackoffFunction = importing.load(value)
        return function
    return Fixed(value)


def _path_of(function: Callable[..., Any]) -> str:
    """The dotted path of a function; every process that runs the task must be able to import it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or not name or "<" in name or "." in name:
        raise TypeError(f"backoff must be a function defined at module level, not {function!r}.")
    return f"{module}.{name}"


def _seconds(what: str, value: Any) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be seconds or a timedelta, not {value!r}.")
    if not 0 <= value <= LONGEST_SECONDS:
        raise ValueError(
            f"{what} must be a finite number of seconds, 0 or more and at most {LONGEST_SECONDS:,}, not {value!r}."
        )
    return float(value)
