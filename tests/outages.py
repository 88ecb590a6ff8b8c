"""A database that cannot be reached: it refuses connections, and ends those that there are."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection, connections
from psycopg import sql


@contextmanager
def refusing_connections() -> Iterator[None]:
    """PostgreSQL lets nobody connect to the database of the tests. The connections that there are stay."""
    with _server() as (server, name):
        allow = sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}")
        server.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
        try:
            yield
        finally:
            server.execute(allow.format(sql.Identifier(name), sql.SQL("true")))


@contextmanager
def outage() -> Iterator[None]:
    """The same, and all connections are ended, also those of the test itself."""
    with refusing_connections(), _server() as (server, name):
        connections["default"].close()
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        yield


@contextmanager
def unreachable() -> Iterator[None]:
    """This process cannot connect to the database of the tests any more: there is no server at the place it knows."""
    given = dict(connection.settings_dict)
    connection.close()
    nowhere = {"HOST": "/nowhere"} if connection.vendor == "postgresql" else {"NAME": "/nowhere/there.sqlite3"}
    connection.settings_dict.update(nowhere)
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(given)


@contextmanager
def _server() -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """A connection to another database of the same server, and the name of the tests' own."""
    given = connection.settings_dict
    place = {"host": given["HOST"], "port": given["PORT"], "user": given["USER"], "password": given["PASSWORD"]}
    known = {name: str(value) for name, value in place.items() if value}
    with psycopg.connect(dbname="postgres", autocommit=True, **known) as server:
        yield server, given["NAME"]
