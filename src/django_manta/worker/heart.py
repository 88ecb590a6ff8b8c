"""
Keeps the worker's lease.

One thread with a connection of its own. An expired but unmarked lease may be renewed: it is lost only
when another worker has marked it so (see watch.py).
"""

import logging
import threading
from collections.abc import Callable

from django.db import Error as DatabaseError

from django_manta.ledger import Ledger, own_session
from django_manta.worker.duty import Duty

logger = logging.getLogger("django_manta")

#: Heartbeats per lease.
BEATS = 4

#: While the database is away it is tried this often, or at every beat if that is more often.
RETRY_SECONDS = 0.5


class Heart(Duty):
    """The heartbeat of one worker identity."""

    def __init__(
        self,
        database: str,
        worker: str,
        lease_seconds: float,
        *,
        on_lost: Callable[[], None],
        on_orphans: Callable[[], None],
        on_death: Callable[[], None],
    ) -> None:
        super().__init__("manta-heart", on_death)
        self.database = database
        self.worker = worker
        self.interval = lease_seconds / BEATS
        self.stopping = False
        self._on_lost = on_lost
        self._on_orphans = on_orphans
        self._stop = threading.Event()

    def work(self) -> None:
        session = own_session(self.database)
        away = False
        # The first one at once: to connect takes time, of which there may be less when the next one is due.
        patience = 0.0
        while not self._stop.wait(patience):
            try:
                if not self._beat(Ledger(session)):
                    self._on_lost()
                    break
            except DatabaseError as error:
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
            patience = min(self.interval, RETRY_SECONDS) if away else self.interval
        session.close()

    def _beat(self, ledger: Ledger) -> bool:
        """Renew. Whether the lease is still ours."""
        if ledger.beat(self.worker, self.stopping) is None:
            return False
        # Somebody may have marked a worker lost and died before recovering what it held.
        if ledger.orphans(limit=1, runner=""):
            self._on_orphans()
        return True

    def stop(self) -> None:
        self._stop.set()
