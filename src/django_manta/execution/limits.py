"""
A time limit that raises inside the task.

In the main thread an alarm interrupts even a sleeping call; in another thread the exception is
planted and surfaces when the interpreter next runs Python code there. The limit is disarmed the
moment the function has returned: nothing after it can be hit.
"""

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from django_manta.exceptions import TaskTimeout


class Limit:
    """Whether the limit was reached, for telling our TaskTimeout from one that the task raised."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.reached = False

    @property
    def message(self) -> str:
        return f"The task ran longer than its timeout of {self.seconds:g} s."


@contextmanager
def time_limit(limit: Limit) -> Iterator[None]:
    """Raise TaskTimeout inside the block when ``limit`` has passed."""
    if limit.seconds is None:
        yield
    elif threading.current_thread() is threading.main_thread():
        with _alarm(limit, limit.seconds):
            yield
    else:
        with _planted(limit, limit.seconds):
            yield


@contextmanager
def _alarm(limit: Limit, seconds: float) -> Iterator[None]:
    def ring(signum: int, frame: FrameType | None) -> NoReturn:
        limit.reached = True
        raise TaskTimeout(limit.message)

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
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
