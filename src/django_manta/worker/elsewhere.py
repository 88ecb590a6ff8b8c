"""
What the runners ``ray`` and ``ray_job`` have in common: runs that wait until Ray can be told of them.

A Ray that is away costs time: it is said once, in the log and in the worker's row, and what was claimed meanwhile is
given back after a while.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence

from django_manta.execution.runners.flights import Flight
from django_manta.ledger import RayPlace

logger = logging.getLogger("django_manta")

#: What was claimed and cannot be submitted is given back after so long: another worker may reach Ray.
OVERDUE_SECONDS = 2.0


class Elsewhere:
    """See hosting.Runner."""

    recovers = True

    def __init__(self, address: str) -> None:
        #: The Ray that this worker speaks to: the worker's row says so before anything is claimed.
        self.place = RayPlace("", address)
        self.backlog: deque[Flight] = deque()
        self.stopping = False
        #: To whom this identity may have given runs, and whether the worker's row says so.
        self.known: list[tuple[str, str]] = []
        self.recorded = True
        #: What is said of a Ray that is away.
        self.away = ""
        self._away_since: float | None = None

    @property
    def is_ready(self) -> bool:
        raise NotImplementedError

    def stop(self) -> list[Flight]:
        self.stopping = True
        left = list(self.backlog)
        self.backlog.clear()
        return left

    def next_appetite(self, now: float) -> float | None:
        return None

    def take_on(self, flights: Sequence[Flight]) -> None:
        self.backlog.extend(flights)

    def take_back(self, flights: Sequence[Flight], now: float) -> None:
        self.backlog.extendleft(reversed(flights))

    @property
    def waits(self) -> bool:
        return bool(self.backlog)

    def overdue(self, now: float) -> list[Flight]:
        if not self.backlog or self.is_ready:
            return []
        overdue = [flight for flight in self.backlog if now - flight.waiting_since > OVERDUE_SECONDS]
        self.backlog = deque(flight for flight in self.backlog if flight not in overdue)
        return overdue

    def meet(self, name: str, incarnation: str) -> None:
        """We may have runs there from now on: the worker's row must say so first."""
        if (name, incarnation) not in self.known:
            self.known.append((name, incarnation))
            self.recorded = False

    def speak_to(self, ray: str) -> None:
        """The Ray that is there is this one: the worker's row must say so before anything is given to it."""
        if ray != self.place.ray:
            self.place = self.place._replace(ray=ray)
            self.recorded = False

    def _is_away(self, why: str) -> None:
        if self._away_since is None and not self.stopping:
            self._away_since = time.monotonic()
            self.away = f"Ray is away: {why}"
            logger.warning("%s", self.away)

    def _is_back(self) -> None:
        if self._away_since is not None:
            logger.info("Ray is back after %.1f s.", time.monotonic() - self._away_since)
            self._away_since, self.away = None, ""
