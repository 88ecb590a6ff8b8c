"""The end, at the foreman, of the connection with a process that executes chunks."""

import asyncio
import hmac
import json
from typing import TYPE_CHECKING, Any

from django_manta.execution.runners.ray import messages
from django_manta.execution.runners.ray.held import Chunk

if TYPE_CHECKING:
    from django_manta.execution.runners.ray.foreman import Foreman

#: A chunk of many is listened to this often. What it has written meanwhile is safe: it is the kernel's.
READ_SECONDS = 0.01

#: Who connects has so long to say who it is, in so many words.
HELLO_SECONDS = 10.0
HELLO_BYTES = 4_096


class Connection(asyncio.Protocol):
    """A Ray worker process that executes chunks."""

    def __init__(self, foreman: "Foreman") -> None:
        self.foreman = foreman
        self.inbox = messages.Inbox()
        self.chunks: set[str] = set()
        self._current: Chunk | None = None
        #: Whoever it is has said the word.
        self._is_ours = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        messages.keep_alive(transport.get_extra_info("socket"))
        asyncio.get_running_loop().call_later(HELLO_SECONDS, self._expect_hello)

    def _expect_hello(self) -> None:
        if not self._is_ours:
            self.close()

    def data_received(self, data: bytes) -> None:
        if not self._is_ours and self.inbox.size + len(data) > HELLO_BYTES and b"\n" not in data[:HELLO_BYTES]:
            self.close()
            return
        try:
            for line in self.inbox.feed(data):
                kind, *parts = line.split("\t")
                if kind == "hello":
                    self._greet(*json.loads(parts[0]))
                elif self._current is not None:
                    self.foreman.heed(self._current, kind, *parts)
        except (ValueError, KeyError, IndexError, TypeError):
            # Not one of ours, or a task has written over what it should not have.
            self.close()
            return
        if self._current is not None and len(self._current.held) > 1 and self.inbox.is_empty:
            self._rest()

    def _rest(self) -> None:
        """Read no more for a moment: to be woken for each of many short runs costs more than all that they say."""
        assert self._transport is not None
        self._transport.pause_reading()
        asyncio.get_running_loop().call_later(READ_SECONDS, self._transport.resume_reading)

    def _greet(self, secret: str, chunk_id: str, pid: int, name: str, log: str) -> None:
        if not hmac.compare_digest(str(secret), self.foreman.secret):
            self.close()
            return
        self._is_ours = True
        self._current = self.foreman.chunks.get(chunk_id)
        if self._current is not None:
            self.chunks.add(chunk_id)
            self._current.connection, self._current.pid = self, pid
            self._current.name, self._current.log = name, log
            self.foreman.look_at(self._current)
            for held in list(self._current.held.values()):
                if held.unwanted:
                    self.send(["interrupt", held.key, "CANCELLED", "It was cancelled."])

    def connection_lost(self, error: Exception | None) -> None:
        for chunk_id in self.chunks:
            chunk = self.foreman.chunks.get(chunk_id)
            if chunk is not None:
                chunk.over.set()

    def send(self, frame: list[Any]) -> None:
        if self._transport is not None:
            self._transport.write(messages.line(messages.dump(frame)))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
