"""A PgBouncer of one's own before the server of the tests, for as long as it is needed."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import psycopg

from scripts import debian

START_SECONDS = 30

_SETTINGS = """\
[databases]
* = {server}

[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
listen_port = 6432
auth_type = trust
auth_file = {directory}/users
pool_mode = {mode}
default_pool_size = {size}
min_pool_size = {size}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


@contextmanager
def pgbouncer(url: str, *, mode: str = "transaction", size: int) -> Iterator[str]:
    """
    The URL of a pooler that has so many connections to the server of ``url``, and hands them out per transaction or
    per session. Raises scripts.debian.Missing where there is none to be had.
    """
    program = debian.pgbouncer()
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    host = query.get("host", parts.hostname or "127.0.0.1")
    server = f"host={host} port={query.get('port', parts.port or 5432)}"
    with tempfile.TemporaryDirectory(prefix="manta-pgbouncer-") as name:
        directory = Path(name)
        settings = directory / "pgbouncer.ini"
        settings.write_text(_SETTINGS.format(server=server, directory=directory, mode=mode, size=size))
        (directory / "users").write_text(f'"{parts.username or "postgres"}" ""\n')
        user = None
        if os.geteuid() == 0:
            # It refuses to run as root. The folder with the server's socket may be open to nobody but its owner.
            owner = Path(host).owner() if host.startswith("/") else "root"
            user = "nobody" if owner == "root" else owner
            shutil.chown(directory, user)
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [program, str(settings)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=user
            )
        try:
            pooled = parts._replace(netloc=f"{parts.username or 'postgres'}@", query=f"host={directory}&port=6432")
            _wait(process, pooled.geturl(), directory / "log")
            yield pooled.geturl()
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(psycopg.OperationalError):
            psycopg.connect(url, autocommit=True).close()
            return
        time.sleep(0.02)
    sys.exit("PgBouncer did not start:\n" + log.read_text(errors="replace")[-2000:])
