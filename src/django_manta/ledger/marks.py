"""
Where a worker's claims begin while there is a backlog: behind what it has taken already.

A run that was claimed leaves its entry in the index of READY runs until the database has cleaned up there, which it
cannot do as long as any transaction is older than the claim. A report that takes ten minutes makes every claim walk
over the entries of all that was done in ten minutes, and each is slower than the last. So a worker whose batch was
full remembers, for each priority, the last that it took, and begins behind it.

What becomes READY before that place (given back, tried again, due, or committed late) would be passed over. Therefore
all of the queue is looked at when a batch is not full, and otherwise again and again: every REST_SECONDS, unless
looking takes so long that it would cost more than a twentieth of the time.
"""

import time
from collections.abc import Iterable
from json import dumps
from typing import NamedTuple
from uuid import UUID

from django_manta.ledger.records import Claimed
from django_manta.moments import to_datetime

#: How long one may go without a look at the whole queue, and how many times as long as such a look takes.
REST_SECONDS = 0.25
REST_TIMES = 20

#: With more priorities than this a look at the whole queue is not dearer.
PRIORITIES = 8


class Mark(NamedTuple):
    """The last run of a priority that was taken."""

    deadline: int
    id: UUID


class Marks:
    """The marks of one worker, by queue and priority."""

    def __init__(self) -> None:
        self._marks: dict[str, dict[int, Mark]] = {}
        self._look_at = 0.0

    def hold(self, queues: Iterable[str]) -> bool:
        """Whether a claim from these queues may begin behind them."""
        return time.monotonic() < self._look_at and any(queue in self._marks for queue in queues)

    def parts(self, queue: str) -> str:
        """Where in a queue something may be, best first, as JSON."""
        parts: list[dict[str, object]] = []
        last: int | None = None
        for priority, mark in sorted(self._marks.get(queue, {}).items(), reverse=True):
            # Between the priorities that are marked there may be others.
            parts.append({"below": last, "above": priority})
            parts.append({"priority": priority, "deadline": str(to_datetime(mark.deadline)), "id": mark.id.hex})
            last = priority
        parts.append({"below": last, "above": None})
        return dumps(parts)

    def looked(self, seconds: float) -> None:
        """All was looked at, which took so long."""
        self._marks.clear()
        self._look_at = time.monotonic() + max(REST_SECONDS, REST_TIMES * seconds)

    def took(self, claims: Iterable[Claimed]) -> None:
        """A full batch. Whatever was READY before the last of each priority is taken, or others are taking it."""
        for claim in claims:
            marks = self._marks.setdefault(claim.queue, {})
            mark = Mark(claim.deadline, claim.id)
            if claim.priority not in marks or marks[claim.priority] < mark:
                marks[claim.priority] = mark
        for queue in [queue for queue, marks in self._marks.items() if len(marks) > PRIORITIES]:
            del self._marks[queue]
