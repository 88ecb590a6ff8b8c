"""A Redis of one's own on loopback, for as long as it is needed; from Debian's packages where it is missing."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from benchmarks.peers.workers import Trouble

START_SECONDS = 10.0

INSTALL = ("install", "-y", "--no-install-recommends", "redis-server")


@contextmanager
def server() -> Iterator[str]:
    """Its URL. It keeps nothing on disk, which is the quickest that it can be."""
    binary = shutil.which("redis-server") or _install()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="manta-redis-") as directory:
        process = subprocess.Popen(
            [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", directory, "--save", ""],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait(process, port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def flush(url: str) -> None:
    """Nothing is left in any of its databases. It is said at once, and done beside what comes next."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=START_SECONDS) as connection:
        connection.sendall(b"FLUSHALL ASYNC\r\n")
        if (answer := connection.recv(100)) != b"+OK\r\n":
            raise Trouble(f"redis-server would not forget what it had: {answer.decode(errors='replace')}")


def version() -> str:
    binary = shutil.which("redis-server")
    if not binary:
        return ""
    words = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout.split()
    return next((word.removeprefix("v=") for word in words if word.startswith("v=")), "")


def _install() -> str:
    if os.geteuid() or not shutil.which("apt-get"):
        raise Trouble("redis-server is not installed, and only root can install it: `apt-get install redis-server`.")
    for arguments in (INSTALL, ("update",), INSTALL):
        failure = _apt(*arguments)
        if binary := shutil.which("redis-server"):
            break
    else:
        raise Trouble(f"redis-server could not be installed: {failure}")
    # Debian's package starts a service where it can: this run starts its own, and leaves none behind.
    with suppress(OSError):
        subprocess.run(["service", "redis-server", "stop"], capture_output=True, check=False)
    return binary


def _apt(*arguments: str) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    ran = subprocess.run(["apt-get", *arguments], capture_output=True, text=True, env=environment, check=False)
    return " ".join(ran.stderr.split())[-300:]


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise Trouble("redis-server did not start.")
