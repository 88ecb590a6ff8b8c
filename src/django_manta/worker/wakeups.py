"""What ends the loop's wait besides its runner and the doorbell: signals, and other threads of the worker."""

import contextlib
import selectors
import signal
import socket
from collections.abc import Callable
from typing import Any


class Wakeups:
    """A pair of sockets: one end for whoever wakes, the other among what the loop waits for."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        selector.register(self._woken, selectors.EVENT_READ, self._drain)

    def listen_to_signals(self, on_stop: Callable[[int, Any], None]) -> None:
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, on_stop)

    def wake(self) -> None:
        """From another thread: look now."""
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"\0")

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
