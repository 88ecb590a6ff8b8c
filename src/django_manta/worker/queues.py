"""The queues that a worker claims from."""

import time
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from django.tasks import DEFAULT_TASK_QUEUE_NAME

from django_manta.conf import RUNNERS
from django_manta.ringing import OWN_WORDS, UNKNOWN
from django_manta.worker.given import WorkerOptions

if TYPE_CHECKING:
    from django_manta.backend import MantaBackend


#: A name that was not heard for so long is forgotten, if nothing is ready there.
FORGOTTEN_SECONDS = 60.0

#: Whoever may connect to the database may ring any word. So many at most are taken for names of queues; the ledger
#: tells those that have something to do, however many there are.
HEARD = 1_000


class Queues:
    """Those that were asked for, or all, that chose our runner."""

    def __init__(self, given: WorkerOptions, backend: "MantaBackend") -> None:
        self._given = given
        self._declared = backend.queues
        self._options = backend.config.queue_options
        #: Where the backend declares no queues, any name is one: those that were heard of, and when last.
        self._heard_of: dict[str, float] = {DEFAULT_TASK_QUEUE_NAME: float("inf")}
        self.names: list[str] = []
        self._choose()

    @property
    def are_open(self) -> bool:
        """Any name may be one of them: nobody has said which there are."""
        return not self._declared and not self._given.queues

    def hear(self, words: Iterable[str]) -> None:
        """What was rung: it may be names of queues."""
        if self.are_open:
            names = {word for word in words if word and word != UNKNOWN and not word.startswith(OWN_WORDS)}
            known = names & self._heard_of.keys()
            self.hear_of([*known, *islice(names - known, max(0, HEARD - len(self._heard_of)))])

    def hear_of(self, names: Iterable[str]) -> None:
        """These are queues."""
        if not self.are_open:
            return
        known, now = len(self._heard_of), time.monotonic()
        self._heard_of |= {name: now for name in names if name != DEFAULT_TASK_QUEUE_NAME}
        if len(self._heard_of) != known:
            self._choose()

    def has_ready(self, names: Iterable[str]) -> None:
        """These are all that have something ready: of the others those are forgotten that were not heard for long."""
        until = time.monotonic() - FORGOTTEN_SECONDS
        self.hear_of(names)
        forgotten = [name for name, heard_at in self._heard_of.items() if heard_at < until]
        if forgotten:
            for name in forgotten:
                del self._heard_of[name]
            self._choose()

    def _choose(self) -> None:
        chosen = self._given.queues or sorted(self._declared or self._heard_of)
        self.names = [
            queue
            for queue in chosen
            if queue not in self._given.exclude_queues
            and self._options.get(queue, {}).get("runner", RUNNERS[0]) == self._given.runner
        ]

    def __str__(self) -> str:
        return "of any name" if self.are_open else ", ".join(self.names)
