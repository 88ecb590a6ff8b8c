"""
A door before PostgreSQL that can be shut: its connections break, and nobody can connect until it is opened again.

It listens at a port of this machine and hands bytes on, both ways, whatever they are.
"""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from tests.ray.clusters import free_port

READ_BYTES = 256 * 1024
ANSWER_SECONDS = 10


class Gate:
    """The door before one server, for those who are given its ``url``. It is open at first."""

    def __init__(self, server: Mapping[str, Any]) -> None:
        self.server = server
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gate", daemon=True)
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        user, password = quote(str(self.server["USER"])), quote(str(self.server["PASSWORD"]))
        who = f"{user}:{password}@" if password else f"{user}@"
        return f"postgresql://{who}127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        self._thread.start()
        self.open()

    def open(self) -> None:
        self._do(self._open())

    def shut(self) -> None:
        """Break every connection. From now on connections are refused."""
        self._do(self._shut())

    def stop(self) -> None:
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)

    def _do(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(ANSWER_SECONDS)

    # -- its thread ------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._meet, "127.0.0.1", self.port)

    async def _shut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is None:
            # The connection was accepted just before the door was shut.
            writer.transport.abort()
            return
        try:
            server = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, server[1]}
        self._writers |= ends
        ways = [asyncio.create_task(_pass_on(reader, server[1])), asyncio.create_task(_pass_on(server[0], writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in ends:
            end.close()
        self._writers -= ends

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = str(self.server["HOST"] or "127.0.0.1"), str(self.server["PORT"] or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, int(port))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()


@contextmanager
def before(server: Mapping[str, Any]) -> Iterator[Gate]:
    """A door before the server that Django's settings describe, for as long as the block."""
    gate = Gate(server)
    gate.start()
    try:
        yield gate
    finally:
        gate.stop()
