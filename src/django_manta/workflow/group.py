"""A group: a sequence of results that can be given, waited for and looked at as one."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.tasks.base import TaskResult as DjangoTaskResult

from django_manta.states import ENDS, State

if TYPE_CHECKING:
    from django_manta.result import TaskResult

#: A waiting ``join`` looks this often: at first, and at most.
_FIRST_LOOK, _LAST_LOOK = 0.01, 0.5


class Group[T](list["TaskResult[Any, T]"]):
    """
    The results of several runs, as ``map``, ``starmap`` and ``gather`` return them.

    Given as an argument it becomes the list of their values; in ``after`` it stands for each of them.
    """

    def manta_references(self) -> list[str]:
        return [result.id for result in self]

    def refresh(self) -> None:
        """Reload every result: two statements in all."""
        from django_manta.result import refresh_all

        refresh_all(self)

    def join(self, timeout: float | None = None) -> list[T]:
        """
        Wait until all have ended, and return their values in order.

        Raise TimeoutError after ``timeout`` seconds, ValueError if one ended badly.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_LOOK
        for result in self:
            if result.state not in ENDS:
                result._refuse_to_wait()
                break
        while unfinished := self._unfinished():
            if limit is not None and time.monotonic() >= limit:
                raise TimeoutError(f"{unfinished} of {len(self)} runs had not ended after {timeout:g} s.")
            time.sleep(pause if limit is None else max(0.0, min(pause, limit - time.monotonic())))
            pause = min(pause * 1.5, _LAST_LOOK)
        self.refresh()
        return [result.return_value for result in self]

    async def ajoin(self, timeout: float | None = None) -> list[T]:
        """See join()."""
        return await sync_to_async(self.join, thread_sensitive=False)(timeout)

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


def gather(*results: "TaskResult[Any, Any] | Iterable[TaskResult[Any, Any]]") -> Group[Any]:
    """A group of these results; groups among them are taken apart."""
    group: Group[Any] = Group()
    for each in results:
        if isinstance(each, DjangoTaskResult):
            group.append(each)
        elif isinstance(each, Iterable):
            group.extend(each)
        else:
            raise TypeError(f"gather() takes results and groups of results, not {each!r}.")
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
