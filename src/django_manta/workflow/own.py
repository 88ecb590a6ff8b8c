"""
Which runs the present transaction has enqueued.

Nobody else can see them before it commits, and so nobody can move them: who waits for nothing else
can be counted in the same transaction, without a lock and without coming back after the commit.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper


@dataclass(slots=True)
class _Transaction:
    """What it has enqueued, and what it has armed, by cluster."""

    #: Django's list of what is to be done after the commit. It is another one in the next transaction, and when a
    #: savepoint is rolled back, also before the first hook is called.
    hooks: list[Any]
    runs: set[UUID] = field(default_factory=set)
    armed: dict[str, set[UUID]] = field(default_factory=dict)


_present: "WeakKeyDictionary[BaseDatabaseWrapper, _Transaction]" = WeakKeyDictionary()


def _transaction(database: str) -> _Transaction | None:
    """The present one, if it is one that is known to end where Django says so."""
    connection = connections[database]
    if not _commits_here(connection):
        return None
    known = _present.get(connection)
    if known is None or known.hooks is not connection.run_on_commit:
        known = _present[connection] = _Transaction(connection.run_on_commit)
        # There may be very many.
        transaction.on_commit(lambda: _forget(database), using=database)
    return known


def remember(database: str, ids: Iterable[UUID]) -> None:
    """These were enqueued just now."""
    present = _transaction(database)
    if present is not None:
        present.runs.update(ids)


def runs(database: str) -> Set[UUID]:
    """What the present transaction has enqueued; perhaps not all of it."""
    connection = connections[database]
    known = _present.get(connection)
    if known is not None and known.hooks is connection.run_on_commit and _commits_here(connection):
        return known.runs
    _forget(database)
    return set()


def armed(database: str, cluster: str) -> set[UUID]:
    """What the present transaction has armed, to be added to. For whom there is none, a set of their own."""
    present = _transaction(database)
    return set() if present is None else present.armed.setdefault(cluster, set())


def _commits_here(connection: BaseDatabaseWrapper) -> bool:
    """
    Whether the transaction ends with the outermost atomic block. Who has turned autocommit off commits whenever they
    like, and Django keeps its list.
    """
    return connection.in_atomic_block and connection.commit_on_exit


def _forget(database: str) -> None:
    _present.pop(connections[database], None)
