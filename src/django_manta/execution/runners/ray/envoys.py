"""A worker's side of its envoy (envoy.py): a process, and a channel to it that never blocks."""

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

#: How long an envoy that takes a Ray of its own along may take to leave, and how long any other; then it is killed.
LEAVE_SECONDS = 10.0
LEAVE_SECONDS_ELSEWHERE = 4.0

#: How often the driver process is asked whether it is alive, and after how long without a sign of life it is killed.
PING_SECONDS = 5.0
DRIVER_SECONDS = 15.0

#: The same while it joins Ray: Ray's own code may block it for long, and have to start a Ray first.
JOIN_SECONDS = 180.0

#: With so much waiting to be read by the driver process nothing more is claimed.
OUTBOX_BYTES = 64 * 2**20


class Envoy:
    """The process that speaks with Ray for one worker. ``on_gone`` is told why it ended; another follows."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        hello: dict[str, Any],
        *,
        on_message: Callable[[list[Any], str], None],
        on_gone: Callable[[str], None],
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
        #: It has joined Ray, and its event loop answers.
        self.has_joined = False
        self._ping_at = 0.0
        #: When it last gave a sign of life, and when that was last looked at.
        self._heard_at = self._checked_at = 0.0
        #: Those that were let go and have not ended, and when they are killed.
        self._leaving: list[tuple[subprocess.Popen[bytes], float]] = []

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_up(self) -> bool:
        return self._channel is not None

    @property
    def is_clogged(self) -> bool:
        """The driver process does not read what it is sent."""
        return len(self._outbox) > OUTBOX_BYTES

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
        self.has_joined = False
        self._heard_at = self._checked_at = time.monotonic()
        self.selector.register(ours, selectors.EVENT_READ, self._hear)
        self.send(self.hello)

    def tend(self, now: float) -> float | None:
        """Start another one if it is gone, and replace one that hangs. When to come again."""
        if self._closing:
            return None
        self._kill_stragglers(now)
        if self._channel is None and now < self._restart_at:
            return self._restart_at
        if self._channel is None:
            self.start()
        return self._check_liveness(now)

    def _check_liveness(self, now: float) -> float | None:
        if now - self._checked_at > 2 * PING_SECONDS:
            # This process was stopped or blocked itself, and perhaps the driver with it: it gets the whole time again.
            self._heard_at = now
        self._checked_at = now
        limit = DRIVER_SECONDS if self.has_joined else JOIN_SECONDS
        if now - self._heard_at > limit:
            self._kill(f"Its driver process {self.pid} did not answer for {limit:g} s and was killed.")
            return self._restart_at
        if not self.has_joined:
            return self._heard_at + limit
        if now >= self._ping_at:
            self._ping_at = now + PING_SECONDS
            self.send(["ping"])
        return self._ping_at

    def _kill(self, why: str) -> None:
        if self._process is not None:
            self._process.kill()
        self._died(why)

    def _kill_stragglers(self, now: float) -> None:
        staying = [(process, kill_at) for process, kill_at in self._leaving if process.poll() is None]
        for process, kill_at in staying:
            if now >= kill_at:
                process.kill()
        self._leaving = staying

    def close(self) -> None:
        self._closing = True
        self._hang_up()
        for process, _ in self._leaving:
            process.kill()
        if self._process is not None:
            try:
                self._process.wait(self._leave_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def _leave_seconds(self) -> float:
        if self.hello["address"] == "local":
            return LEAVE_SECONDS
        # Before it has joined there is nothing that it would have to pass on.
        return LEAVE_SECONDS_ELSEWHERE if self.has_joined else 0.0

    def restart(self) -> None:
        """Let it go, and a Ray of its own with it. Another one follows."""
        if self._channel is not None:
            self._died("Its driver process was let go.")

    def send(self, message: Any, *parts: str) -> None:
        if self._channel is not None:
            self._outbox += messages.line(messages.dump(message), *parts)
            self._flush()

    def _flush(self) -> None:
        if self._channel is None:
            return
        was_stuck = self.selector.get_key(self._channel).events & selectors.EVENT_WRITE
        try:
            while self._outbox:
                sent = self._channel.send(self._outbox)
                del self._outbox[:sent]
                if was_stuck:
                    # It reads: what it is asked comes after much else.
                    self._heard_at = time.monotonic()
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
                self._died("The process that spoke with it ended.")
                return
            self._heard_at = time.monotonic()
            for line in self._inbox.feed(data):
                self._take(line)

    def _take(self, line: str) -> None:
        """What it says may be wrong; that does not end the worker."""
        head, _, rest = line.partition("\t")
        del line
        try:
            message = json.loads(head)
            self.has_joined = self.has_joined or message[0] == "here"
            if message[0] != "pong":
                self._on_message(message, rest)
        except messages.UNREADABLE:
            logger.exception("Could not read what the Ray driver process said, and dropped it: %.300s", head)

    def _died(self, why: str) -> None:
        self._hang_up()
        now = time.monotonic()
        self._restart_at = now + RESTART_SECONDS
        if self._process is not None:
            try:
                self._process.wait(0.1)
            except subprocess.TimeoutExpired:
                self._leaving.append((self._process, now + self._leave_seconds))
        # What is asked before the next one is up would be lost.
        self.has_joined = False
        self._on_gone(why)

    def _hang_up(self) -> None:
        if self._channel is not None:
            self.selector.unregister(self._channel)
            self._channel.close()
            self._channel = None
