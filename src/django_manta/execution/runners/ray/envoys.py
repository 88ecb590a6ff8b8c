"""A worker's side of its envoy (envoy.py): a process, and a channel to it that never blocks."""

import contextlib
import json
import logging
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from django_manta.execution.runners.forkserver import python
from django_manta.execution.runners.ray import messages

logger = logging.getLogger("django_manta")

READ_BYTES = 256 * 1024

#: An envoy that ended is followed by another after so long.
RESTART_SECONDS = 1.0

#: How long an envoy that takes a Ray of its own along may take to leave.
LEAVE_SECONDS = 10.0


class Envoy:
    """The process that speaks with Ray for one worker. ``on_gone`` is told when it ended; another follows."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        hello: dict[str, Any],
        *,
        on_message: Callable[[list[Any], str], None],
        on_gone: Callable[[], None],
    ) -> None:
        self.selector = selector
        self.hello = hello | {"path": sys.path}
        self._on_message = on_message
        self._on_gone = on_gone
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._inbox = messages.Inbox()
        self._outbox = bytearray()
        self._restart_at = 0.0
        self._closing = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_up(self) -> bool:
        return self._channel is not None

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                python("django_manta.execution.runners.ray.envoy", theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Where Ray prints what its own processes have to say, page after page when one of them dies.
                stdout=subprocess.DEVNULL,
                # A signal to the worker's process group must reach neither it nor a Ray that it starts.
                start_new_session=True,
            )
        ours.setblocking(False)
        self._channel, self._inbox = ours, messages.Inbox()
        self._outbox.clear()
        self.selector.register(ours, selectors.EVENT_READ, self._hear)
        self.send(self.hello)

    def tend(self, now: float) -> float | None:
        """Start another one if it is gone. When to come again."""
        if self._channel is not None or self._closing:
            return None
        if now >= self._restart_at:
            self.start()
            return None
        return self._restart_at

    def close(self) -> None:
        self._closing = True
        self._hang_up()
        if self._process is not None:
            try:
                self._process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def restart(self) -> None:
        """Let it go, and a Ray of its own with it. Another one follows."""
        if self._channel is not None:
            self._died()

    def send(self, message: Any, *parts: str) -> None:
        if self._channel is not None:
            self._outbox += messages.line(messages.dump(message), *parts)
            self._flush()

    def _flush(self) -> None:
        if self._channel is None:
            return
        try:
            while self._outbox:
                sent = self._channel.send(self._outbox)
                del self._outbox[:sent]
        except BlockingIOError:
            pass
        except OSError:
            # It is gone; the end of its channel is heard by the selector.
            self._outbox.clear()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
        key = self.selector.get_key(self._channel)
        if key.events != wanted:
            self.selector.modify(self._channel, wanted, key.data)

    def _hear(self) -> None:
        if self._outbox:
            self._flush()
        while self._channel is not None:
            try:
                data = self._channel.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._died()
                return
            for line in self._inbox.feed(data):
                head, _, rest = line.partition("\t")
                self._on_message(json.loads(head), rest)

    def _died(self) -> None:
        self._hang_up()
        self._restart_at = time.monotonic() + RESTART_SECONDS
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
        self._on_gone()

    def _hang_up(self) -> None:
        if self._channel is not None:
            self.selector.unregister(self._channel)
            self._channel.close()
            self._channel = None
