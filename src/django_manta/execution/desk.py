"""
Where a running task's progress and metadata are stored: through a connection of their own.

The task's own connection may be inside a transaction for as long as the task runs; what is written
there shows only when it commits. So the desk has one connection per thread, opened at the first
word and kept. Two exceptions, where a second connection could only wait for the first: when the run
itself is not committed yet (``run_all()`` inside a TestCase), and on SQLite inside a transaction,
which holds the only write lock. There the desk writes through the task's own connection.

An atomic run whose transaction is REPEATABLE READ or SERIALIZABLE could not settle itself once another
connection has written to its row. Its desk holds back what it is told: until the settlement, in the same
transaction, or until that is rolled back.
"""

import logging
import threading
from uuid import UUID

from django.db import DatabaseError, connections

from django_manta.exceptions import LostLease
from django_manta.ledger import DjangoSession, Ledger, PostgresSession, graph, own_session
from django_manta.result import TaskResult, results_of

logger = logging.getLogger("django_manta")

_thread = threading.local()


class LedgerDesk:
    """The desk of one execution."""

    def __init__(self, database: str, run_id: UUID, token: int, *, within: bool = False, atomic: bool = False) -> None:
        self.database = database
        self.run_id = run_id
        self.token = token
        #: Whether the run was claimed inside a transaction that has not committed.
        self._within = within
        #: Whether the run settles itself in the transaction of its task.
        self._atomic = atomic
        self._progress: str | None = None
        self._metadata: str | None = None

    def save_progress(self, progress: str) -> None:
        if self._is_held_back():
            self._progress = progress
            return
        # How far a task has come is not worth failing it for.
        try:
            self._ledger().save_progress(self.run_id, self.token, progress)
        except DatabaseError:
            logger.warning("Could not store the progress of run %s.", self.run_id, exc_info=True)

    def save_metadata(self, metadata: str) -> None:
        if self._is_held_back():
            self._metadata = metadata
            return
        if not self._ledger().save_metadata(self.run_id, self.token, metadata):
            raise LostLease(f"Run {self.run_id} no longer belongs to this execution; nothing was saved.")

    def _is_held_back(self) -> bool:
        return self._atomic and not self._within and DjangoSession(self.database).keeps_its_snapshot()

    def write_held_back(self, *, within: bool = False) -> None:
        """Write what was held back: ``within`` the task's transaction, or when that has been rolled back."""
        if self._progress is None and self._metadata is None:
            return
        try:
            ledger = Ledger(DjangoSession(self.database)) if within else self._ledger()
            if self._metadata is not None:
                ledger.save_metadata(self.run_id, self.token, self._metadata)
            if self._progress is not None:
                ledger.save_progress(self.run_id, self.token, self._progress)
        except DatabaseError:
            if within:
                raise
            logger.warning("Could not store what run %s told of itself.", self.run_id, exc_info=True)

    def upstream(self) -> list[TaskResult]:
        """As they stand now, through the task's own connection: what it reads belongs together."""
        ledger = Ledger(DjangoSession(self.database))
        return results_of(ledger, graph.upstream(ledger, self.run_id))

    def _ledger(self) -> Ledger:
        task_connection = connections[self.database]
        if self._within or (task_connection.vendor == "sqlite" and task_connection.in_atomic_block):
            return Ledger(DjangoSession(self.database))
        return Ledger(_own_session(self.database))


def _own_session(database: str) -> PostgresSession | DjangoSession:
    sessions = _thread.__dict__.setdefault("sessions", {})
    if database not in sessions:
        # In the thread of the task, which may be interrupted while it waits for a row.
        sessions[database] = own_session(database, interruptible=True)
    session: PostgresSession | DjangoSession = sessions[database]
    return session


def close() -> None:
    """Close this thread's own connections."""
    for session in _thread.__dict__.pop("sessions", {}).values():
        session.close()
