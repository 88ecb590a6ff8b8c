"""
What stands where Django's dummy and immediate backends stood: ours, with the few methods that Django's
tests expect of those two.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.tasks.base import Task

from django_manta.backend import MantaBackend
from django_manta.execution.runners.inline import drain
from django_manta.result import TaskResult


class DummyBackend(MantaBackend):
    """Keeps what is enqueued and executes nothing, like ours without a worker."""

    @property
    def results(self) -> list[TaskResult]:
        """Every run of this backend, in the order of enqueueing, as the ledger has it."""
        from django_manta.models import Run

        runs = Run.objects.using(self.database).filter(backend=self.alias).order_by("id")
        return [run.result for run in runs]

    def clear(self) -> None:
        """Forget all runs."""
        from django_manta.models import Attempt, Run

        Attempt.objects.using(self.database).all().delete()
        Run.objects.using(self.database).all().delete()

    def execute_all(self) -> None:
        """Do what a worker would: the runs change in the ledger, and no result in memory knows."""
        drain(self.alias)


class ImmediateBackend(MantaBackend):
    """Drains inline on enqueue, inside the caller's transaction if there is one."""

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:  # type: ignore[type-arg, override]
        result: TaskResult = super().enqueue(task, args, kwargs)
        drain(self.alias)
        result.refresh()
        return result
