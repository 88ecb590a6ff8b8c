"""
Twins of Django's backends that accept our options and give out our results and contexts.

Neither needs a database. ``ImmediateBackend`` executes a task as it is enqueued, once, whatever its
``max_attempts``; ``DummyBackend`` only remembers what was enqueued.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any

from django.tasks.backends import dummy, immediate
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask
from django.utils import timezone

from django_manta import conf, options, payload
from django_manta.backend import checkable
from django_manta.context import TaskContext
from django_manta.ids import new_run_id
from django_manta.result import TaskResult
from django_manta.states import State, status_of
from django_manta.task import Task, unchecked_replace
from django_manta.typed import AnyTask


class _Twin(BaseTaskBackend):
    """What both twins share: our Task, our settings, our results, many at once."""

    task_class = Task
    supports_defer = True

    @property
    def config(self) -> conf.Config:
        return conf.read(self.alias, self.options)

    def validate_task(self, task: AnyTask) -> None:
        super().validate_task(checkable(task))

    def enqueue_many(self, calls: Iterable[tuple[AnyTask, Sequence[Any], Mapping[str, Any]]]) -> list[TaskResult]:
        return [self.enqueue(task, list(args), dict(kwargs)) for task, args, kwargs in calls]  # type: ignore[misc]

    def _new_result(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        self.validate_task(task)
        effective = options.effective(task, self.config)
        kept_args, kept_kwargs, _, references, _ = payload.encode_arguments(args, kwargs)
        if isinstance(self, immediate.ImmediateBackend) and (references is not None or effective.after):
            raise InvalidTask(
                f"{task.module_path} waits for other runs, and {type(self).__name__} keeps none: give it the values, "
                "or test with MantaBackend and run_all()."
            )
        return TaskResult(
            task=unchecked_replace(task, run_after=_moment(task.run_after)),
            id=str(new_run_id()),
            status=status_of(State.READY),
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=kept_args,
            kwargs=kept_kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
            state=State.HELD if effective.hold else State.READY,
            reason="",
            deadline=_moment(effective.deadline) or timezone.now(),
            expires_at=_moment(effective.expires),
            metadata=payload.normalize(effective.metadata, "metadata"),
            progress=None,
            history=(),
        )


class DummyBackend(_Twin, dummy.DummyBackend):
    """Remembers what was enqueued in ``default_task_backend.results``; executes nothing."""

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:  # type: ignore[override]
        result = self._new_result(task, args, kwargs)
        self._store_result(result)  # type: ignore[attr-defined]
        return deepcopy(result)


class ImmediateBackend(_Twin, immediate.ImmediateBackend):
    """Executes a task as it is enqueued. ``run_after`` is accepted and not waited for."""

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:  # type: ignore[override]
        result = self._new_result(task, args, kwargs)
        stored = result.task
        object.__setattr__(result, "task", _WithOurContext(stored))
        try:
            self._execute_task(result)  # type: ignore[attr-defined]
        finally:
            object.__setattr__(result, "task", stored)
        object.__setattr__(result, "state", State(result.status.value))
        return result


class _WithOurContext:
    """Stands in for a task while Django executes it: Django's context lacks progress() and the rest."""

    def __init__(self, task: AnyTask) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if self._task.takes_context:
            context = TaskContext(task_result=args[0].task_result, is_last_attempt=True, _desk=_Desk(), _call=_refuse)
            args = (context, *args[1:])
        return self._task.call(*args, **kwargs)


class _Desk:
    """Keeps nothing: an immediate execution has no row."""

    def save_progress(self, progress: str) -> None: ...
    def upstream(self) -> list[TaskResult]:
        return []

    def save_metadata(self, metadata: str) -> None: ...


def _refuse(context: TaskContext) -> None:
    raise RuntimeError("An immediate execution has no middleware chain.")


def _moment(value: datetime | timedelta | None) -> datetime | None:
    return timezone.now() + value if isinstance(value, timedelta) else value
