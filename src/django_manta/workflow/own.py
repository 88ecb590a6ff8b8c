"""
Which runs the present transaction has enqueued.

Nobody else can see them before it commits, and so nobody can move them: who waits for nothing else
can be counted in the same transaction, without a lock and without coming back after the commit.
"""

from collections.abc import Iterable, Set
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

#: By connection: Django's list of what is to be done after the commit, and the runs. That list is another
#: one in the next transaction, and when a savepoint is rolled back, also before the first hook is called.
_enqueued: "WeakKeyDictionary[BaseDatabaseWrapper, tuple[list[Any], set[UUID]]]" = WeakKeyDictionary()


def remember(database: str, ids: Iterable[UUID]) -> None:
    """These were enqueued just now."""
    connection = connections[database]
    if connection.in_atomic_block:
        hooks, known = _enqueued.get(connection, (None, set[UUID]()))
        if hooks is not connection.run_on_commit:
            known = set()
            _enqueued[connection] = connection.run_on_commit, known
        known.update(ids)


def runs(database: str) -> Set[UUID]:
    """What the present transaction has enqueued; perhaps not all of it."""
    connection = connections[database]
    hooks, known = _enqueued.get(connection, (None, set[UUID]()))
    return known if connection.in_atomic_block and hooks is connection.run_on_commit else set()
