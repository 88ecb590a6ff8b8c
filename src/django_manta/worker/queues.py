"""The queues that a worker claims from."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.tasks import DEFAULT_TASK_QUEUE_NAME

from django_manta.conf import RUNNERS
from django_manta.worker.given import WorkerOptions

if TYPE_CHECKING:
    from django_manta.backend import MantaBackend


class Queues:
    """Those that were asked for, or all, that chose our runner."""

    def __init__(self, given: WorkerOptions, backend: "MantaBackend") -> None:
        self._given = given
        self._declared = backend.queues
        self._options = backend.config.queue_options
        #: Where the backend declares no queues, any name is one: those that were heard of.
        self._heard_of: set[str] = {DEFAULT_TASK_QUEUE_NAME}
        self.names: list[str] = []
        self._choose()

    @property
    def are_open(self) -> bool:
        """Any name may be one of them: nobody has said which there are."""
        return not self._declared and not self._given.queues

    def hear_of(self, names: Iterable[str]) -> None:
        heard_of = self._heard_of.union(names)
        if self.are_open and heard_of != self._heard_of:
            self._heard_of = heard_of
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
