"""Which databases the tests use, from the environment.

    MANTA_TEST_DATABASE   postgres (default) or sqlite
    DATABASE_URL          the PostgreSQL server; pytest starts an embedded one when it is missing
    MANTA_TEST_FILE       the SQLite file; a temporary directory is made when it is missing
    MANTA_TEST_OTHER      name or file of the second database, `other` (for routers)
    MANTA_TEST_ISOLATION  the isolation level of Django's connections to PostgreSQL: read_committed (default),
                          repeatable_read or serializable

What is started or made here is written back into the environment: xdist's workers and every process that a
test starts find the same server and the same directory.
"""

import atexit
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

Databases = dict[str, dict[str, Any]]

NOWHERE = "postgresql://postgres@127.0.0.1:5432/postgres"


def from_environment() -> Databases:
    match os.environ.get("MANTA_TEST_DATABASE", "postgres"):
        case "postgres":
            return on_postgres(server_url())
        case "sqlite":
            return on_sqlite(sqlite_file())
        case unknown:
            raise ValueError(f"MANTA_TEST_DATABASE is {unknown!r}, but it can be 'postgres' or 'sqlite'.")


def on_postgres(url: str) -> Databases:
    default = parse(url)
    if level := os.environ.get("MANTA_TEST_ISOLATION"):
        from psycopg import IsolationLevel

        default["OPTIONS"]["isolation_level"] = IsolationLevel[level.upper()]
    other = {**default, "NAME": os.environ.get("MANTA_TEST_OTHER", "manta_other")}
    return {
        "default": {**default, "TEST": {"NAME": "test_manta"}},
        "other": {**other, "TEST": {"NAME": "test_manta_other"}},
    }


def parse(url: str) -> dict[str, Any]:
    """Django's words for a libpq URL, also for one with its socket in the query: `?host=/directory`."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise ValueError(f"DATABASE_URL begins with {parts.scheme!r}, but the tests need 'postgresql://…'.")
    options = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")) or "postgres",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", parts.hostname or ""),
        "PORT": options.pop("port", str(parts.port or "")),
        "OPTIONS": options,
    }


def server_url() -> str:
    if url := os.environ.get("DATABASE_URL"):
        return url
    if "PYTEST_VERSION" not in os.environ:  # mypy and makemigrations read the settings and need no server
        return NOWHERE
    from scripts.postgres import embedded

    running = ExitStack()
    url = running.enter_context(embedded())
    atexit.register(running.close)
    os.environ["DATABASE_URL"] = url
    return url


def on_sqlite(file: Path) -> Databases:
    # Files, not :memory:, because several processes and threads use them. pytest-django adds the worker's
    # name to TEST["NAME"], so that xdist's workers do not meet.
    shared = {
        "ENGINE": "django.db.backends.sqlite3",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL",
        },
    }
    other = Path(os.environ.get("MANTA_TEST_OTHER", file.with_name("other.sqlite3")))
    return {
        "default": {**shared, "NAME": file, "TEST": {"NAME": str(file.with_name("test_default.sqlite3"))}},
        "other": {**shared, "NAME": other, "TEST": {"NAME": str(file.with_name("test_other.sqlite3"))}},
    }


def sqlite_file() -> Path:
    if file := os.environ.get("MANTA_TEST_FILE"):
        return Path(file)
    directory = Path(tempfile.mkdtemp(prefix="manta-sqlite-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    os.environ["MANTA_TEST_FILE"] = str(directory / "default.sqlite3")
    return directory / "default.sqlite3"


def environment_for(default: dict[str, Any], other: dict[str, Any]) -> dict[str, str]:
    """The environment in which a new process uses these databases as its own: a test's, while it runs."""
    environment = {**os.environ, "MANTA_TEST_OTHER": str(other["NAME"])}
    if default["ENGINE"].endswith("sqlite3"):
        environment["MANTA_TEST_FILE"] = str(default["NAME"])
    else:
        url = urlsplit(os.environ["DATABASE_URL"])
        environment["DATABASE_URL"] = url._replace(path=f"/{default['NAME']}").geturl()
    return environment
