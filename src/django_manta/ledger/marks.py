"""
Where a worker's claims begin: behind what it has taken already.

A run that was claimed leaves its entry in the index of READY runs until the database has cleaned up there, which it
cannot do as long as any transaction is older than the claim. A report that takes ten minutes makes every claim walk
over the entries of all that was done in ten minutes, and each is slower than the last. So a worker remembers, for each
queue and priority, the last run that it took, and begins behind it.

What becomes READY before that place (given back, tried again, due, or committed late) would be passed over. Therefore
all of the queue is looked at again and again: whenever a batch is not full, as long as that is cheap; and otherwise
after REST_TIMES as long as it took the last time, so that it costs no more than a twentieth of the time.

A claim that its budget of bytes cuts off has locked more rows than it takes. Its own mark moves to the last run that it
took, and the next claim goes on from there. Other workers pass over what is locked for that moment, and their marks may
move behind it: like all that is before a mark, it is found by their next look at the whole queue.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from json import dumps
from typing import NamedTuple
from uuid import UUID

from django_manta.ledger.records import Claimed
from django_manta.moments import to_datetime

#: How long one goes without a look at the whole queue while there is a backlog, and how many times as long as it takes;
#: and never longer than this: whatever waits before the mark waits so long.
REST_SECONDS = 0.25
REST_TIMES = 20
LONGEST_SECONDS = 20.0

#: A run whose row the database lets nobody change is tried again after so long.
STUCK_SECONDS = 60.0

#: A look that takes no longer is worth it whenever a batch is not full.
CHEAP_SECONDS = 0.005

#: To claim a run takes about so long by itself.
CLAIM_SECONDS = 0.0001

#: For so many priorities the last run is remembered: for the highest, which are looked at first.
PRIORITIES = 8

#: And for so many queues, the last that were looked at: there may be one for each customer, and others tomorrow.
REMEMBERED = 100

#: Of more queues than this all are looked at in one statement: behind marks each would be one of its own.
QUEUES = 4


class Mark(NamedTuple):
    """The last run of a priority that was taken."""

    deadline: int
    id: UUID


@dataclass(slots=True)
class _Line:
    """One queue."""

    marks: dict[int, Mark] = field(default_factory=dict)
    look_at: float = 0.0
    #: How long it took to look at all of it.
    seconds: float = 0.0
    #: It gave as many as were asked for the last time: there are more.
    is_long: bool = False
    #: The last look was slow in company: by itself it may not have been.
    is_in_doubt: bool = False

    @property
    def is_dear(self) -> bool:
        return self.seconds > CHEAP_SECONDS


class Marks:
    """The marks of one worker, by queue and priority."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        #: When a queue has to be looked at that was not, although it gave less than was asked for.
        self.look_at: float | None = None
        #: Runs whose rows the database lets nobody change, and until when they are passed over.
        self.stuck: dict[str, float] = {}

    def are_stuck(self, ids: Iterable[str]) -> None:
        self.stuck |= dict.fromkeys(ids, time.monotonic() + STUCK_SECONDS)

    def still_stuck(self) -> list[str]:
        now = time.monotonic()
        self.stuck = {run_id: until for run_id, until in self.stuck.items() if until > now}
        return list(self.stuck)

    def hold(self, queue: str) -> bool:
        """Whether a claim from this queue should begin behind them: without a backlog it is quick to look at all."""
        line = self._lines.get(queue)
        if line is None or not line.marks or not (line.is_long or line.is_dear):
            return False
        return time.monotonic() < line.look_at

    def is_dear(self, queue: str) -> bool:
        """Whether to look at all of it takes so long that it is not done whenever there is nothing behind the mark."""
        line = self._lines.get(queue)
        return line is not None and line.is_dear

    def are_dear(self, queues: Iterable[str]) -> bool:
        return any(map(self.is_dear, queues))

    def is_in_doubt(self, queue: str) -> bool:
        """Whether the next look at all of it should be one by itself, so that one knows how long that takes."""
        line = self._lines.get(queue)
        return line is not None and line.is_in_doubt

    def put_off(self, queue: str) -> None:
        """All of the queue should be looked at, and will be when that is due."""
        due = self._lines[queue].look_at
        self.look_at = due if self.look_at is None else min(self.look_at, due)

    def parts(self, queue: str) -> str:
        """Where in a queue something may be, best first, as JSON."""
        parts: list[dict[str, object]] = []
        last: int | None = None
        for priority, mark in sorted(self._lines[queue].marks.items(), reverse=True):
            # Between the priorities that are marked there may be others.
            parts.append({"below": last, "above": priority})
            parts.append({"priority": priority, "deadline": str(to_datetime(mark.deadline)), "id": mark.id.hex})
            last = priority
        parts.append({"below": last, "above": None})
        return dumps(parts)

    def took(self, queue: str, claims: Sequence[Claimed], *, full: bool) -> None:
        """
        From behind the marks, or from a whole queue, as many as were asked for (``full``) or less. Whatever was READY
        before the last of each priority is taken, or others are taking it.
        """
        line = self._lines[queue]
        line.is_long = full
        marks = line.marks
        # They stand in line: the last of a priority is the one that counts.
        for priority, claim in {claim.priority: claim for claim in claims}.items():
            mark = marks.get(priority)
            if mark is None or mark < (claim.deadline, claim.id):
                marks[priority] = Mark(claim.deadline, claim.id)
        while len(marks) > PRIORITIES:
            del marks[min(marks)]

    def looked(
        self, queue: str, claims: Sequence[Claimed], seconds: float, *, full: bool, in_company: bool = False
    ) -> None:
        """
        All of a queue was looked at, from its beginning, which took so long; up to the last of ``claims``, if these are
        as many as were asked for. ``in_company``, some of that may be due to what was done together with it: that
        alone makes no queue a dear one.
        """
        # The one that was looked at last comes last.
        line = self._lines[queue] = self._lines.pop(queue) if queue in self._lines else _Line()
        if len(self._lines) > REMEMBERED:
            del self._lines[next(iter(self._lines))]
        if full:
            # Of a priority that it did not come to, something may be before the mark. Of those above it is all taken.
            last = min((claim.priority for claim in claims), default=None)
            line.marks = {priority: mark for priority, mark in line.marks.items() if last is None or priority > last}
        # Without what it takes to claim them, wherever they are.
        line.seconds = seconds - CLAIM_SECONDS * len(claims)
        line.is_in_doubt = in_company and line.is_dear
        if line.is_in_doubt:
            line.seconds = seconds = 0.0
        line.look_at = time.monotonic() + min(max(REST_SECONDS, REST_TIMES * seconds), LONGEST_SECONDS)
        self.took(queue, claims, full=full)
