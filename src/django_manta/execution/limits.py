"""
Raising inside a task: when it runs too long, when it was cancelled, when the worker stops.

In the main thread a signal interrupts even a sleeping call; in another thread the exception is
planted and surfaces when the interpreter next runs Python code there; a coroutine is cancelled in
its loop. All are disarmed the moment the function has returned: nothing after it can be hit.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Never

from django_manta.exceptions import TaskCancelled, TaskTimeout
from django_manta.states import Outcome

#: Where handlers of signals come from that are ours.
_HERE = str(Path(__file__).resolve().parent.parent)


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
    global _armed, _early
    _armed = _early = None


def interrupt(outcome: Outcome, reason: str) -> None:
    """Raise TaskCancelled inside the function that the main thread is executing, if it is at one."""
    global _early
    if _armed is None:
        _early = outcome, reason
    elif _armed.interrupted is None:
        _armed.interrupted = outcome, reason
        raise TaskCancelled(reason)


def call(limit: Limit, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call ``function``. TaskTimeout and TaskCancelled are raised inside it; in a thread only the former."""
    if threading.get_ident() == threading.main_thread().ident:
        return _call_in_main_thread(limit, function, args, kwargs)
    if limit.seconds is None:
        return function(*args, **kwargs)
    return _call_in_thread(limit, limit.seconds, function, args, kwargs)


def _call_in_main_thread(
    limit: Limit, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    # A handler of a signal runs after a call or in a loop, never between two plain assignments. So what raises is
    # armed after the beginning of "try", whatever comes before that is early, and disarmed first thing in "finally".
    global _armed, _early
    outer, former = _armed, None
    if limit.seconds is not None:

        def ring(number: int, frame: FrameType | None) -> None:
            if _armed is limit:
                limit.reached = True
                raise TaskTimeout(limit.message)

        former = signal.signal(signal.SIGALRM, ring)
    try:
        _armed = limit
        if _early is not None:
            early, _early = _early, None
            interrupt(*early)
        if limit.seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, limit.seconds)
        return function(*args, **kwargs)
    finally:
        _armed = outer
        if limit.seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL if former is None else former)


def _call_in_thread(
    limit: Limit, seconds: float, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
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
        try:
            return function(*args, **kwargs)
        finally:
            timer.cancel()
            with lock:
                over = True
            if limit.reached:
                # If it has not surfaced yet, it must not: what comes next is not the task.
                _raise_in(thread, None)
    except TaskTimeout as error:
        # A planted exception comes as a bare class; give it its words.
        raise (TaskTimeout(limit.message) if limit.reached and not error.args else error) from None


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    planted = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), planted)


# -- what a task leaves, and what it forks -----------------------------------------------------------


def stray_alarm(number: int, frame: FrameType | None) -> None:
    """An alarm that no run has a handler for: set by one that has ended, most likely. It must not end the next one."""
    signal.setitimer(signal.ITIMER_REAL, 0)


#: How often this process was forked from another since this was loaded.
forks = 0


def _count_fork() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_count_fork)


#: Signals for which an executing process may have handlers of ours.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM)

_masks = threading.local()


def let_forks_be_plain() -> None:
    """Of what this process forks: signals do to it what they do to any other, and nothing is raised in it."""
    # Blocked until it has no handler of ours any more: one that comes sooner would do nothing, and be forgotten.
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_be_plain)


def _block() -> None:
    _masks.former = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.former)


def _be_plain() -> None:
    forget()
    for number in _SIGNALS:
        if _is_ours(signal.getsignal(number)):
            plain = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, plain)
    _unblock()


def _is_ours(handler: Any) -> bool:
    code = getattr(handler, "__code__", None)
    return code is not None and code.co_filename.startswith(_HERE)


class InOneProcess:
    """
    A process that a task forks, and that comes to the end of this block, ends there: it is not the one that was given
    the run, and must neither settle nor tell anything.
    """

    __slots__ = ("_forks",)

    def __enter__(self) -> None:
        self._forks = forks

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if forks != self._forks:
            _end_copy(error)


def _end_copy(error: BaseException | None) -> Never:
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        code = 1
        with suppress(BaseException):
            sys.excepthook(type(error), error, error.__traceback__)
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit(code)
