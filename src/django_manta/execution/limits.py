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
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, TracebackType

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

#: An interrupt that came before the function was called: middleware or a receiver was busy.
_early: tuple[Outcome, str] | None = None


def forget() -> None:
    """A new execution begins: what was meant for the last one is over."""
    global _early
    _early = None


def interrupt(outcome: Outcome, reason: str) -> None:
    """Raise TaskCancelled inside the function that the main thread is executing, if it is at one."""
    global _early
    if _armed is None:
        _early = outcome, reason
    elif _armed.interrupted is None:
        _armed.interrupted = outcome, reason
        raise TaskCancelled(reason)


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


class TimeLimit:
    """``with TimeLimit(limit):`` raises TaskTimeout inside the block when ``limit`` has passed."""

    __slots__ = ("_former", "_is_main", "_limit", "_outer", "_planted")

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._planted: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        global _armed, _early
        self._is_main = _in_main_thread()
        if not self._is_main:
            if self._limit.seconds is not None:
                self._planted = _planted(self._limit, self._limit.seconds)
                self._planted.__enter__()
            return
        self._outer, self._former = _armed, None
        if self._limit.seconds is not None:
            self._former = signal.signal(signal.SIGALRM, self._ring)
            signal.setitimer(signal.ITIMER_REAL, self._limit.seconds)
        _armed = self._limit
        if _early is not None:
            early, _early = _early, None
            try:
                interrupt(*early)
            finally:
                # An exception here keeps __exit__ from being called.
                self.__exit__(None, None, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        global _armed
        if not self._is_main:
            return self._planted.__exit__(kind, error, trace) if self._planted is not None else None
        # First, so that a signal on the way finds nothing to hit.
        _armed = self._outer
        if self._former is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._former)
        return None

    def _ring(self, signum: int, frame: FrameType | None) -> None:
        if _armed is self._limit:
            self._limit.reached = True
            raise TaskTimeout(self._limit.message)


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
