"""
What wakes an idle worker.

PostgreSQL: LISTEN on a connection of its own, tried out at the start by ringing it. Behind a pooler
that hands out connections per transaction nothing would arrive, and the worker polls instead. SQLite: a
counter in the database file's header changes with every commit of another connection; looking at it
costs no query.
"""

import logging
import time
from typing import Protocol

from django.db import Error as DatabaseError
from django.db import connections

from django_manta.ledger import Ledger, PostgresSession, house, own_session
from django_manta.ringing import TRIAL, UNKNOWN

logger = logging.getLogger("django_manta")

#: How long the doorbell is given to ring when it is tried out.
_TRIAL_SECONDS = 1.0

#: A listener that lost its connection tries for another this often.
_RECONNECT_SECONDS = 1.0

#: How often the counter of a SQLite file is looked at.
_SQLITE_SECONDS = 0.02


class Doorbell(Protocol):
    """Tells whether something may have changed, and how long one may sleep."""

    name: str

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when it rings, if there is one."""

    def rang(self) -> list[str]:
        """What was rung since the last look."""

    def patience(self) -> float | None:
        """How long to sleep at the most before looking again, or None for "until it rings"."""

    def close(self) -> None: ...


class PostgresDoorbell:
    """LISTEN on a connection of its own."""

    name = "listen"

    def __init__(self, alias: str, cluster: str) -> None:
        self.alias = alias
        self.channel = house.channel_of(cluster)
        self._session = PostgresSession(alias)
        self._listening = False
        self._retry_at = 0.0

    def listen(self) -> None:
        self._session.listen(self.channel)
        self._listening = True

    def try_out(self) -> bool:
        """Listen, if what is rung is heard here."""
        if not self._session.keeps_its_server():
            # Whoever uses that connection to the server next would hear it, and not we.
            return False
        self.listen()
        return self.works()

    def works(self) -> bool:
        """Ring it from elsewhere and see whether it is heard."""
        ringer = PostgresSession(self.alias)
        try:
            house.ring(Ledger(ringer), self.channel, TRIAL)
        finally:
            ringer.close()
        return bool(self._session.heard(_TRIAL_SECONDS))

    def fileno(self) -> int | None:
        return self._session.fileno() if self._listening else None

    def rang(self) -> list[str]:
        if not self._listening or self._session.fileno() is None:
            # Also when it was found closed: the session would open another, which listens to nothing.
            self._listening = False
            return self._reconnect()
        try:
            return self._session.heard()
        except DatabaseError:
            self._listening = False
            self._session.close()
            return [UNKNOWN]

    def _reconnect(self) -> list[str]:
        if time.monotonic() < self._retry_at:
            return []
        self._retry_at = time.monotonic() + _RECONNECT_SECONDS
        try:
            self.listen()
        except DatabaseError:
            self._session.close()
            return []
        # Whatever was rung meanwhile was not heard.
        return [UNKNOWN]

    def patience(self) -> float | None:
        return None if self._listening else _RECONNECT_SECONDS

    def close(self) -> None:
        self._listening = False
        self._session.close()


class SqliteDoorbell:
    """Looks at the file's change counter, often: it costs a read of the header."""

    name = "change counter"

    def __init__(self, alias: str) -> None:
        self._session = own_session(alias)
        self._ledger = Ledger(self._session)
        self._last: int | None = None

    def fileno(self) -> int | None:
        return None

    def rang(self) -> list[str]:
        version = house.change_counter(self._ledger)
        changed = version != self._last
        self._last = version
        return [UNKNOWN] if changed else []

    def patience(self) -> float | None:
        return _SQLITE_SECONDS

    def close(self) -> None:
        self._session.close()


class Polling:
    """No doorbell: the worker's own look, once a second, has to do."""

    name = "polling"

    def fileno(self) -> int | None:
        return None

    def rang(self) -> list[str]:
        return []

    def patience(self) -> float | None:
        return None

    def close(self) -> None:
        pass


def install(alias: str, cluster: str) -> Doorbell:
    """The best doorbell that works here."""
    if connections[alias].vendor == "sqlite":
        return SqliteDoorbell(alias)
    doorbell = PostgresDoorbell(alias, cluster)
    if doorbell.try_out():
        return doorbell
    doorbell.close()
    logger.warning("LISTEN does not work on this connection (a transaction pooler?); polling once a second.")
    return Polling()
