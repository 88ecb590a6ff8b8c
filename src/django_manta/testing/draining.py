"""Executing what was enqueued."""

from collections.abc import Sequence

from django_manta.execution.runners.inline import Drained, drain


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
    drained = drain(
        backend, queues=queues, max_runs=max_runs, include_scheduled=include_scheduled
    )
    if drained.runs >= max_runs and _something_is_ready(backend):
        raise TooManyRuns(
            f"{drained.runs} runs were executed and more are ready. Does a task enqueue itself? If so many "
            "are right, give run_all() a higher max_runs."
        )
    return drained


def _something_is_ready(backend: str) -> bool:
    from django.tasks import task_backends

    return bool(task_backends[backend].ledger.ready_queues())  # type: ignore[attr-defined]
