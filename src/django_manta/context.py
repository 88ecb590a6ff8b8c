"""What a task with ``takes_context=True`` is given: Django's TaskContext, and ways to tell how it goes."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Protocol

from asgiref.sync import sync_to_async

from django_manta import payload, text
from django_manta.result import Progress, TaskResult
from django_manta.typed import GenericTaskContext, P, R

#: Progress is written at most this often; what is left unwritten at the end is written then.
PROGRESS_INTERVAL_SECONDS = 0.5

#: The longest progress message kept.
PROGRESS_MESSAGE_LIMIT = 1_000


class Desk(Protocol):
    """Where a context leaves what should be seen while the task runs, whatever its transaction does."""

    def save_progress(self, progress: str) -> None: ...
    def save_metadata(self, metadata: str) -> None: ...
    def upstream(self) -> "list[TaskResult]": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext(GenericTaskContext[P, R]):  # type: ignore[misc]  # Django's is frozen; its stub forgot
    task_result: TaskResult[P, R]
    #: Whether a failure of this attempt would be the run's end.
    is_last_attempt: bool
    _desk: Desk = field(repr=False)
    #: The end of the middleware chain: calls the task's function.
    _call: "Callable[[TaskContext], Any]" = field(repr=False)
    _throttle: "_Throttle" = field(default_factory=lambda: _Throttle(), repr=False)

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)

    @property
    def run_id(self) -> str:
        return self.task_result.id

    @property
    def deadline(self) -> datetime:
        return self.task_result.deadline

    @property
    def metadata(self) -> dict[str, Any]:
        """The run's metadata. Change it as you like, then ``save_metadata()``."""
        return self.task_result.metadata

    @property
    def upstream(self) -> "list[TaskResult]":
        """The results of the runs that this one waited for, in the order in which they were given."""
        return self._desk.upstream()

    async def aupstream(self) -> "list[TaskResult]":
        """See upstream."""
        return await sync_to_async(self._desk.upstream, thread_sensitive=True)()

    def save_metadata(self) -> None:
        """
        Store the metadata as it is now, at once, also from inside an atomic task; unless its transaction is REPEATABLE
        READ or SERIALIZABLE: then when it ends.
        """
        self._desk.save_metadata(payload.encode(self.metadata, "metadata"))

    async def asave_metadata(self) -> None:
        """See save_metadata()."""
        await sync_to_async(self.save_metadata, thread_sensitive=True)()

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """
        Tell how far the task has come.

        Cheap to call often: it is stored every half second at most, and the last one told is always
        stored. It shows at once, also from inside an atomic task, unless its transaction is REPEATABLE READ or
        SERIALIZABLE.
        """
        kept = _progress(done, total, message)
        object.__setattr__(self.task_result, "progress", kept)
        if self._throttle.admits(finished=total is not None and done >= total):
            self._desk.save_progress(_progress_text(kept))

    async def aprogress(self, done: float, total: float | None = None, message: str = "") -> None:
        """See progress()."""
        await sync_to_async(self.progress, thread_sensitive=True)(done, total, message)

    def track[T](self, items: Iterable[T], total: int | None = None, message: str = "") -> Iterator[T]:
        """Iterate over ``items`` and tell the progress: ``for row in context.track(rows): …``."""
        if total is None and isinstance(items, Sized):
            total = len(items)
        done = 0
        self.progress(done, total, message)
        for item in items:
            yield item
            done += 1
            self.progress(done, total, message)

    async def atrack[T](self, items: Iterable[T], total: int | None = None, message: str = "") -> AsyncIterator[T]:
        """See track()."""
        if total is None and isinstance(items, Sized):
            total = len(items)
        done = 0
        await self.aprogress(done, total, message)
        for item in items:
            yield item
            done += 1
            await self.aprogress(done, total, message)

    def _flush(self) -> None:
        """Store the progress that the throttle kept back. Called when the task has returned."""
        if self._throttle.pending and self.task_result.progress is not None:
            self._throttle.pending = False
            self._desk.save_progress(_progress_text(self.task_result.progress))


class _Throttle:
    """Lets through the first, the last, and one every interval."""

    def __init__(self) -> None:
        self.next = 0.0
        self.pending = False

    def admits(self, *, finished: bool) -> bool:
        now = time.monotonic()
        if finished or now >= self.next:
            self.next = now + PROGRESS_INTERVAL_SECONDS
            self.pending = False
            return True
        self.pending = True
        return False


def _progress(done: float, total: float | None, message: str) -> Progress:
    for name, value in (("done", done), ("total", total)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"progress {name} must be a number, not {value!r}.")
        if not isfinite(value):
            raise ValueError(f"progress {name} must be a finite number, not {value!r}.")
    return Progress(done=done, total=total, message=text.storable(str(message), PROGRESS_MESSAGE_LIMIT))


def _progress_text(progress: Progress) -> str:
    return payload.encode({"done": progress.done, "total": progress.total, "message": progress.message}, "progress")
