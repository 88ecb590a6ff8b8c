"""The contender's own database: its rows made, counted and thrown away, and the statements that reach the server."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from django.db import connection, transaction

#: How many rows one statement copies.
PORTION = 100_000


def ask(query: str, *params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, params or None)
        return list(cursor.fetchall())


def number(query: str, *params: Any) -> int:
    [[value]] = ask(query, *params)
    return int(value)


def execute(statement: str, *params: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params or None)


def empty(*tables: str) -> None:
    """No rows, no dead rows, and no checkpoint due in the middle of what follows."""
    execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")
    execute("CHECKPOINT")


def copies(table: str, count: int, *, key: str, **changed: str) -> None:
    """
    ``count`` more rows like the first one of ``table``, which its owner has written.

    ``changed`` are the columns that must differ, as SQL. In it ``number`` counts from 1, ``row`` is the original.
    """
    columns = [name for [name] in ask(_COLUMNS, table)]
    wanted = [name for name in columns if name in changed or name != key]
    given = [changed.get(name, f'"row"."{name}"') for name in wanted]
    names = ", ".join(f'"{name}"' for name in wanted)
    statement = (
        f"INSERT INTO {table} ({names}) SELECT {', '.join(given)}"
        f' FROM (SELECT * FROM {table} ORDER BY ctid LIMIT 1) AS "row",'
        " generate_series(%s::bigint, %s::bigint) AS number ORDER BY number"
    )
    for first in range(1, count + 1, PORTION):
        execute(statement, first, min(count, first + PORTION - 1))


_COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name = %s AND is_generated = 'NEVER'
ORDER BY ordinal_position
"""


@contextmanager
def appearing(*tables: str) -> Iterator[None]:
    """All that the block inserts is there at once, when it commits, with statistics and nothing left to flush."""
    with transaction.atomic():
        yield
        for table in tables:
            execute(f"ANALYZE {table}")
        execute("CHECKPOINT")


def moments(table: str, column: str, condition: str, most: int) -> list[float]:
    """When the first ``most`` ended, in seconds of the machine's clock."""
    query = f"SELECT extract(epoch FROM {column})::float8 FROM {table} WHERE {condition} ORDER BY {column} LIMIT %s"
    return [moment for [moment] in ask(query, most)]


# -- statements --------------------------------------------------------------------------------------


class Statements:
    """
    How many statements others than we send while the block runs, BEGIN and COMMIT included.

    By the server's own log, which is switched on for the block and read afterwards. Where that cannot be
    read (a server that is not ours), transactions are counted instead, and ``unit`` says so.
    """

    count = 0
    unit = "statements"

    @contextmanager
    def counted(self) -> Iterator[None]:
        log = Path(ask("SHOW data_directory")[0][0]) / "log"
        readable = False
        with suppress(OSError):
            readable = log.is_file()
        if not readable:
            self.unit = "transactions"
            before = number(_TRANSACTIONS)
            yield
            execute("SELECT pg_stat_clear_snapshot()")
            self.count = number(_TRANSACTIONS) - before
            return
        _configure("log_statement = 'all'", "log_line_prefix = 'counted %d %p '")
        begin = log.stat().st_size
        try:
            yield
        finally:
            _configure("log_statement = DEFAULT", "log_line_prefix = DEFAULT")
        with log.open(errors="replace") as lines:
            lines.seek(begin)
            sent = [_STATEMENT.match(line) for line in lines]
        ours, here = str(number("SELECT pg_backend_pid()")), connection.settings_dict["NAME"]
        self.count = sum(1 for found in sent if found and found["database"] == here and found["process"] != ours)


_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"

_STATEMENT = re.compile(r"counted (?P<database>\S+) (?P<process>\d+) LOG:  (?:statement|execute [^:]*): ")


def _configure(*settings: str) -> None:
    for setting in settings:
        execute(f"ALTER SYSTEM SET {setting}")
    execute("SELECT pg_reload_conf()")
    # The server's processes read it one after the other, when they are idle.
    execute("SELECT pg_sleep(0.1)")


def count_rows(table: str, condition: str = "true") -> int:
    return number(f"SELECT count(*) FROM {table} WHERE {condition}")
