"""
A go-between of PostgreSQL that loses acknowledgements.

It listens on a Unix socket of its own and hands everything on, both ways. It knows just enough of the protocol to
see which statements a transaction has had, and when the server has said that it is over. Then it may cut the
connection instead of handing the answer on: the transaction has committed, and whoever asked for it never hears.

    who asks  ──▶  Query or Sync  ──▶  server
              ◀─ ✂ ─  answer, up to ReadyForQuery(idle)  ◀──
"""

import asyncio
import random
import struct
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

#: What the statements of a kind have and no other has.
KINDS = {
    "claim": b"state = 'RUNNING',\nworker = ",
    "settle": b"INSERT INTO manta_attempt (",
    "enqueue": b"INSERT INTO manta_run (",
}

#: The beginning and the end of a transaction, where they are prepared as the statements are that leave with them.
BEGIN, COMMIT = "begin", "commit"

#: A transaction that settles and claims, as a step of a chain does, is of a kind of its own.
BOTH = "settle_and_claim"

#: So is a settlement of so many: a worker may have a connection of its own for those.
MANY = "settle_many"
MANY_RUNS = 50

#: What a client may ask before it says who it is: for encryption, which we refuse, as a local server does.
_NEGOTIATIONS = {80877103, 80877104}

#: So many of the cuts happen as soon as the request has left, without waiting for what the server says.
HASTY_SHARE = 0.25


@dataclass(slots=True)
class Link:
    """One connection, and what its present transaction has had. A worker may have several, each for what it likes."""

    #: The kinds of the statements that were prepared here, by name.
    prepared: dict[bytes, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    #: What the server last said of its transaction: idle, in one, or in one that failed.
    status: bytes = b""
    #: The server has refused something since it was last idle.
    refused: bool = False
    #: Who asked is gone already.
    cut: bool = False


class Proxy:
    """Cuts a share of the connections on which something of a kind has just been committed."""

    def __init__(self, directory: Path, server: Mapping[str, Any], shares: Mapping[str, float], seed: int) -> None:
        self.directory = directory
        self.server = server
        self.shares = dict(shares)
        self.dice = random.Random(seed)
        #: How many connections were cut after which kind of commit.
        self.cuts: Counter[str] = Counter()
        self.hasty = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        user, password = quote(str(self.server["USER"])), quote(str(self.server["PASSWORD"]))
        who = f"{user}:{password}@" if password else f"{user}@"
        return f"postgresql://{who}/postgres?host={self.directory}&port=5432"

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    def calm(self) -> None:
        """Cut nothing from now on."""
        self.shares = {}

    # -- its thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._meet, self.directory / ".s.PGSQL.5432")
        self._ready.set()
        await self._over.wait()
        server.close()
        # Also who was just about to be met.
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = (reader, writer)
        try:
            server = await self._connect()
        except OSError:
            # Whoever wanted to connect sees what there is to see: nobody.
            writer.transport.abort()
            return
        link = Link()
        answered = asyncio.Event()
        ways = [
            asyncio.create_task(self._ask(client, server, link, answered)),
            asyncio.create_task(self._answer(client, server, link, answered)),
        ]
        with suppress(asyncio.CancelledError):
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (client, server):
            end[1].transport.abort()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = str(self.server["HOST"] or "127.0.0.1"), str(self.server["PORT"] or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, int(port))

    async def _ask(self, client: Any, server: Any, link: Link, answered: asyncio.Event) -> None:
        """From who asks to the server."""
        reader, writer = client[0], server[1]
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            writer.write(await _greeting(reader, client[1]))
            async for letter, body in _messages(reader):
                _note(link, letter, body)
                writer.write(_framed(letter, body))
                if letter in (b"Q", b"S"):
                    await writer.drain()
                    if _is_last(link, letter, body) and self._is_hasty(link):
                        # The server has all it needs to commit, and gets the time for it.
                        link.cut = True
                        client[1].transport.abort()
                        await answered.wait()
                        return

    async def _answer(self, client: Any, server: Any, link: Link, answered: asyncio.Event) -> None:
        """From the server to who asked. What may be an acknowledgement is kept until it is seen to be one."""
        reader, writer = server[0], client[1]
        kept: list[bytes] = []
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            async for letter, body in _messages(reader):
                kept.append(_framed(letter, body))
                link.refused = link.refused or letter == b"E"
                if letter == b"Z":
                    if link.cut or (body == b"I" and link.seen and not link.refused and self._is_cut(link)):
                        break
                    link.status = body
                    if body == b"I":
                        link.seen, link.refused = set(), False
                if not link.cut and (letter == b"Z" or not link.seen):
                    writer.write(b"".join(kept))
                    kept.clear()
                    await writer.drain()
        answered.set()

    def _is_hasty(self, link: Link) -> bool:
        if self.dice.random() >= HASTY_SHARE or not self._is_cut(link):
            return False
        self.hasty += 1
        return True

    def _is_cut(self, link: Link) -> bool:
        for kind in [BOTH] if {"settle", "claim"} <= link.seen else sorted(link.seen):
            if self.dice.random() < self.shares.get(kind, 0.0):
                self.cuts[kind] += 1
                return True
        return False


@contextmanager
def between(server: Mapping[str, Any], shares: Mapping[str, float], seed: int) -> Iterator[Proxy]:
    """A proxy before the server that Django's settings describe, for as long as the block."""
    with tempfile.TemporaryDirectory(prefix="manta-proxy-") as name:
        proxy = Proxy(Path(name), server, shares, seed)
        proxy.start()
        try:
            yield proxy
        finally:
            proxy.stop()


# -- the protocol ------------------------------------------------------------------------------------


async def _greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The first message, which alone has no letter."""
    while True:
        head = await reader.readexactly(8)
        size, code = struct.unpack("!II", head)
        body = await reader.readexactly(size - 8)
        if code not in _NEGOTIATIONS:
            return head + body
        writer.write(b"N")


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    while True:
        head = await reader.readexactly(5)
        yield head[:1], await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


def _framed(letter: bytes, body: bytes) -> bytes:
    return letter + struct.pack("!I", len(body) + 4) + body


def _note(link: Link, letter: bytes, body: bytes) -> None:
    """Remember of which kind a statement is when it is prepared, and that it was used when it is bound."""
    if letter == b"Q":
        link.seen |= {_kind(body)} - {""}
    elif letter == b"P":
        name, text = body.split(b"\0", 1)
        link.prepared[name] = _FRAME.get(text.partition(b"\0")[0]) or _kind(text)
    elif letter == b"B":
        name = body.split(b"\0", 2)[1]
        kind = link.prepared.get(name, "")
        if kind in (BEGIN, COMMIT):
            # What leaves with a beginning is not committed when the server has done it, unless the end leaves, too.
            link.status, kind = b"T" if kind == BEGIN else b"I", ""
        if kind == "settle" and body.count(b'"token":') >= MANY_RUNS:
            kind = MANY
        link.seen |= {kind} - {""}


_FRAME = {b"BEGIN": BEGIN, b"COMMIT": COMMIT}


def _kind(text: bytes) -> str:
    if text.startswith(b"PREPARE "):
        return ""
    if text.startswith(b"EXECUTE manta_enqueue_"):
        return "enqueue"
    return next((kind for kind, sign in KINDS.items() if sign in text), "")


def _is_last(link: Link, letter: bytes, body: bytes) -> bool:
    """Whether a request commits something of a kind, as far as one can tell before the answer."""
    return bool(link.seen) and (link.status == b"I" or (letter == b"Q" and body.startswith(b"COMMIT")))
