"""
What a worker has asked foremen, and which of them do not answer.

A foreman that does not answer is not known to be dead: its process may be stopped, or its event loop blocked, while
what it has handed out is executed. So nothing more is claimed for it, none of its runs is started again, and the
worker's row says so, until it answers or Ray says that it is gone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

#: A foreman that leaves a question unanswered for so long, and says nothing else either, does not answer. Each is asked
#: every ROLL_CALL_SECONDS.
FOREMAN_SECONDS = 30.0

#: How often that is looked at. With much more between two looks this process was stopped or blocked itself.
_LOOK_SECONDS = 1.0
_BLOCKED_SECONDS = 10.0

type Then = Callable[[dict[str, Any]], None]


@dataclass(slots=True, eq=False)
class Question:
    foreman: str
    then: Then
    asked_at: float


class Questions:
    """The questions of one worker that are not answered yet."""

    def __init__(self) -> None:
        #: The foremen that do not answer, and since when.
        self.silent: dict[str, float] = {}
        self._open: dict[int, Question] = {}
        self._numbers = count(1)
        self._heard_at: dict[str, float] = {}
        self._looked_at = 0.0
        #: No silence is counted from before this.
        self._not_before = 0.0

    def add(self, foreman: str, then: Then) -> int:
        number = next(self._numbers)
        self._open[number] = Question(foreman, then, time.monotonic())
        return number

    def is_open(self, number: int | None) -> bool:
        return number in self._open

    def answered(self, number: int) -> Question | None:
        return self._open.pop(number, None)

    def heard_from(self, foreman: str) -> float | None:
        """It gave a sign of life. If it had been silent: for how long."""
        now = self._heard_at[foreman] = time.monotonic()
        since = self.silent.pop(foreman, None)
        return None if since is None else now - since

    def drop(self, foreman: str) -> None:
        """It is gone, or refuses to answer."""
        self._open = {number: each for number, each in self._open.items() if each.foreman != foreman}
        self.silent.pop(foreman, None)

    def clear(self) -> None:
        self._open.clear()
        self._heard_at.clear()
        self.silent.clear()

    def look(self, now: float) -> list[str]:
        """Which foremen have become silent since the last look."""
        if now - self._looked_at < _LOOK_SECONDS:
            return []
        if now - self._looked_at > _BLOCKED_SECONDS:
            self._not_before = now
        self._looked_at = now
        new = []
        for each in self._open.values():
            since = max(each.asked_at, self._heard_at.get(each.foreman, 0.0), self._not_before)
            if now - since > FOREMAN_SECONDS and each.foreman not in self.silent:
                self.silent[each.foreman] = since
                new.append(each.foreman)
        return new
