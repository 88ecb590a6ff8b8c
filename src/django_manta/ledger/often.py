"""
What an application says often, prepared on its own connection.

Django's cursors prepare nothing: to read and plan a single enqueue anew each time takes a tenth of it, the wait for the
disk included. Here the statements that an application repeats are prepared in words (PREPARE, EXECUTE), after the third
that one connection executes. Who opens a connection for each request and enqueues once has nothing of it, and pays
nothing for it. They go through Django's cursors all the same, whatever a project has made of those.

Only outside of transactions: a statement that somebody has made the server forget (DISCARD ALL) fails, and there is
repeated in full, while in a transaction it would take the caller's work with it. Only what inserts or rings: a plan
that looks for rows outlives the table that it was made for. Not behind a pooler, where the next statement may reach
another server process; nor where a project has chosen for itself by ``prepare_threshold``, be it None.
"""

import re
from typing import Any
from weakref import WeakKeyDictionary
from zlib import crc32

from django.db import Error as DatabaseError
from django.db import NotSupportedError, ProgrammingError
from django.db.backends.base.base import BaseDatabaseWrapper

OFTEN = frozenset({"enqueue_plain", "ring"})

#: After so many it is asked whether a connection may prepare.
AFTER = 3

#: The statement is not there any more, or the table is not what it was.
_FORGOTTEN = {"26000", "0A000"}

_PARAMETER = re.compile(r"%\((\w+)\)s")


class _Known:
    """What is known of one connection."""

    __slots__ = ("count", "may_prepare", "short")

    def __init__(self) -> None:
        self.count = 0
        self.may_prepare: bool | None = None
        #: What to say instead of what was prepared.
        self.short: dict[str, str] = {}


_connections: "WeakKeyDictionary[Any, _Known]" = WeakKeyDictionary()


def shortened(connection: BaseDatabaseWrapper, name: str, text: str) -> str | None:
    """What to say instead of ``text``, if ``connection`` has prepared it, or does so now."""
    driver: Any = connection.connection
    if driver is None or not connection.get_autocommit() or driver.info.transaction_status:
        return None
    known = _connections.get(driver)
    if known is None:
        known = _connections[driver] = _Known()
    if known.may_prepare is False:
        return None
    if (short := known.short.get(name)) is not None:
        return short
    known.count += 1
    if known.count <= AFTER:
        return None
    try:
        if known.may_prepare is None:
            known.may_prepare = _may_prepare(connection, driver)
        if known.may_prepare:
            known.short[name] = _prepare(driver, name, text)
    except driver.Error:
        # Whatever it is, the statement itself will say so, or manage without.
        known.may_prepare = False
    return known.short.get(name)


def is_forgotten(connection: BaseDatabaseWrapper, error: DatabaseError) -> bool:
    """Whether that was no answer to the statement. It is to be said in full, as all on this connection from now on."""
    if not isinstance(error, (ProgrammingError, NotSupportedError)):
        return False
    if getattr(error.__cause__, "sqlstate", None) not in _FORGOTTEN:
        return False
    known = _connections.get(connection.connection)
    if known is not None:
        known.may_prepare = False
    return True


def _may_prepare(connection: BaseDatabaseWrapper, driver: Any) -> bool:
    if not hasattr(driver, "prepare_threshold") or "prepare_threshold" in connection.settings_dict["OPTIONS"]:
        # psycopg 2, or somebody who knows why.
        return False
    from psycopg import ClientCursor

    # Values that are bound on the server cannot be given to an EXECUTE.
    return issubclass(driver.cursor_factory, ClientCursor) and not is_pooled(driver)


def is_pooled(driver: Any) -> bool:
    """A pooler answers for a server process that is another one, and may be a third in a moment."""
    row = driver.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != driver.info.backend_pid


def numbered(text: str) -> tuple[str, list[str]]:
    """A statement with its parameters numbered, and their names in that order."""
    order = list(dict.fromkeys(_PARAMETER.findall(text)))
    return _PARAMETER.sub(lambda found: f"${order.index(found[1]) + 1}", text).replace("%%", "%"), order


def label_of(name: str, text: str) -> str:
    """The name of a prepared statement: another one for other words, which another release may have."""
    return f"manta_{name}_{crc32(text.encode()):08x}"


def _prepare(driver: Any, name: str, text: str) -> str:
    # Without Django's cursors: nobody who counts statements should find one more.
    words, order = numbered(text)
    label = label_of(name, text)
    driver.execute(f"PREPARE {label} AS {words}")
    return f"EXECUTE {label} ({', '.join(f'%({each})s' for each in order)})"
