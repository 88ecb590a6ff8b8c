"""Executing what was enqueued."""

from collections.abc import Sequence
from typing import Any

from django.tasks import task_backends

from django_manta.execution.runners.inline import Drained, drain
from django_manta.ledger import house


class TooManyRuns(AssertionError):
    """``run_all`` met its limit: most likely a task that enqueues itself for ever."""


def run_all(
    max_runs: int = 1000,
    *,
    queues: Sequence[str] | None = None,
    include_scheduled: bool = False,
    backend: str = "default",
) -> Drained:
    """
    Execute every ready run, and those that they enqueue, in this thread; return what happened.

    Works inside ``TestCase`` and inside ``atomic()``. ``include_scheduled`` does not wait for
    ``run_after`` or for the back-off between attempts. Raise TooManyRuns after ``max_runs``.
    """
    drained = drain(backend, queues=queues, max_runs=max_runs, include_scheduled=include_scheduled)
    if drained.runs >= max_runs and _something_is_ready(backend, queues):
        raise TooManyRuns(
            f"{drained.runs} runs were executed and more are ready. Does a task enqueue itself? If so many "
            "are right, give run_all() a higher max_runs."
        )
    return drained


def _something_is_ready(backend: str, queues: Sequence[str] | None) -> bool:
    """Ready and claimable: what waits in a paused queue is no sign of a task that never ends."""
    chosen: Any = task_backends[backend]
    ledger = chosen.ledger
    return house.look(ledger, "", list(queues or ledger.ready_queues())).ready
