"""
SIGTERM in a process of Ray that executes runs.

Whoever stops a node (``ray stop``, systemd, Kubernetes) sends SIGTERM to its processes. Ray's own handler raises
SystemExit wherever the main thread is: inside a task that would be a failure of the task. So while this process
executes a chunk it has a handler of ours. It ends the run under way as interrupted, nothing more is begun, and then
Ray's handler ends the process as it would have done.
"""

import contextlib
import os
import signal
import threading

# signal.getsignal() makes an enum of what it finds, which takes ten times as long as to find it.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

#: A process that has something to return to Ray ends so long after it has.
LEAVE_SECONDS = 0.5

REASON = "Its node on Ray is being stopped."

_SIGTERM = int(signal.SIGTERM)


class Termination:
    """The handler of SIGTERM of this process, and whether it was asked to end."""

    def __init__(self) -> None:
        #: SIGTERM came. Nothing is begun in this process any more.
        self.asked = False
        #: What to call when it comes while a chunk is executed: it may raise.
        self.interrupt: Callable[[], None] = _nothing
        self._is_executing = False
        self._rays: Any = None

    def install(self) -> None:
        """Only the main thread may. Ray installs its own handler when the process starts, and not again."""
        found = getsignal(_SIGTERM)
        if found != self._handle:
            self._rays = self._rays or found
            signal.signal(signal.SIGTERM, self._handle)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """While this process executes a chunk SIGTERM interrupts the run under way, and does not end the process."""
        self.install()
        self._is_executing = True
        try:
            yield
        finally:
            self._is_executing = False

    def obey(self, undelivered: bytes) -> None:
        """If SIGTERM came, end the process: at once, or when Ray has what is still to be delivered."""
        if self.asked and undelivered:
            timer = threading.Timer(LEAVE_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
            timer.daemon = True
            timer.start()
        elif self.asked:
            self._end_as_ray_does(_SIGTERM, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._is_executing:
            self.interrupt()
        else:
            self._end_as_ray_does(number, frame)

    def _end_as_ray_does(self, number: int, frame: FrameType | None) -> None:
        if callable(self._rays):
            self._rays(number, frame)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


def _nothing() -> None:
    """The project is still being loaded: there is no task to interrupt."""
