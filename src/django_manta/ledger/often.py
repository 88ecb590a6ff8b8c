"""
What an application says often, prepared on its own connection.

Django's cursors prepare nothing: to read and plan a single enqueue anew each time takes a tenth of it, the wait for the
disk included, and more than a third of one that waits for others, which is a longer statement. Here the statements
that an application repeats are prepared in words (PREPARE, EXECUTE). Who opens a connection for each request and
enqueues once has nothing of it, and pays nothing for it. They go through Django's cursors all the same, whatever a
project has made of those. Not behind a pooler, where the next statement may reach another server process; nor where a
project has chosen for itself by ``prepare_threshold``, be it None.

Outside of transactions, after the third that one connection executes, and for as long as it lives: a statement that
somebody has made the server forget (DISCARD ALL) fails, and is repeated in full. Only what inserts or rings: a plan
that looks for rows outlives the table that it was made for.

In a transaction, after some of its own, and used only until it ends: a statement that fails would take the caller's
work with it, but DISCARD ALL is refused in a transaction (a DEALLOCATE of the caller's own is not). It is prepared anew
in each, and again and again in a long one: a plan that was made beside an empty table is not used until it has a
million rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary
from zlib import crc32

from django.db import Error as DatabaseError
from django.db import NotSupportedError, ProgrammingError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_manta.ledger.preparing import is_pooled, numbered

#: Outside of transactions, after so many that a connection has said; and inside, after so many of each: preparing takes
#: a round trip, and saves a tenth of a millisecond of the one and a third of one of the other.
OUTSIDE = frozenset({"enqueue_plain", "ring"})
AFTER = 3
INSIDE = {"enqueue_plain": 24, "enqueue_waiting": 3}
OFTEN = OUTSIDE | INSIDE.keys()

#: In one transaction it is prepared anew after so many.
RENEWED_AFTER = 500

#: The statement is not there any more, or the table is not what it was.
_FORGOTTEN = {"26000", "0A000"}

#: The name of a part of a transaction.
_PART = "manta_prepare"

#: psycopg's TransactionStatus.INTRANS.
_IN_TRANSACTION = 2


class _Known:
    """What is known of one connection."""

    __slots__ = ("count", "inside", "labels", "may_prepare", "short", "transaction")

    def __init__(self) -> None:
        self.count = 0
        self.may_prepare: bool | None = None
        #: What to say instead of what was prepared.
        self.short: dict[str, str] = {}
        #: What stands for the present transaction, how often each was said in it, and what to say instead.
        self.transaction: list[Any] | None = None
        self.inside: dict[str, tuple[int, str | None]] = {}
        #: What was prepared in transactions, and is there still unless somebody has made the server forget it.
        self.labels: set[str] = set()


_connections: "WeakKeyDictionary[Any, _Known]" = WeakKeyDictionary()


def shortened(connection: BaseDatabaseWrapper, name: str, text: str) -> str | None:
    """What to say instead of ``text``, if ``connection`` has prepared it, or does so now."""
    driver: Any = connection.connection
    if driver is None:
        return None
    known = _connections.get(driver)
    if known is None:
        known = _connections[driver] = _Known()
    if known.may_prepare is False:
        return None
    if connection.in_atomic_block:
        return _shortened_inside(connection, driver, known, name, text) if name in INSIDE else None
    if name not in OUTSIDE or not connection.get_autocommit() or driver.info.transaction_status:
        return None
    if (short := known.short.get(name)) is not None:
        return short
    known.count += 1
    if known.count > AFTER and _is_allowed(connection, driver, known):
        with _if_possible(driver, known):
            known.short[name] = _prepare(driver, name, text)
    return known.short.get(name)


def _shortened_inside(connection: BaseDatabaseWrapper, driver: Any, known: _Known, name: str, text: str) -> str | None:
    # Django makes a new list when an outermost block ends, however it does, and when a part of it is undone.
    if known.transaction is not connection.run_on_commit:
        known.transaction, known.inside = connection.run_on_commit, {}
    count, short = known.inside.get(name, (0, None))
    is_well = driver.info.transaction_status == _IN_TRANSACTION
    if is_well and count % RENEWED_AFTER == INSIDE[name] and _is_allowed(connection, driver, known):
        short = None
        with _if_possible(driver, known):
            short = _prepare_here(driver, known, name, text)
    known.inside[name] = count + 1, short
    return short


def _prepare_here(driver: Any, known: _Known, name: str, text: str) -> str:
    """In one round trip, and in a part of the transaction of its own: whatever goes wrong, the caller's work stays."""
    label = f"{label_of(name, text)}_here"
    words, short = _words(label, text)
    again = [f"DEALLOCATE {label}"] if label in known.labels else []
    try:
        driver.execute("; ".join([f"SAVEPOINT {_PART}", *again, words, f"RELEASE SAVEPOINT {_PART}"]))
    except driver.Error:
        known.labels.discard(label)
        driver.execute(f"ROLLBACK TO SAVEPOINT {_PART}; RELEASE SAVEPOINT {_PART}")
        if not again:
            raise
        # Somebody has made the server forget it since.
        return _prepare_here(driver, known, name, text)
    known.labels.add(label)
    return short


def _is_allowed(connection: BaseDatabaseWrapper, driver: Any, known: _Known) -> bool:
    if known.may_prepare is None:
        with _if_possible(driver, known):
            known.may_prepare = _may_prepare(connection, driver)
    return bool(known.may_prepare)


@contextmanager
def _if_possible(driver: Any, known: _Known) -> Iterator[None]:
    try:
        yield
    except driver.Error:
        # Whatever it is, the statement itself will say so, or manage without.
        known.may_prepare = False


def is_forgotten(connection: BaseDatabaseWrapper, error: DatabaseError) -> bool:
    """
    Whether that was no answer to the statement. It is to be said in full, as all on this connection from now on. In a
    transaction that is no longer possible.
    """
    if not isinstance(error, (ProgrammingError, NotSupportedError)):
        return False
    if getattr(error.__cause__, "sqlstate", None) not in _FORGOTTEN:
        return False
    known = _connections.get(connection.connection)
    if known is not None:
        known.may_prepare = False
    return not connection.in_atomic_block


def _may_prepare(connection: BaseDatabaseWrapper, driver: Any) -> bool:
    if not hasattr(driver, "prepare_threshold") or "prepare_threshold" in connection.settings_dict["OPTIONS"]:
        # psycopg 2, or somebody who knows why.
        return False
    from psycopg import ClientCursor

    # Values that are bound on the server cannot be given to an EXECUTE.
    return issubclass(driver.cursor_factory, ClientCursor) and not is_pooled(driver)


def label_of(name: str, text: str) -> str:
    """The name of a prepared statement: another one for other words, which another release may have."""
    return f"manta_{name}_{crc32(text.encode()):08x}"


def _prepare(driver: Any, name: str, text: str) -> str:
    # Without Django's cursors: nobody who counts statements should find one more.
    words, short = _words(label_of(name, text), text)
    driver.execute(words)
    return short


def _words(label: str, text: str) -> tuple[str, str]:
    """What prepares it, and what to say instead from then on."""
    numbered_text, order = numbered(text)
    return f"PREPARE {label} AS {numbered_text}", f"EXECUTE {label} ({', '.join(f'%({each})s' for each in order)})"
