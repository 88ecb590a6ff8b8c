"""
Errors of the database's: which of them are worth another try, which are about one row, and which leave open what it
has done.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from django.db import DataError, IntegrityError, OperationalError
from django.db import Error as AnyDatabaseError

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


#: Answers that say nothing of a row: the connection, the server, its disk, a role or a table is not as it should be, or
#: another transaction was in the way. The next try may succeed with the same values. Classes of SQLSTATE.
_PASSING = ("08", "25", "26", "28", "3D", "40", "42", "53", "55", "57", "58")

#: What SQLite says of what it was given: SQLITE_ERROR, _TOOBIG, _CONSTRAINT, _MISMATCH and _RANGE.
_SQLITE_ANSWERS = frozenset({1, 18, 19, 20, 25})

#: The key of attempts: one token names one execution.
_TOKENS = "manta_attempt_pkey", "manta_attempt.token"


def code_of(error: AnyDatabaseError) -> str | None:
    """What PostgreSQL calls it."""
    return getattr(error.__cause__, "sqlstate", None)


def is_answer(error: AnyDatabaseError) -> bool:
    """Whether the database said it, and goes on; or is away, or about to go, so that nobody knows what it has done."""
    code = code_of(error)
    if code is None:
        return _is_said_here(error)
    return not code.startswith(("08", "57P"))


def is_refusal(error: BaseException) -> bool:
    """
    Whether the database refuses what it was given, so that a smaller batch may pass: a value out of range, a
    constraint, a trigger, a limit, a row that it cannot read. Anything else may pass as it is when it is tried again.
    """
    if not isinstance(error, AnyDatabaseError):
        return isinstance(error, ValueError | OverflowError)
    code = code_of(error)
    if code is None:
        return _is_said_here(error)
    return not code.startswith(_PASSING)


def _is_said_here(error: AnyDatabaseError) -> bool:
    """Of an error without SQLSTATE: whether a driver refused a value or could not read one, or SQLite answered."""
    if isinstance(error, DataError | IntegrityError):
        return True
    code = getattr(error.__cause__, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _SQLITE_ANSWERS


def is_taken_token(error: BaseException) -> bool:
    """Whether another execution was settled under the same token: the sequence is behind its table."""
    return isinstance(error, IntegrityError) and any(each in str(error) for each in _TOKENS)
