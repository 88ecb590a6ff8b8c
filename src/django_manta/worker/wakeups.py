"""What ends the loop's wait besides its runner and the doorbell: signals, and other threads of the worker."""

import contextlib
import selectors
import signal
import socket
from collections.abc import Callable
from typing import Any

#: What asks a worker to stop.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Wakeups:
    """A pair of sockets: one end for whoever wakes, the other among what the loop waits for."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        selector.register(self._woken, selectors.EVENT_READ, self._drain)

    def listen_to_signals(self, on_stop: Callable[[int, Any], None]) -> None:
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, on_stop)

    def wake(self) -> None:
        """From another thread: look now."""
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"\0")

    def unheard_signals(self) -> int:
        """From another thread: how many have come since the loop waited last. It may be unable to hear them."""
        with contextlib.suppress(BlockingIOError):
            return sum(byte in STOP_SIGNALS for byte in self._woken.recv(4096, socket.MSG_PEEK))
        return 0

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
