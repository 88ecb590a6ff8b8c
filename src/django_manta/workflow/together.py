"""
The runs of a workflow block are inserted together.

    enqueue ──▶ noted ──┬── the block ends
                        ├── anything is said on the block's connection ──▶ inserted
                        └── there are BATCH of them

To enqueue the steps of a graph one by one is a round trip and an insert each. In the block of a workflow a run is noted
instead, and its result is there at once: the id is made here, and the time is the database's, asked for by the first.
Nobody can tell the difference. Whatever else the block says on its connection, be it a query for these very runs, a
savepoint or the end of one, is said after they are inserted; what is noted when a savepoint is rolled back was enqueued
after the savepoint, and is forgotten. What passes Django's cursors by (psycopg's COPY, or a savepoint of its own)
passes this by as well.

Only what is ready or waits for other runs: what has dates of its own is inserted when it is enqueued. And a block that
says something after every run or two has nothing to gain: it goes on as if there were no such thing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_manta.enqueue import Call
from django_manta.ledger import DjangoSession, Enqueued, Ledger, NewRun, house, rows
from django_manta.payload import Arguments
from django_manta.states import State
from django_manta.workflow import waits

#: So many are inserted before the block ends: no more than one statement takes.
BATCH = 2_000

#: A block that says something else after fewer than so many is not noted any further.
FEW = 4

#: What is noted within so long bears the same time, so that it is said once for all of it. Ids keep them in order.
SAME_SECONDS = 1.0


class _Noted(NamedTuple):
    call: Call
    run: NewRun
    arguments: Arguments


class Together:
    """What one block has enqueued and not inserted yet; a wrapper of all that is executed on its connection."""

    def __init__(self, database: str) -> None:
        self._database = database
        #: What time it was by the database's clock, and when that was by ours. Something else was said since: whoever
        #: comes now comes after it.
        self._now: datetime | None = None
        self._now_at = 0.0
        self._is_later = False
        self._noted: list[_Noted] = []
        self._cluster = ""
        #: What is armed after the commit, by a hook that is in line since the first of them was noted.
        self._added: waits.Added | None = None
        self._is_inserting = False
        #: This block is one that says something else all the time.
        self._is_mixed = False

    def note(
        self, cluster: str, calls: Sequence[Call], runs: Sequence[NewRun], encoded: Sequence[Arguments]
    ) -> list[Enqueued] | None:
        """Insert these later. What the database will have made of them; None if it has to be asked."""
        if self._is_inserting or self._is_mixed or len(runs) > BATCH or not all(map(_is_foreseeable, runs)):
            return None
        if cluster != self._cluster or len(self._noted) + len(runs) > BATCH:
            # Before these are added: if that fails, they were not enqueued.
            self.insert()
            self._cluster = cluster
        enqueued = [self._foreseen(run) for run in runs]
        if self._added is None and waits.gated(calls, runs):
            self._added = waits.arm_after_commit(self._database, cluster, waits.Added())
        self._noted += map(_Noted, calls, runs, encoded)
        return enqueued

    def _foreseen(self, run: NewRun) -> Enqueued:
        run.enqueued = self._time()
        if isinstance(run.deadline, timedelta):
            run.deadline = run.enqueued + run.deadline
        return Enqueued(
            id=run.id,
            state=State.WAITING if run.waits else State.READY,
            enqueued_at=run.enqueued,
            run_after=None,
            deadline=run.deadline,
            expires_at=None,
        )

    def _time(self) -> datetime:
        """By the database's clock."""
        if self._now is None:
            self._now = house.clock(Ledger(DjangoSession(self._database)))
            self._now_at = time.monotonic()
        elif self._is_later or time.monotonic() - self._now_at > SAME_SECONDS:
            passed = time.monotonic() - self._now_at
            self._now += timedelta(seconds=passed)
            self._now_at += passed
        self._is_later = False
        return self._now

    def insert(self) -> None:
        """Insert what is noted. If that fails, it is tried again, and the block does not end without it."""
        if not self._noted or self._is_inserting:
            return
        self._is_inserting = True
        try:
            calls, runs, encoded = zip(*self._noted, strict=True)
            ledger = Ledger(DjangoSession(self._database))
            if self._added is None:
                ledger.enqueue(runs)
            else:
                _, added = waits.insert(ledger, self._database, calls, runs, encoded)
                self._added.armed |= added.armed
                self._added.unarmed += added.unarmed
                self._added.edges += added.edges
            self._forget()
        finally:
            self._is_inserting = False

    def _forget(self) -> None:
        self._noted, self._added = [], None

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Before anything else is executed on the connection."""
        if self._is_inserting:
            return execute(sql, params, many, context)
        self._is_later = True
        if self._noted and isinstance(sql, str) and sql.startswith("ROLLBACK"):
            result = execute(sql, params, many, context)
            self._forget()
            return result
        if self._noted:
            self._is_mixed = len(self._noted) < FEW
            self.insert()
        return execute(sql, params, many, context)


def _is_foreseeable(run: NewRun) -> bool:
    """Whether all that the database would make of it is known here."""
    if not rows.has_no_dates(run):
        return False
    if isinstance(run.deadline, timedelta):
        return abs(run.deadline) <= rows.FARTHEST
    return run.deadline.utcoffset() == timedelta(0)


_open: "WeakKeyDictionary[BaseDatabaseWrapper, Together]" = WeakKeyDictionary()


@contextmanager
def opened(database: str) -> Iterator[None]:
    """What the block enqueues in ``database`` is inserted together. It must be in a transaction."""
    connection = connections[database]
    outer = _open.get(connection)
    mine = _open[connection] = Together(database)
    try:
        with connection.execute_wrapper(mine):
            yield
            if not connection.needs_rollback:
                mine.insert()
    finally:
        if outer is None:
            _open.pop(connection, None)
        else:
            _open[connection] = outer


def note(
    database: str, cluster: str, calls: Sequence[Call], runs: Sequence[NewRun], encoded: Sequence[Arguments]
) -> list[Enqueued] | None:
    """See Together.note(). None where no block is open, or nothing can be said in it any more."""
    if not _open:
        return None
    connection = connections[database]
    block = _open.get(connection)
    if block is None or connection.needs_rollback or not connection.in_atomic_block:
        # Whoever says something to the database hears what is wrong.
        return None
    if block not in connection.execute_wrappers:
        # An interrupt came while the block was being left.
        del _open[connection]
        return None
    return block.note(cluster, calls, runs, encoded)
