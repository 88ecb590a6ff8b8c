"""Databases that exist as long as they are measured, and the rows in them."""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import django
import psycopg
from django.core.management import call_command
from django.db import connections
from psycopg import sql

from django_manta.ledger import PostgresSession

#: Runs as an enqueue leaves them, made by the server itself because a million take it seconds.
#: Ids are UUIDv7 in shape and order; the queues take turns.
_FILL = """
INSERT INTO manta_run (
    id, task, backend, queue, state, arguments, signature, metadata, enqueued_at, deadline
)
SELECT
    (lpad(to_hex(1800000000000 + number / 10), 12, '0') || '7' || lpad(to_hex(number %% 10), 3, '0')
        || '8' || substr(md5(number::text), 1, 15))::uuid,
    'benchmarks.tasks.resize',
    'default',
    (%(queues)s::text[])[1 + number %% cardinality(%(queues)s::text[])],
    'READY',
    '[["media/2026/11/' || lpad(number::text, 8, '0') || '.jpg",640,480],{"quality":85}]',
    'AFtnRqZWOUaRZ3cI9Ck0KvRVCFqLF5PdrBqvW7Bm6p8',
    '{}',
    statement_timestamp(),
    statement_timestamp() + interval '7 days' + number * interval '1 microsecond'
FROM generate_series(1, %(count)s) AS number
"""


@contextmanager
def databases(aliases: Sequence[str]) -> Iterator[None]:
    """Create and migrate the databases of these aliases; drop them afterwards."""
    with ExitStack() as stack:
        for alias in aliases:
            stack.enter_context(bare_database(alias))
            call_command("migrate", database=alias, verbosity=0)
        yield


@contextmanager
def bare_database(alias: str) -> Iterator[None]:
    """Create the database of this alias, with nothing in it; drop it afterwards."""
    try:
        _on_server("CREATE DATABASE {}", alias)
        yield
    finally:
        connections[alias].close()
        _on_server("DROP DATABASE IF EXISTS {} WITH (FORCE)", alias)


def _on_server(statement: str, alias: str) -> None:
    name = str(connections[alias].settings_dict["NAME"])
    # The wrapper's way to the server's own database, as Django's test runner uses it.
    with connections[alias]._nodb_cursor() as cursor:
        cursor.execute(sql.SQL(statement).format(sql.Identifier(name)))


def execute(statement: str, alias: str = "default") -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)


def empty(alias: str = "default") -> None:
    """No runs, no dead rows, and no checkpoint due in the middle of what follows."""
    execute("TRUNCATE manta_run, manta_attempt, manta_dependency, manta_gate, manta_herald", alias)
    execute("CHECKPOINT", alias)


def fill(count: int, queues: Sequence[str], alias: str = "default") -> None:
    """``count`` READY runs and nothing else, vacuumed and analysed."""
    empty(alias)
    with connections[alias].cursor() as cursor:
        cursor.execute(_FILL, {"count": count, "queues": list(queues)})
    execute("VACUUM (ANALYZE) manta_run, manta_attempt", alias)


@contextmanager
def plain_connection(alias: str = "default") -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Psycopg as it comes: it binds on the server, prepares what is repeated, and pins no plans."""
    params = connections[alias].get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold"):
        params.pop(name, None)
    with psycopg.connect(**params, autocommit=True, prepare_threshold=1) as connection:
        yield connection


@contextmanager
def worker_session(alias: str = "default") -> Iterator[PostgresSession]:
    session = PostgresSession(alias)
    try:
        yield session
    finally:
        session.close()


def machine() -> str:
    """What it is measured on, as far as it matters."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SHOW server_version")
        [[server]] = cursor.fetchall()
    python = f"Python {platform.python_version()}, Django {django.get_version()}, psycopg {psycopg.__version__}"
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; PostgreSQL {server}; {python}"
