"""What was enqueued, as assertions for ``unittest`` and as plain functions for pytest."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.tasks.base import Task

from django_manta import payload

from django_manta.result import TaskResult


def enqueued(task: Task, *args: Any, **kwargs: Any) -> list[TaskResult]:  # type: ignore[type-arg]
    """
    The results of the runs of ``task``, oldest first; with arguments, of those enqueued with them.

    Arguments are compared as they are stored: a tuple equals the list it became.
    """
    from django_manta.models import Run

    wanted = payload.encode_arguments(args, kwargs)[:2] if args or kwargs else None
    results = [run.result for run in Run.objects.filter(task=task.module_path).order_by("id")]
    return [result for result in results if wanted is None or (result.args, result.kwargs) == wanted]


def assert_enqueued(task: Task, *args: Any, **kwargs: Any) -> TaskResult:  # type: ignore[type-arg]
    """
    Fail unless a run of ``task`` was enqueued with just these arguments; return the latest such.
    """
    wanted_args, wanted_kwargs, _ = payload.encode_arguments(args, kwargs)
    found = enqueued(task)
    for result in reversed(found):
        if result.args == wanted_args and result.kwargs == wanted_kwargs:
            return result
    raise AssertionError(_not_found(task, wanted_args, wanted_kwargs, found))


def assert_not_enqueued(task: Task) -> None:  # type: ignore[type-arg]
    """Fail if any run of ``task`` was enqueued."""
    found = enqueued(task)
    if found:
        raise AssertionError(f"{task.module_path} was enqueued: {_listing(task, found)}.")


class TaskAssertions:
    """Mix into a ``TestCase``."""

    def assertEnqueued(self, task: Task, *args: Any, **kwargs: Any) -> TaskResult:  # type: ignore[type-arg]  # noqa: N802
        """See assert_enqueued()."""
        return assert_enqueued(task, *args, **kwargs)

    def assertNotEnqueued(self, task: Task) -> None:  # type: ignore[type-arg]  # noqa: N802
        """See assert_not_enqueued()."""
        assert_not_enqueued(task)


def _not_found(
    task: Task,  # type: ignore[type-arg]
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    found: list[TaskResult],
) -> str:
    wanted = _call(task, args, kwargs)
    if not found:
        return f"{wanted} was not enqueued; no run of {task.module_path} was."
    return f"{wanted} was not enqueued; its runs are: {_listing(task, found)}."


def _listing(task: Task, found: list[TaskResult]) -> str:  # type: ignore[type-arg]
    return ", ".join(_call(task, result.args, result.kwargs) for result in found)


def _call(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:  # type: ignore[type-arg]
    shown = [repr(value) for value in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"{task.name}({', '.join(shown)})"
