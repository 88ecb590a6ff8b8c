"""
Gives up connections on which the database does not answer.

A server that is stopped, or hangs behind a proxy, accepts what it is sent and never answers. libpq waits for ever, and
while it does Python hears no signal: the worker could not be stopped. So one thread looks once a second at the
connections of all others. One that has waited for the same answer for too long is shut down, and whoever waits there
meets a lost connection: an outage like any other.
"""

import logging
import threading
from collections.abc import Callable

from django_manta.ledger.session import STATEMENT_TIMEOUT_SECONDS, sessions
from django_manta.worker.contact import Contact
from django_manta.worker.duty import Duty
from django_manta.worker.stopping import Stopping
from django_manta.worker.wakeups import Wakeups

logger = logging.getLogger("django_manta")

LOOK_SECONDS = 1.0

#: A server that is well has answered by then, if only to say that it took too long.
FROZEN_SECONDS = 2.0 * STATEMENT_TIMEOUT_SECONDS

#: Who was asked to stop waits no longer than this; and who was asked twice no longer than from one look to the next.
STOPPING_SECONDS = 5.0


class Watchdog(Duty):
    """See above."""

    def __init__(self, stopping: Stopping, wakeups: Wakeups, contact: Contact, on_death: Callable[[], None]) -> None:
        super().__init__("manta-watchdog", on_death)
        self._stopping = stopping
        self._wakeups = wakeups
        self._contact = contact
        self._over = threading.Event()

    def work(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        patience = self._patience()
        for session in sessions():
            # Looks are counted, and not the time: when we were stopped, so perhaps was whoever waits.
            seconds = session.looks_waiting() * LOOK_SECONDS
            if seconds >= patience:
                logger.warning("The database has not answered for %g s: that connection is given up.", seconds)
                # What it was sent last it may do whenever it goes on.
                self._contact.is_never_sure = True
                session.cut()

    def _patience(self) -> float:
        unheard = self._wakeups.unheard_signals()
        if unheard > 1:
            # Python calls the handler of a signal once, however often that has come meanwhile.
            self._stopping.requests = max(self._stopping.requests, unheard)
        asked = max(self._stopping.requests, unheard)
        return FROZEN_SECONDS if not asked else STOPPING_SECONDS if asked == 1 else LOOK_SECONDS

    def stop(self) -> None:
        self._over.set()
