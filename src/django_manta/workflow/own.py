"""
Which runs the present transaction has enqueued.

Nobody else can see them before it commits, and so nobody can move them: who waits for nothing else
can be counted in the same transaction, without a lock and without coming back after the commit.
"""

from collections.abc import Iterable, Set
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

#: By connection: Django's list of what is to be done after the commit, and the runs. That list is another
#: one in the next transaction, and when a savepoint is rolled back, also before the first hook is called.
_enqueued: "WeakKeyDictionary[BaseDatabaseWrapper, tuple[list[Any], set[UUID]]]" = WeakKeyDictionary()


def remember(database: str, ids: Iterable[UUID]) -> None:
    """These were enqueued just now."""
    connection = connections[database]
    if not commits_here(connection):
        return
    hooks, known = _enqueued.get(connection, (None, set[UUID]()))
    if hooks is not connection.run_on_commit:
        known = set()
        _enqueued[connection] = connection.run_on_commit, known
        # They may be very many.
        transaction.on_commit(lambda: _forget(database), using=database)
    known.update(ids)


def runs(database: str) -> Set[UUID]:
    """What the present transaction has enqueued; perhaps not all of it."""
    connection = connections[database]
    hooks, known = _enqueued.get(connection, (None, set[UUID]()))
    if hooks is connection.run_on_commit and commits_here(connection):
        return known
    _forget(database)
    return set()


def commits_here(connection: BaseDatabaseWrapper) -> bool:
    """
    Whether the transaction ends with the outermost atomic block. Who has turned autocommit off commits whenever they
    like, and Django keeps its list.
    """
    return connection.in_atomic_block and connection.commit_on_exit


def _forget(database: str) -> None:
    _enqueued.pop(connections[database], None)
