"""
Raising inside a task: when it runs too long, when it was cancelled, when the worker stops.

In the main thread a signal interrupts even a sleeping call; in another thread the exception is
planted and surfaces when the interpreter next runs Python code there; a coroutine is cancelled in
its loop. All are disarmed the moment the function has returned: nothing after it can be hit.
"""

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from django_manta.exceptions import TaskCancelled, TaskTimeout
from django_manta.states import Outcome


class Limit:
    """What may be raised inside one execution, and what was: ours, told from what the task raises."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        #: The time limit was reached.
        self.reached = False
        #: Somebody ended the execution: what it counts as, and why.
        self.interrupted: tuple[Outcome, str] | None = None

    @property
    def message(self) -> str:
        return f"The task ran longer than its timeout of {self.seconds:g} s."


#: The limit that is armed in the main thread, if any.
_armed: Limit | None = None


def interrupt(outcome: Outcome, reason: str) -> None:
    """Raise TaskCancelled inside the function that the main thread is executing, if it is at one."""
    if _armed is not None and _armed.interrupted is None:
        _armed.interrupted = outcome, reason
        raise TaskCancelled(reason)


@contextmanager
def time_limit(limit: Limit) -> Iterator[None]:
    """Raise TaskTimeout inside the block when ``limit`` has passed."""
    if threading.current_thread() is threading.main_thread():
        with _alarm(limit):
            yield
    elif limit.seconds is None:
        yield
    else:
        with _planted(limit, limit.seconds):
            yield


@contextmanager
def _alarm(limit: Limit) -> Iterator[None]:
    global _armed

    def ring(signum: int, frame: FrameType | None) -> None:
        if _armed is limit:
            limit.reached = True
            raise TaskTimeout(limit.message)

    outer = _armed
    former = None
    if limit.seconds is not None:
        former = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, limit.seconds)
    _armed = limit
    try:
        yield
    finally:
        # First, so that a signal on the way finds nothing to hit.
        _armed = outer
        if former is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)


@contextmanager
def _planted(limit: Limit, seconds: float) -> Iterator[None]:
    thread = threading.get_ident()
    lock = threading.Lock()
    over = False

    def plant() -> None:
        with lock:
            if not over:
                limit.reached = True
                _raise_in(thread, TaskTimeout)

    timer = threading.Timer(seconds, plant)
    timer.daemon = True
    timer.start()
    try:
        yield
    except TaskTimeout as error:
        # A planted exception comes as a bare class; give it its words.
        raise (TaskTimeout(limit.message) if limit.reached and not error.args else error) from None
    finally:
        with lock:
            over = True
        timer.cancel()


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
