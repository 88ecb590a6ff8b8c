"""A second project on the same Ray: other settings, its own database, the same key, and a worker of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from django.db import connections
from psycopg import sql

from chaos import world

SETTINGS = "chaos.neighbour"

#: A settings module, and a database.
type Project = tuple[str, str]

_RESULTS = "SELECT result FROM manta_run WHERE state = 'SUCCESSFUL'"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The other project, seen from this one's process."""

    database: str
    environment: dict[str, str]

    def project(self) -> Project:
        return SETTINGS, self.database

    def enqueue(self, starts_file: str, count: int) -> None:
        """As many plain runs, and as many atomic ones."""
        self.manage(
            "shell",
            "-c",
            "from chaos import tasks\n"
            f"for task in (tasks.tell_project, tasks.tell_project_atomically): task.map([{starts_file!r}] * {count})",
        )

    def manage(self, *command: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "django", *command],
            cwd=world.ROOT,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise world.Broken(f"the other project could not {command[0]}: {done.stdout}{done.stderr}")

    def look(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(**_parameters(self.database)) as connection:
            return connection.execute(statement).fetchall()

    def unfinished(self) -> int:
        [[count]] = self.look("SELECT count(*) FROM manta_run WHERE finished_at IS NULL")
        return int(count)

    def outcomes(self) -> dict[str, int]:
        return dict(self.look("SELECT outcome, count(*) FROM manta_attempt GROUP BY outcome"))

    def results(self) -> list[Project]:
        return _read(self.look(_RESULTS))


def our_project() -> Project:
    return os.environ["DJANGO_SETTINGS_MODULE"], str(connections["default"].settings_dict["NAME"])


def our_results() -> list[Project]:
    return _read(world.look(_RESULTS))


def _read(rows: list[tuple[Any, ...]]) -> list[Project]:
    return [(module, database) for module, database in (json.loads(result) for [result] in rows)]


@contextmanager
def neighbour(database_url: str) -> Iterator[Neighbour]:
    """The other project, with an empty database that is gone after the block."""
    name = f"{connections['default'].settings_dict['NAME']}_neighbour"
    there = Neighbour(name, {"DJANGO_SETTINGS_MODULE": SETTINGS, "DATABASE_URL": database_url})
    _on_server("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
    _on_server("CREATE DATABASE {}", name)
    try:
        there.manage("migrate", "--verbosity", "0")
        with psycopg.connect(**_parameters(name)) as connection:
            connection.execute(world.TABLES)
        yield there
    finally:
        _on_server("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)


def _on_server(statement: str, name: str) -> None:
    with connections["default"]._nodb_cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(sql.SQL(statement).format(sql.Identifier(name)))


def _parameters(database: str) -> dict[str, Any]:
    known = connections["default"].get_connection_params()
    return {name: known[name] for name in ("host", "port", "user", "password") if name in known} | {"dbname": database}
