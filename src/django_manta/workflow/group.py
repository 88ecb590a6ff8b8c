"""A group: a sequence of results that can be given, waited for and looked at as one."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex, cast, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.tasks.base import TaskResult as DjangoTaskResult

from django_manta.patience import pauses
from django_manta.states import ENDS, State

if TYPE_CHECKING:
    from django_manta.result import TaskResult


class Group[T](list["TaskResult[Any, T]"]):
    """
    The results of several runs, as ``map``, ``starmap`` and ``gather`` return them.

    Given as an argument it becomes the list of their values; in ``after`` it stands for each of them.
    """

    def manta_references(self) -> list[str]:
        return [result.id for result in self]

    # A part of a group is a group, and so are two together.

    @overload
    def __getitem__(self, place: SupportsIndex) -> "TaskResult[Any, T]": ...
    @overload
    def __getitem__(self, place: slice) -> "Group[T]": ...
    def __getitem__(self, place: SupportsIndex | slice) -> "TaskResult[Any, T] | Group[T]":
        found = list.__getitem__(self, place)
        return Group(found) if isinstance(found, list) else found

    def __add__(self, other: list[Any]) -> "Group[Any]":  # type: ignore[override]
        return Group([*self, *other])

    def copy(self) -> "Group[T]":
        return Group(self)

    def refresh(self) -> None:
        """Reload every result: two statements in all."""
        from django_manta.result import refresh_all

        refresh_all(self)

    def join(self, timeout: float | None = None) -> list[T]:
        """
        Wait until all have ended, and return their values in order.

        Raise TimeoutError after ``timeout`` seconds, ValueError if one ended badly.
        """
        self._refuse_to_wait()
        for pause in pauses(timeout):
            if not (unfinished := self._unfinished()):
                return self._values()
            if pause is None:
                raise self._too_late(unfinished, timeout)
            time.sleep(pause)
        raise AssertionError

    async def ajoin(self, timeout: float | None = None) -> list[T]:
        """See join()."""
        await sync_to_async(self._refuse_to_wait, thread_sensitive=True)()
        for pause in pauses(timeout):
            if not (unfinished := await sync_to_async(self._unfinished, thread_sensitive=True)()):
                return await sync_to_async(self._values, thread_sensitive=True)()
            if pause is None:
                raise self._too_late(unfinished, timeout)
            await asyncio.sleep(pause)
        raise AssertionError

    def _refuse_to_wait(self) -> None:
        for result in self:
            if result.state not in ENDS:
                result._refuse_to_wait()
                return

    def _too_late(self, unfinished: int, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"{unfinished} of {len(self)} runs had not ended after {timeout or 0:g} s.")

    def _values(self) -> list[T]:
        self.refresh()
        return [result.return_value for result in self]

    @property
    def progress(self) -> dict[State, int]:
        """How many of the runs are in each state, now. One statement."""
        from django_manta.result import states_of

        return dict(Counter(states_of(self)))

    def cancel(self, reason: str = "") -> None:
        """Ask that none of them goes on."""
        from django_manta.result import cancel_all

        cancel_all(self, reason)

    def _unfinished(self) -> int:
        from django_manta.result import states_of

        return sum(state not in ENDS for state in states_of(self))

    @property
    def ids(self) -> list[UUID]:
        return [UUID(result.id) for result in self]


def gather[T](*results: "TaskResult[Any, T] | Iterable[TaskResult[Any, T]]") -> Group[T]:
    """A group of these results; groups among them are taken apart."""
    group: Group[T] = Group()
    for each in results:
        several: Iterable[Any] = (
            [each] if isinstance(each, DjangoTaskResult) or not isinstance(each, Iterable) else each
        )
        for result in several:
            if not isinstance(result, DjangoTaskResult):
                raise TypeError(f"gather() takes results and groups of results, not {result!r:.200}.")
            group.append(cast("TaskResult[Any, T]", result))
    return group


@overload
def value_of[T](result: Group[T]) -> list[T]: ...
@overload
def value_of[T](result: "TaskResult[Any, T]") -> T: ...
def value_of(result: Any) -> Any:
    """
    ``result`` itself, with the type of its value: for type checkers, where a result is given as an argument.

        report.enqueue(value_of(extract.enqueue("2026-11-15")))
    """
    return result
