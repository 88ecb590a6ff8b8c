"""Errors of the database's: which of them are worth another try, and which leave open what it has done."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from django.db import DatabaseError, OperationalError

if TYPE_CHECKING:
    from django_manta.ledger.book import Ledger

#: Two transactions in each other's way: one has to go, and comes back a moment later.
CONFLICTS = frozenset({"40P01", "40001"})
_TRIES, _PAUSE_SECONDS = 5, 0.02


def patiently[T](ledger: "Ledger", act: Callable[[], T]) -> T:
    """
    Once more when the database had to end one of two transactions that were in each other's way.

    Inside somebody's transaction there is no once more: it is over.
    """
    for attempt in range(_TRIES):
        try:
            return act()
        except OperationalError as error:
            if code_of(error) not in CONFLICTS or attempt == _TRIES - 1 or ledger.session.in_transaction():
                raise
            time.sleep(_PAUSE_SECONDS * (attempt + 1))
    raise AssertionError


def code_of(error: DatabaseError) -> str | None:
    """What PostgreSQL calls it."""
    return getattr(error.__cause__, "sqlstate", None)


def is_answer(error: DatabaseError) -> bool:
    """Whether the database said it, and goes on; or is away, or about to go, so that nobody knows what it has done."""
    code = code_of(error)
    return code is not None and not code.startswith(("08", "57P"))
