"""
Which runs the present transaction has enqueued.

Nobody else can see them before it commits, and so nobody can move them: who waits for nothing else
can be counted in the same transaction, without a lock and without coming back after the commit.
"""

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

#: So many runs are remembered, the latest ones. Who waits for an older one is counted after the commit.
REMEMBERED = 20_000

#: So many hooks of ours wait for the commit of one transaction. What comes later is added to the last ones.
HOOKS = 100


@dataclass(slots=True)
class _Transaction:
    """What it has enqueued, and what it has armed, by cluster."""

    #: Django's list of what is to be done after the commit. It is another one in the next transaction, and when a
    #: savepoint is rolled back, also before the first hook is called.
    hooks: list[Any]
    runs: dict[UUID, None] = field(default_factory=dict)
    #: How many hooks of ours are in that list, and what the last ones of each kind are called with.
    count: int = 0
    last: dict[object, Any] = field(default_factory=dict)
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
        present.runs.update(dict.fromkeys(ids))
        if len(present.runs) > REMEMBERED:
            for old in list(islice(present.runs, len(present.runs) - REMEMBERED // 2)):
                del present.runs[old]


def runs(database: str) -> Set[UUID]:
    """What the present transaction has enqueued; perhaps not all of it."""
    connection = connections[database]
    known = _present.get(connection)
    if known is not None and known.hooks is connection.run_on_commit and _commits_here(connection):
        return known.runs.keys()
    _forget(database)
    return set()


def armed(database: str, cluster: str) -> set[UUID]:
    """What the present transaction has armed, to be added to. For whom there is none, a set of their own."""
    present = _transaction(database)
    return set() if present is None else present.armed.setdefault(cluster, set())


def after_commit[T](database: str, kind: object, act: Callable[[T], None], given: T) -> T:
    """
    Call ``act(given)`` when the present transaction has committed, or now where there is none. In a transaction with
    very many of these it is not called, but what was given to the last one of the ``kind`` is returned: whatever is
    added to that is seen to.

    Nor where Django does not hear of commits: workers look by themselves once a second, and arm what nobody armed.
    """
    if not is_heard_of(database):
        return given
    present = _transaction(database)
    if present is not None:
        if present.count >= HOOKS and kind in present.last:
            known: T = present.last[kind]
            return known
        present.count += 1
        present.last[kind] = given
    transaction.on_commit(lambda: act(given), using=database, robust=True)
    return given


def is_heard_of(database: str) -> bool:
    """Whether Django hears of the commit of what is done now: not where somebody has turned autocommit off."""
    connection = connections[database]
    return connection.commit_on_exit if connection.in_atomic_block else connection.get_autocommit()


def _commits_here(connection: BaseDatabaseWrapper) -> bool:
    """
    Whether the transaction ends with the outermost atomic block. Who has turned autocommit off commits whenever they
    like, and Django keeps its list.
    """
    return connection.in_atomic_block and connection.commit_on_exit


def _forget(database: str) -> None:
    _present.pop(connections[database], None)
