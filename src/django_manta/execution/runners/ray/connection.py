"""
The end, at the foreman, of the connections with a process that executes chunks.

A process has two. One carries messages. What cannot be read there is the fault of its process, which is then killed
and taken for one that died; no other process is concerned. The other one carries what the interpreter writes when the
process dies of a segmentation fault, wherever it was at that moment: so that cannot end up inside a message.
"""

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

#: What a process said before it failed is read within this: several times as long as a connection rests.
UNREAD_SECONDS = 10 * READ_SECONDS

#: Who connects has so long to say who it is, in so many words.
HELLO_SECONDS = 10.0
HELLO_BYTES = 4_096

#: No message is longer: a result has at most payload.RESULT_LIMIT characters, some of which take several bytes.
MESSAGE_BYTES = 512 * 1024 * 1024


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
        self._is_resting = self._is_held = False
        self._has_ended = False
        #: Something that was said cannot be read. Nothing that follows is taken for a message.
        self._is_garbled = False
        #: The other connection of the process: the one for its interpreter's last words, or for its messages.
        self._last_words: Connection | None = None
        self._speaker: Connection | None = None
        self._carries_last_words = False

    @property
    def unread(self) -> int:
        """The bytes of a message that has not ended."""
        return self.inbox.size

    @property
    def is_abandoned(self) -> bool:
        """Whether all that it executes belongs to workers that do not listen."""
        held = self._current.held.values() if self._current is not None else ()
        return bool(held) and not any(each.worker in self.foreman.outboxes for each in held)

    @property
    def is_waiting(self) -> bool:
        """Whether it has more to say than the foreman wants to read for now."""
        return self.foreman.intake.is_waiting(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        messages.keep_alive(transport.get_extra_info("socket"))
        asyncio.get_running_loop().call_later(HELLO_SECONDS, self._expect_hello)

    def _expect_hello(self) -> None:
        if not self._is_ours:
            self.close()

    def data_received(self, data: bytes) -> None:
        if self._is_garbled or self._carries_last_words:
            self._overhear(messages.readable(data))
            return
        if not self._is_ours and self.inbox.size + len(data) > HELLO_BYTES and b"\n" not in data[:HELLO_BYTES]:
            self.close()
            return
        line = ""
        try:
            for line in self.inbox.feed(data):
                self._take(line)
            if self.inbox.size > MESSAGE_BYTES:
                raise ValueError(f"a message of more than {MESSAGE_BYTES} bytes")
        except Exception as error:
            self._blame(line, error)
            return
        if not self._is_ours or self._carries_last_words:
            return
        self.foreman.intake.has_read(self)
        if self._current is not None and len(self._current.held) > 1 and self.inbox.is_empty:
            self._rest()

    def _take(self, line: str) -> None:
        kind, *parts = line.split("\t")
        if kind == "hello":
            self._greet(*json.loads(parts[0]))
        elif kind == "last words":
            self._await_last_words(*json.loads(parts[0]))
        elif self._current is not None:
            self.foreman.heed(self._current, kind, *parts)

    def _blame(self, line: str, error: Exception) -> None:
        """What it said cannot be read. Its process is at fault, if it is one of ours."""
        self.inbox = messages.Inbox()
        self.foreman.intake.forget(self)
        if self._current is None or self._current.id not in self.foreman.chunks:
            self.close()
            return
        # Not closed: its end tells when the process is dead.
        self._is_garbled = self._current.is_garbled = True
        self._overhear(line + "\n")
        self.foreman.condemn(self._current, f"It sent an unreadable message ({type(error).__name__}: {error}).")

    def _overhear(self, text: str) -> None:
        """Something that is no message may say what the process died of."""
        chunk = self._current if self._speaker is None else self._speaker._current
        if chunk is not None:
            chunk.overhear(text)

    # -- reading less ----------------------------------------------------------------------------

    def hold(self, is_held: bool) -> None:
        """Read nothing of it until it is allowed again."""
        self._is_held = is_held
        self._read_or_not()

    def _rest(self) -> None:
        """Read no more for a moment: to be woken for each of many short runs costs more than all that they say."""
        self._is_resting = True
        self._read_or_not()
        asyncio.get_running_loop().call_later(READ_SECONDS, self._rested)

    def _rested(self) -> None:
        self._is_resting = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        assert self._transport is not None
        if self._is_held or self._is_resting:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # -- who it is -------------------------------------------------------------------------------

    def _is_known(self, secret: Any) -> bool:
        if not hmac.compare_digest(str(secret), self.foreman.secret):
            self.close()
            return False
        self._is_ours = True
        return True

    def _greet(self, secret: str, chunk_id: str, pid: int, name: str, log: str) -> None:
        if not self._is_known(secret):
            return
        self._current = self.foreman.chunks.get(chunk_id)
        if self._current is not None:
            self.chunks.add(chunk_id)
            self._current.connection, self._current.pid = self, pid
            self._current.name, self._current.log = name, log
            if self._current.last_words is not None:
                self._pair_with(self._current.last_words)
            self.foreman.look_at(self._current)
            for held in list(self._current.held.values()):
                if held.unwanted:
                    self.send(["interrupt", held.key, "CANCELLED", "It was cancelled."])

    def _await_last_words(self, secret: str, chunk_id: str) -> None:
        if not self._is_known(secret):
            return
        self._carries_last_words = True
        chunk = self.foreman.chunks.get(chunk_id)
        if chunk is not None:
            chunk.last_words = self
            if chunk.connection is not None:
                chunk.connection._pair_with(self)

    def _pair_with(self, last_words: "Connection") -> None:
        self._last_words, last_words._speaker = last_words, self

    # -- its end ---------------------------------------------------------------------------------

    def connection_lost(self, error: Exception | None) -> None:
        self._has_ended = True
        self.foreman.intake.forget(self)
        if self._carries_last_words:
            if self._speaker is not None and self._speaker._has_ended:
                self._speaker._say_over()
            return
        if self._last_words is not None and not self._last_words._has_ended:
            # It comes by another way, and may be a little later.
            asyncio.get_running_loop().call_later(UNREAD_SECONDS, self._say_over)
        else:
            self._say_over()
        for chunk_id in self.chunks:
            chunk = self.foreman.chunks.get(chunk_id)
            if chunk is not None:
                self.foreman.miss(chunk)

    def _say_over(self) -> None:
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
