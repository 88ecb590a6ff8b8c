"""
A proxy before PostgreSQL that does one thing to the Nth statement of a client, whatever it is.

It counts what the client asks the server to execute (simple queries, and each execution of a prepared statement) from
the moment it is armed, over all connections of the client. At the Nth it

- ``cut``: ends the connection before the server has seen the statement;
- ``unheard``: hands the statement on, and ends the connection when the server has answered;
- ``kill``, ``kill_unheard``: the same, and the client gets SIGKILL;
- any other kind is a SQLSTATE: the server executes a statement that raises it, in place of the client's own.

So the error is the server's own, in the client's own transaction, and nothing in the client is replaced.
"""

import asyncio
import os
import signal
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.proxy import Proxy, _framed, _greeting, _messages

#: What servers say in the field: data and constraint errors, conflicts, limits, a read-only standby, full disks,
#: time limits, and a shutdown.
SQLSTATES = (
    "22P02",  # a value that cannot be read
    "22003",  # a number out of range
    "23505",  # a unique key
    "23514",  # a check constraint
    "25006",  # the server became a read-only standby
    "40001",  # a serialization failure
    "40P01",  # a deadlock
    "42501",  # a missing privilege
    "53100",  # a full disk
    "53200",  # out of memory
    "54000",  # a limit of the server
    "55P03",  # a lock that was not to be had
    "57014",  # a time limit
    "57P01",  # the server shuts down
    "XX000",  # an internal error
)
CUTS = ("cut", "unheard")
KILLS = ("kill", "kill_unheard")

#: How long a server may take to answer what is not to be heard.
_ANSWER_SECONDS = 10.0


@dataclass(slots=True)
class Fault:
    """What is to happen, and to whom."""

    kind: str
    nth: int
    #: Who gets SIGKILL, where the kind is one of KILLS.
    pid: int | None = None


@dataclass(slots=True)
class _Expected:
    """What the server will say to a message: the letters of which one ends the answer."""

    letters: bytes
    swallowed: bool = False


@dataclass(slots=True)
class _Link:
    expected: deque[_Expected] = field(default_factory=deque)
    #: The client is to hear nothing any more.
    is_deaf: bool = False


_ANSWERS = {b"P": b"1", b"B": b"2", b"C": b"3", b"D": b"Tn", b"E": b"CIs", b"S": b"Z", b"Q": b"Z"}


class FaultProxy(Proxy):
    """See the module."""

    def __init__(self, directory: Path, server: Mapping[str, Any]) -> None:
        super().__init__(directory, server, {}, seed=0)
        self._fault: Fault | None = None
        self._count = 0
        self.fired = False

    def arm(self, fault: Fault) -> None:
        self._count, self.fired, self._fault = 0, False, fault

    def disarm(self) -> bool:
        """Whether it has happened."""
        self._fault = None
        return self.fired

    def _is_hit(self) -> Fault | None:
        fault = self._fault
        if fault is None:
            return None
        self._count += 1
        if self._count != fault.nth:
            return None
        self._fault, self.fired = None, True
        return fault

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        link = _Link()
        heard = asyncio.Event()
        ways = [
            asyncio.create_task(self._pass_on((reader, writer), server, link, heard)),
            asyncio.create_task(self._pass_back((reader, writer), server, link, heard)),
        ]
        with suppress(asyncio.CancelledError):
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for _, end in ((reader, writer), server):
            end.transport.abort()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(self, client: Any, server: Any, link: _Link, heard: asyncio.Event) -> None:
        """From the client to the server."""
        reader, writer = client[0], server[1]
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            writer.write(await _greeting(reader, client[1]))
            async for letter, body in _messages(reader):
                fault = self._is_hit() if letter in (b"Q", b"E") else None
                if fault is None:
                    self._send(writer, link, letter, body)
                elif fault.kind in ("cut", "kill"):
                    _end(fault)
                    return
                elif fault.kind in ("unheard", "kill_unheard"):
                    link.is_deaf = True
                    self._send(writer, link, letter, body)
                    if letter == b"E":
                        await self._rest_of_request(reader, writer, link)
                    await writer.drain()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(heard.wait(), _ANSWER_SECONDS)
                    _end(fault)
                    return
                else:
                    self._raise(writer, link, letter, fault.kind)
                if letter in (b"Q", b"S", b"H"):
                    await writer.drain()

    async def _rest_of_request(self, reader: Any, writer: Any, link: _Link) -> None:
        """Hand on what leaves together with an execution, as far as the end of it."""
        async for letter, body in _messages(reader):
            self._send(writer, link, letter, body)
            if letter == b"S":
                return

    def _send(self, writer: Any, link: _Link, letter: bytes, body: bytes, *, swallowed: bool = False) -> None:
        if letters := _ANSWERS.get(letter):
            link.expected.append(_Expected(letters, swallowed))
        writer.write(_framed(letter, body))

    def _raise(self, writer: Any, link: _Link, letter: bytes, code: str) -> None:
        """Have the server raise an error in place of a statement."""
        words = f"DO $$BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{code}'; END$$".encode()
        if letter == b"Q":
            self._send(writer, link, b"Q", words + b"\0")
            return
        self._send(writer, link, b"P", b"\0" + words + b"\0\0\0", swallowed=True)
        self._send(writer, link, b"B", b"\0\0" + b"\0\0" * 3, swallowed=True)
        self._send(writer, link, b"E", b"\0" + b"\0" * 4)

    async def _pass_back(self, client: Any, server: Any, link: _Link, heard: asyncio.Event) -> None:
        """From the server to the client."""
        reader, writer = server[0], client[1]
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            async for letter, body in _messages(reader):
                swallowed = _match(link, letter)
                if link.is_deaf:
                    if letter == b"Z":
                        heard.set()
                elif not swallowed:
                    writer.write(_framed(letter, body))
                    if letter in (b"Z", b"A") or not link.expected:
                        await writer.drain()
        heard.set()


def _match(link: _Link, letter: bytes) -> bool:
    """Note that a message of the client was answered; whether the client asked for the answer."""
    expected = link.expected
    if letter == b"E":
        # What follows is not executed, as far as the end of the request.
        while expected and expected[0].letters != b"Z":
            expected.popleft()
        return False
    if not expected or letter not in expected[0].letters:
        return False
    return expected.popleft().swallowed


def _end(fault: Fault) -> None:
    if fault.kind in KILLS and fault.pid is not None:
        with suppress(ProcessLookupError):
            os.kill(fault.pid, signal.SIGKILL)


@contextmanager
def before(server: Mapping[str, Any]) -> Iterator[FaultProxy]:
    """A proxy before the server that Django's settings describe, for as long as the block."""
    with tempfile.TemporaryDirectory(prefix="manta-proxy-") as name:
        proxy = FaultProxy(Path(name), server)
        proxy.start()
        try:
            yield proxy
        finally:
            proxy.stop()
