"""What was enqueued, as assertions for ``unittest`` and as plain functions for pytest."""

from collections.abc import Mapping, Sequence
from typing import Any

from django_manta import payload
from django_manta.result import TaskResult
from django_manta.typed import AnyTask


def enqueued(task: AnyTask, *args: Any, **kwargs: Any) -> list[TaskResult]:
    """
    The results of the runs of ``task``, oldest first; with arguments, of those enqueued with them.

    Arguments are compared as they are stored: a tuple equals the list it became.
    """
    from django_manta.models import Run

    backend: Any = task.get_backend()
    database = backend.database
    wanted = payload.encode_arguments(args, kwargs)[:2] if args or kwargs else None
    results = [run.result for run in Run.objects.using(database).filter(task=task.module_path).order_by("id")]
    return [result for result in results if wanted is None or (result.args, result.kwargs) == wanted]


def assert_enqueued(task: AnyTask, *args: Any, **kwargs: Any) -> TaskResult:
    """
    Fail unless a run of ``task`` was enqueued with just these arguments; return the latest such.
    """
    wanted_args, wanted_kwargs, *_ = payload.encode_arguments(args, kwargs)
    found = enqueued(task)
    for result in found[::-1]:
        if result.args == wanted_args and result.kwargs == wanted_kwargs:
            return result
    raise AssertionError(_not_found(task, wanted_args, wanted_kwargs, found))


def assert_not_enqueued(task: AnyTask) -> None:
    """Fail if any run of ``task`` was enqueued."""
    found = enqueued(task)
    if found:
        raise AssertionError(f"{task.module_path} was enqueued: {_listing(task, found)}.")


class TaskAssertions:
    """Mix into a ``TestCase``."""

    def assertEnqueued(self, task: AnyTask, *args: Any, **kwargs: Any) -> TaskResult:  # noqa: N802
        """See assert_enqueued()."""
        return assert_enqueued(task, *args, **kwargs)

    def assertNotEnqueued(self, task: AnyTask) -> None:  # noqa: N802
        """See assert_not_enqueued()."""
        assert_not_enqueued(task)


def _not_found(
    task: AnyTask,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    found: list[TaskResult],
) -> str:
    wanted = _call(task, args, kwargs)
    if not found:
        return f"{wanted} was not enqueued; no run of {task.module_path} was."
    return f"{wanted} was not enqueued; its runs are: {_listing(task, found)}."


def _listing(task: AnyTask, found: list[TaskResult]) -> str:
    return ", ".join(_call(task, result.args, result.kwargs) for result in found)


def _call(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    shown = [repr(value) for value in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"{task.name}({', '.join(shown)})"
