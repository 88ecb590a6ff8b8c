"""Raising inside a task, at the worst moments: nothing is raised outside of it, and nothing is left armed."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_manta.exceptions import TaskCancelled, TaskTimeout
from django_manta.execution import limits
from django_manta.execution.limits import Limit
from django_manta.states import Outcome

#: How often each moment is tried.
TRIES = 4_000


@contextmanager
def handling(number: int, handler: Any) -> Iterator[None]:
    former = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, former)
        limits.forget()


def nothing() -> str:
    return "returned"


def test_an_interrupt_at_any_moment_is_raised_inside_the_task_or_not_at_all() -> None:
    over = threading.Event()

    def disturb() -> None:
        while not over.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)

    ends = set()
    with handling(signal.SIGUSR1, lambda *_: limits.interrupt(Outcome.CANCELLED, "enough")):
        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        try:
            for number in range(TRIES):
                limit = Limit(60.0 if number % 2 else None)
                try:
                    ends.add(limits.call(limit, nothing, [], {}))
                except TaskCancelled:
                    ends.add(limit.interrupted)
                assert limits._armed is None
                assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
                limits.forget()
        finally:
            over.set()
            disturbing.join()
    assert ends <= {"returned", (Outcome.CANCELLED, "enough")}
    assert (Outcome.CANCELLED, "enough") in ends


def test_an_interrupt_that_came_before_the_call_is_raised_in_it() -> None:
    limit = Limit(None)
    limits.forget()
    limits.interrupt(Outcome.CANCELLED, "early")
    with pytest.raises(TaskCancelled, match="early"):
        limits.call(limit, nothing, [], {})
    assert limit.interrupted == (Outcome.CANCELLED, "early")
    # And once.
    assert limits.call(Limit(None), nothing, [], {}) == "returned"


def test_the_shortest_time_limit_is_heard() -> None:
    for _ in range(100):
        limit = Limit(1e-6)
        with pytest.raises(TaskTimeout):
            limits.call(limit, time.sleep, [5], {})
        assert limit.reached


def test_a_time_limit_that_passes_as_the_function_returns_hits_nothing_after_it() -> None:
    """In a thread, where an exception may be planted and come to light later."""
    strays: list[BaseException] = []
    timed_out = 0

    def repeat() -> None:
        nonlocal timed_out
        for _ in range(TRIES // 4):
            try:
                try:
                    limits.call(Limit(0.0002), time.sleep, [0.0002], {})
                except TaskTimeout:
                    timed_out += 1
                for _ in range(200):
                    pass
            except BaseException as error:
                strays.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    thread.join()
    assert strays == []
    assert timed_out > 0
