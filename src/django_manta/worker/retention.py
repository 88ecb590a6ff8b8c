"""
Retention: what has ended is kept as the settings of its own alias say, whichever worker removes it.

Aliases that keep an end for the same time are looked after together. The index of finished runs knows no aliases, so
the leader reads over the runs of others, which may be kept for ever and stand before all that goes. What it has read
it does not read again each minute: it goes on from there, and begins anew after REST_TIMES as long as all of it took.
That finds what had to stay the first time, because it was locked or still needed. Runs of an alias that the
settings do not name are kept.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.tasks import task_backends
from django.tasks.exceptions import InvalidTaskBackend

from django_manta.backend import MantaBackend
from django_manta.ledger import Ledger, house
from django_manta.ledger.marks import REST_TIMES
from django_manta.states import State

logger = logging.getLogger("django_manta")

#: Rows per statement.
BATCH = 1_000

#: Between two batches the others get their turn.
_PAUSE_SECONDS = 0.05

type Rule = tuple[State, timedelta]


def rules(database: str) -> dict[Rule, list[str]]:
    """For how long which aliases keep what: those that have their tables in ``database``."""
    found: dict[Rule, list[str]] = {}
    for backend in backends_of(database):
        for state, age in backend.config.retention.items():
            if age is not None:
                found.setdefault((State(state), age), []).append(backend.alias)
    return found


def backends_of(database: str) -> list[MantaBackend]:
    """The backends that have their tables in ``database``. One with settings that are wrong is left out."""
    found = []
    for alias in sorted(task_backends.settings):
        try:
            backend = task_backends[alias]
            if isinstance(backend, MantaBackend) and backend.database == database:
                found.append(backend)
        except (InvalidTaskBackend, ImproperlyConfigured):
            logger.debug("TASKS[%r] cannot be read: its runs are kept.", alias)
    return found


@dataclass(slots=True)
class _Place:
    """How far the runs of one rule were looked through."""

    after: tuple[datetime, UUID] | None = None
    #: When to begin anew.
    anew_at: float = 0.0


def _no_others() -> None:
    pass


class Retention:
    """Where the leader has got to."""

    def __init__(self, database: str) -> None:
        self.database = database
        self._places: dict[Rule, _Place] = {}

    def go_on(
        self,
        ledger: Ledger,
        removed: dict[State, int],
        stop: threading.Event | None = None,
        *,
        between: Callable[[], None] = _no_others,
    ) -> None:
        """Remove what is due, and count it by state. ``between`` two steps others have their turn."""
        for (state, age), backends in rules(self.database).items():
            place = self._places.setdefault((state, age), _Place())
            if anew := time.monotonic() >= place.anew_at:
                place.after = None
            seconds = 0.0
            while stop is None or not stop.is_set():
                began = time.monotonic()
                step = ledger.prune(state, age, limit=BATCH, after=place.after, backends=backends)
                seconds += time.monotonic() - began
                removed[state] = removed.get(state, 0) + step.deleted
                place.after = step.reached or place.after
                if step.refused:
                    logger.warning(
                        "Retention could not remove %s %s runs (first: %s): other rows refer to them.",
                        len(step.refused),
                        state,
                        step.refused[0],
                    )
                if step.next is None:
                    break
                time.sleep(_PAUSE_SECONDS)
                between()
            if anew:
                place.anew_at = time.monotonic() + REST_TIMES * seconds
        while (stop is None or not stop.is_set()) and ledger.forget_workflows(BATCH) == BATCH:
            time.sleep(_PAUSE_SECONDS)
            between()


def prune(database: str, ledger: Ledger) -> Mapping[State, int]:
    """Remove all finished runs that are past their retention. How many, by state."""
    removed: dict[State, int] = {state: 0 for state, _ in rules(database)}
    Retention(database).go_on(ledger, removed)
    return removed


def unnamed(ledger: Ledger, database: str, limit: int) -> dict[str, int]:
    """
    Of the oldest ``limit`` runs of each end, those of aliases that the settings do not name, by alias: they are kept.
    """
    named = {backend.alias for backend in backends_of(database)}
    return {alias: runs for alias, runs in house.count_oldest(ledger, limit).items() if alias not in named}
