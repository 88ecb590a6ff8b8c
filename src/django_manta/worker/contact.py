"""
Whether the database is there.

While it is away executions go on and outcomes wait, and it is tried again and again. What was said to it last may have
been done without our hearing of it: whoever finds it again reconciles what the ledger says is ours with what we know.
"""

import logging
import time

from django.db import Error as DatabaseError

from django_manta.ledger import conflicts
from django_manta.ledger.session import STATEMENT_TIMEOUT_SECONDS

logger = logging.getLogger("django_manta")

#: While the database is away it is tried this often.
RETRY_SECONDS = 0.25

#: So many statements, each with a time limit of its own, may leave at once: a settlement, what it tells, some claims.
STATEMENTS_AT_ONCE = 6


class Contact:
    """What the loop's connection has come to."""

    def __init__(self) -> None:
        self._away_since: float | None = None
        self.retry_at = 0.0
        #: The ledger may hold runs for us that we know nothing of.
        self.must_reconcile = False
        self._reconcile_at = self._reconcile_until = float("inf")
        #: A server that did not answer may at any time do what it was sent: there is no end to looking.
        self.is_never_sure = False

    @property
    def is_away(self) -> bool:
        return self._away_since is not None

    def went_away(self, error: DatabaseError) -> None:
        self.must_reconcile = True
        now = time.monotonic()
        self.retry_at = now + RETRY_SECONDS
        # Where only the connection broke, the server may go on with what it was sent, and commit a claim, until its
        # time limits: look once more when the first is over, and until all of them are.
        self._reconcile_at = now + STATEMENT_TIMEOUT_SECONDS + RETRY_SECONDS
        self._reconcile_until = now + STATEMENTS_AT_ONCE * STATEMENT_TIMEOUT_SECONDS
        if self._away_since is None:
            self._away_since = now
            what = "refused a statement" if conflicts.is_answer(error) else "is away"
            logger.warning("The database %s: %s", what, str(error).strip())

    def answered(self) -> bool:
        """It has, and is not away any more. Whether it was."""
        if self._away_since is None:
            return False
        logger.info("The database is back after %.1f s.", time.monotonic() - self._away_since)
        self._away_since = None
        return True

    def reconciles(self, now: float) -> bool:
        return self.must_reconcile or now >= self._reconcile_at

    def reconciled(self, now: float, *, is_complete: bool) -> None:
        self.must_reconcile = not is_complete
        if now >= self._reconcile_at:
            again = now < self._reconcile_until or self.is_never_sure
            self._reconcile_at = now + STATEMENT_TIMEOUT_SECONDS if again else float("inf")
