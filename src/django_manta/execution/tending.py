"""
Keeps Django's connections fit between executions.

What ``close_old_connections()`` does around each request, with three differences. A connection on
which the caller holds a transaction, as in a TestCase, or has turned autocommit off, is left alone. One
on which a task left a transaction open is dropped. And ``CONN_MAX_AGE = 0`` is not obeyed: "close after
each request" is made for web servers with more processes than the database has connections; an executor
keeps its one, and has it checked before it is used again.

Only aliases that this thread has ever opened are looked at: asking Django for all of them costs
more than all the rest of a short execution.
"""

import threading
from typing import Any
from weakref import WeakSet

from django.db import connections
from django.db.backends.signals import connection_created

_here = threading.local()

#: Connections of threads that execute nothing themselves: those in which asgiref calls the ORM for
#: coroutines. Nobody else tends them, and nobody but their thread may close them.
_elsewhere: WeakSet[Any] = WeakSet()


def _note(sender: Any, connection: Any, **kwargs: Any) -> None:
    opened: set[str] | None = _here.__dict__.get("opened")
    if opened is not None:
        opened.add(connection.alias)
    else:
        _elsewhere.add(connection)


connection_created.connect(_note, dispatch_uid="django_manta.execution.tending")


def _opened() -> set[str]:
    opened: set[str] | None = _here.__dict__.get("opened")
    if opened is None:
        ours = [each for each in connections.all(initialized_only=True) if each.connection is not None]
        opened = _here.opened = {connection.alias for connection in ours}
        for connection in ours:
            _elsewhere.discard(connection)
    return opened


def close_after() -> None:
    """What this thread has opened by the end of its present execution is closed then, not kept."""
    _here.closes = True


_IDLE, _OPEN, _BUSY = "idle", "open", "busy"


def _status(connection: Any) -> str:
    """Whether the driver is in a transaction, also one unknown to Django, or in the middle of a statement."""
    driver = connection.connection
    if connection.vendor == "sqlite":
        return _OPEN if driver.in_transaction else _IDLE
    # psycopg's TransactionStatus: IDLE 0, ACTIVE 1, INTRANS 2, INERROR 3, UNKNOWN 4 (the connection is gone).
    status = int(driver.info.transaction_status) if connection.vendor == "postgresql" else 0
    return _BUSY if status == 1 else _OPEN if status in (2, 3) else _IDLE


def start_anew() -> None:
    """In a process that was just forked: whatever was open belongs to its parent."""
    _here.__dict__.clear()
    _elsewhere.clear()


def begin() -> frozenset[str]:
    """Before an execution: the aliases on which the caller holds a transaction."""
    opened = _opened()
    if not opened:
        return frozenset()
    callers = frozenset(alias for alias in opened if _is_the_callers(connections[alias]))
    end(callers)
    return callers


def _is_the_callers(connection: Any) -> bool:
    """In a transaction, or without autocommit: no task left it so, or it would have been closed."""
    return connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)


def end(callers: frozenset[str]) -> set[str]:
    """After an execution: the aliases on which it left a transaction open, whose writes are lost."""
    left_open: set[str] = set()
    closes = _here.__dict__.pop("closes", False)
    for alias in tuple(_opened()):
        if alias in callers:
            continue
        connection: Any = connections[alias]
        if connection.connection is None:
            continue
        status = _status(connection)
        if status is _BUSY:
            # A statement was interrupted half way; whoever used the connection next would get its answer.
            connection.close()
            continue
        if connection.in_atomic_block or status is _OPEN:
            left_open.add(alias)
            connection.close()
            # The wrapper still believes in its transaction; the next use makes a new one.
            del connections[alias]
            continue
        if closes:
            connection.close()
            continue
        if not connection.settings_dict["CONN_MAX_AGE"]:
            connection.close_at = None
            connection.health_check_enabled = True
        connection.close_if_unusable_or_obsolete()
    if len(_elsewhere):
        for connection in tuple(_elsewhere):
            # Looked at by its own thread, before it is next used.
            connection.health_check_enabled = True
            connection.health_check_done = False
    return left_open
