"""
Twins of Django's backends that accept our options and give tasks our context.

Neither needs a database. ``ImmediateBackend`` executes a task as it is enqueued, once, whatever its
``max_attempts``; ``DummyBackend`` only remembers what was enqueued.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from django.tasks.backends import dummy, immediate
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task as DjangoTask
from django.tasks.base import TaskResult as DjangoTaskResult
from django.utils import timezone

from django_manta import conf, options, payload
from django_manta.context import TaskContext
from django_manta.result import TaskResult
from django_manta.states import State
from django_manta.task import Task


class _AcceptsOurOptions(BaseTaskBackend):
    """What both twins share: our Task, our settings, many at once."""

    task_class = Task
    supports_defer = True

    @property
    def config(self) -> conf.Config:
        return conf.read(self.alias, self.options)

    def enqueue_many(
        self,
        calls: Iterable[tuple[DjangoTask, Sequence[Any], Mapping[str, Any]]],  # type: ignore[type-arg]
    ) -> list[DjangoTaskResult]:  # type: ignore[type-arg]
        return [self.enqueue(task, list(args), dict(kwargs)) for task, args, kwargs in calls]


class DummyBackend(_AcceptsOurOptions, dummy.DummyBackend):
    """Remembers what was enqueued in ``default_task_backend.results``; executes nothing."""


class ImmediateBackend(_AcceptsOurOptions, immediate.ImmediateBackend):
    """Executes a task as it is enqueued. ``run_after`` is accepted and not waited for."""

    def _execute_task(self, task_result: DjangoTaskResult) -> None:  # type: ignore[type-arg]
        # Django's own execution builds a plain TaskContext, which lacks progress() and the rest: it
        # is given a task whose function receives ours instead.
        if not task_result.task.takes_context:
            super()._execute_task(task_result)  # type: ignore[misc]
            return
        task = task_result.task
        object.__setattr__(task_result, "task", _WithOurContext(task, self.config))
        try:
            super()._execute_task(task_result)  # type: ignore[misc]
        finally:
            object.__setattr__(task_result, "task", task)


class _WithOurContext:
    """Stands in for a task during one immediate execution."""

    def __init__(self, task: DjangoTask, config: conf.Config) -> None:  # type: ignore[type-arg]
        self._task = task
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def call(self, context: Any, *args: Any, **kwargs: Any) -> Any:
        effective = options.effective(self._task, self._config)
        return self._task.call(_context(self._task, context.task_result, effective), *args, **kwargs)


class _Desktop:
    """Keeps nothing: an immediate execution has no row."""

    def save_progress(self, progress: str) -> None: ...
    def save_metadata(self, metadata: str) -> None: ...


def _context(
    task: DjangoTask,  # type: ignore[type-arg]
    result: DjangoTaskResult,  # type: ignore[type-arg]
    effective: options.Effective,
) -> TaskContext:
    deadline = effective.deadline
    ours = TaskResult(
        task=task,
        id=result.id,
        status=result.status,
        enqueued_at=result.enqueued_at,
        started_at=result.started_at,
        finished_at=None,
        last_attempted_at=result.last_attempted_at,
        args=result.args,
        kwargs=result.kwargs,
        backend=result.backend,
        errors=result.errors,
        worker_ids=result.worker_ids,
        state=State.RUNNING,
        reason="",
        deadline=deadline if hasattr(deadline, "tzinfo") else timezone.now() + deadline,
        expires_at=None,
        metadata=payload.normalize(effective.metadata, "metadata"),
        progress=None,
        history=(),
    )
    return TaskContext(task_result=ours, is_last_attempt=True, _desk=_Desktop(), _call=partial(_refuse))


def _refuse(context: TaskContext) -> None:
    raise RuntimeError("An immediate execution has no middleware chain.")
