"""
Rows that a statement cannot move, or that cannot be read: found among their neighbours, and put out of the way.

A value that the code cannot read, a constraint that an old row breaks, a trigger of the application's: each may be in
one row, and must not keep the others of its batch from going on. Such a run ends as FAILED, with the reason; a person
can mend the row and retry it. Only a row that the database lets nobody change at all is passed over, by each worker for
itself.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import Error as AnyDatabaseError

from django_manta import text
from django_manta.ledger import conflicts

if TYPE_CHECKING:
    from django_manta.ledger.book import Ledger

logger = logging.getLogger("django_manta")


def one_by_one[T, R](
    ledger: "Ledger", items: Sequence[T], act: Callable[[Sequence[T]], list[R]], bad: list[tuple[T, Exception]]
) -> list[R]:
    """What ``act`` makes of items, of all at once if it can; those that it fails at by themselves go to ``bad``."""
    if not items:
        return []
    try:
        with ledger.session.step():
            return act(items)
    except Exception as error:
        if isinstance(error, AnyDatabaseError) and not conflicts.is_refusal(error):
            raise
        if len(items) == 1:
            bad.append((items[0], error))
            return []
    half = len(items) // 2
    return one_by_one(ledger, items[:half], act, bad) + one_by_one(ledger, items[half:], act, bad)


def put_away(ledger: "Ledger", run_id: Any, worker: str, error: Exception, doing: str) -> bool:
    """
    End a run whose row cannot be moved or read; it is ``worker``'s, or nobody's. ``run_id`` is as the database has it.
    Whether it is out of the way now: if not, the database lets nobody change its row.
    """
    said = " ".join(str(error).split()) or type(error).__name__
    reason = text.storable(f"Its row could not be {doing}: {said}", text.MESSAGE_LIMIT)
    shown = run_id.hex() if isinstance(run_id, bytes) else run_id
    try:
        with ledger.session.step():
            found = ledger.session.rows("put_away", {"id": shown, "worker": worker, "reason": reason})
            if ledger.dialect.name == "sqlite" and found and found[0][1]:
                ledger.session.run("add_heralds", {"ids": ledger.dialect.listing([shown])})
    except AnyDatabaseError as refusal:
        if not conflicts.is_refusal(refusal):
            raise
        logger.error("The row of run %s cannot be %s (%s), nor changed: %s", shown, doing, said, refusal)
        return False
    if found:
        logger.error("The row of run %s cannot be %s: %s. The run is FAILED; the others go on.", shown, doing, said)
    return True


def put_away_among(
    ledger: "Ledger", heads: str, params: Mapping[str, Any], state: str, error: Exception
) -> list[Any] | None:
    """
    A statement that would move several runs to ``state`` was refused: find those among the first of them (``heads``, a
    statement) that are the reason, and put them away. The ids of those that could not be; None if none was found.
    """
    stuck: list[Any] = []
    bad: list[tuple[Any, Exception]] = []
    with ledger.session.transaction():
        ids = [row[0] for row in ledger.session.rows(heads, params)]

        def attempt(some: Sequence[Any]) -> list[Any]:
            try:
                with ledger.session.transaction():
                    ledger.session.run("try_move", {"ids": ledger.dialect.listing(some), "state": state})
                    raise _Undo
            except _Undo:
                return []

        if ids:
            one_by_one(ledger, ids, attempt, bad)
        for run_id, refusal in bad:
            if not put_away(ledger, run_id, "", refusal, "moved"):
                stuck.append(run_id)
    if not bad:
        logger.warning("Runs could not be moved to %s, and none of them is the reason: %s", state, error)
        return None
    return stuck


class _Undo(Exception):
    """It was only a try."""
