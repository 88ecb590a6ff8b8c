"""
Keeps the worker's lease, and looks for lost ones.

One thread with a connection of its own. A lease is lost only when another worker, itself connected
throughout, saw it unchanged for a full lease, and marks it so by compare-and-set. When the whole
database was away nobody was connected, and nobody is declared dead; an expired but unmarked lease
may be renewed.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.db import Error as DatabaseError

from django_manta.ledger import Ledger, house, own_session

logger = logging.getLogger("django_manta")

#: Heartbeats per lease.
BEATS = 4

#: While the database is away it is tried this often, or at every beat if that is more often.
RETRY_SECONDS = 0.5


@dataclass(slots=True)
class _Seen:
    seen_at: datetime
    #: For how long we have watched it and it did not change.
    watched: float = 0.0


class Heart(threading.Thread):
    """The heartbeat of one worker identity."""

    def __init__(
        self,
        database: str,
        worker: str,
        lease_seconds: float,
        *,
        on_lost: Callable[[], None],
        on_others_lost: Callable[[list[str]], None],
    ) -> None:
        super().__init__(name="manta-heart", daemon=True)
        self.database = database
        self.worker = worker
        self.lease_seconds = lease_seconds
        self.interval = lease_seconds / BEATS
        self.stopping = False
        #: When the lease was last renewed, for the health check and the log.
        self.last_beat = time.monotonic()
        self._on_lost = on_lost
        self._on_others_lost = on_others_lost
        self._others: dict[str, _Seen] = {}
        self._looked_at = time.monotonic()
        self._stop = threading.Event()

    def run(self) -> None:
        session = own_session(self.database)
        away = False
        while not self._stop.wait(min(self.interval, RETRY_SECONDS) if away else self.interval):
            try:
                if not self._beat(Ledger(session)):
                    self._on_lost()
                    return
            except DatabaseError as error:
                # What was seen before the outage proves nothing after it.
                self._others.clear()
                session.close()
                if not away:
                    logger.warning("The heartbeat cannot reach the database: %s", str(error).strip())
                away = True
            except Exception:
                # A heart that stops beating would cost the lease, and nobody here would hear of it.
                logger.exception("A heartbeat failed.")
            else:
                if away:
                    logger.info("The heartbeat reaches the database again.")
                away = False
        session.close()

    def _beat(self, ledger: Ledger) -> bool:
        """Renew, look at the others. Whether the lease is still ours."""
        if ledger.beat(self.worker, self.stopping) is None:
            return False
        self.last_beat = time.monotonic()
        lost = [other for other in self._overdue(ledger) if ledger.mark_lost(other, self._others[other].seen_at)]
        # Also those that somebody marked and then died before recovering what they held.
        if lost or ledger.orphans(limit=1):
            self._on_others_lost(lost)
        return True

    def _overdue(self, ledger: Ledger) -> list[str]:
        now = time.monotonic()
        # When we were stopped, or waited for the database, so may the others have been: no single gap
        # between two looks proves that somebody is gone.
        watched = min(now - self._looked_at, self.lease_seconds / 2)
        self._looked_at = now
        present = house.leases(ledger)
        for other in set(self._others) - set(present):
            del self._others[other]
        overdue = []
        for other, seen_at in present.items():
            if other == self.worker:
                continue
            known = self._others.get(other)
            if known is None or known.seen_at != seen_at:
                self._others[other] = _Seen(seen_at)
                continue
            known.watched += watched
            if known.watched >= self.lease_seconds:
                overdue.append(other)
        return overdue

    def stop(self) -> None:
        self._stop.set()
