"""A go-between of PostgreSQL that freezes: it accepts what it is sent, and hands nothing on."""

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit


class Proxy:
    """Listens on a Unix socket of its own."""

    def __init__(self, directory: Path, url: str) -> None:
        self._server = urlsplit(url)
        self._directory = directory
        self._goes_on = threading.Event()
        self._goes_on.set()
        #: Somebody has said something to whom nobody will answer.
        self.is_asked = threading.Event()
        self._ends: list[socket.socket] = []
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(directory / ".s.PGSQL.5432"))
        self._door.listen(100)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        netloc = f"{self._server.username or 'postgres'}@"
        return self._server._replace(netloc=netloc, query=f"host={self._directory}&port=5432").geturl()

    def freeze(self) -> None:
        self.is_asked.clear()
        self._goes_on.clear()

    def thaw(self) -> None:
        """What was said meanwhile is handed on now."""
        self._goes_on.set()

    def close(self) -> None:
        for end in (self._door, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._goes_on.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = self._connect()
                self._ends += [client, server]
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._hand_on, args=(*ends, ends[0] is client), daemon=True).start()

    def _connect(self) -> socket.socket:
        query = dict(parse_qsl(self._server.query))
        host = query.get("host", self._server.hostname or "127.0.0.1")
        port = int(query.get("port", self._server.port or 5432))
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        link = socket.socket(socket.AF_UNIX)
        link.connect(os.path.join(host, f".s.PGSQL.{port}"))  # noqa: PTH118
        return link

    def _hand_on(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if is_client and not self._goes_on.is_set():
                    self.is_asked.set()
                self._goes_on.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def freezing(url: str) -> Iterator[Proxy]:
    """A proxy before the server of ``url``."""
    with tempfile.TemporaryDirectory(prefix="manta-frozen-") as name:
        proxy = Proxy(Path(name), url)
        try:
            yield proxy
        finally:
            proxy.close()
