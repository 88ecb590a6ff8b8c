"""
The chain around every enqueue, and what it passes on.

Shaped like Django's request middleware: a factory is given the next step and returns a callable.
The callable gets a list, because many runs are enqueued by one statement; ``enqueue()`` is a list
of one. It may change the calls (a Task is frozen: ``call.replace(task=call.task.using(...))``),
drop none, and sees the results on the way back.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_manta.typed import AnyTask

if TYPE_CHECKING:
    from django_manta.result import TaskResult


@dataclass(frozen=True, slots=True)
class Call:
    """One run about to be enqueued."""

    task: AnyTask
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def replace(self, **changes: Any) -> "Call":
        return replace(self, **changes)


type Enqueue = Callable[[list[Call]], "list[TaskResult]"]
type EnqueueMiddleware = Callable[[Enqueue], Enqueue]


def chain(paths: Sequence[str], innermost: Enqueue) -> Enqueue:
    """``innermost`` wrapped in the middleware that ``paths`` name, the first one outermost."""
    wrapped = innermost
    for path in reversed(paths):
        factory: EnqueueMiddleware = load(path, "ENQUEUE_MIDDLEWARE")
        wrapped = factory(wrapped)
        if not callable(wrapped):
            raise ImproperlyConfigured(f"ENQUEUE_MIDDLEWARE: {path!r} returned {wrapped!r}, not a callable.")
    return wrapped


def load(path: str, setting: str) -> Any:
    """The factory that a middleware path names. Raise ImproperlyConfigured naming the setting."""
    try:
        return import_string(path)
    except Exception as error:
        raise ImproperlyConfigured(f"{setting}: {path!r} cannot be imported: {error}.") from error
