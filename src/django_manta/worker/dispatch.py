"""
Which child gets which run, and how many at a time.

A window per child, measured in work, not in runs: it starts at one run and grows as the task proves
to be short, until a child holds about ``WINDOW_SECONDS`` of work. When the head of a window takes
longer than ``SLOW_SECONDS`` its unstarted mates are taken back and given to others.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from django_manta.execution.runners.processes import Child, Flight, Pool

#: How much work a child may hold, so that it never waits for the next claim.
WINDOW_SECONDS = 0.02

#: And how many runs at the most.
WINDOW_RUNS = 64

#: A head that takes longer than this gives up its mates.
SLOW_SECONDS = 0.05

#: How much a new measurement counts against what was known.
_WEIGHT = 0.2


class Durations:
    """What runs have taken lately: each task, and all together."""

    def __init__(self) -> None:
        self._by_task: dict[str, float] = {}
        self.overall: float | None = None

    def note(self, task: str, seconds: float) -> None:
        self._by_task[task] = _blend(self._by_task.get(task), seconds)
        self.overall = _blend(self.overall, seconds)

    def of(self, task: str) -> float | None:
        return self._by_task.get(task)


def _blend(known: float | None, seconds: float) -> float:
    # Slowness is believed at once, quickness only when it lasts: a window too small costs a
    # round trip, one too large holds runs up.
    if known is None or seconds > known * 4:
        return seconds
    return known + _WEIGHT * (seconds - known)


@dataclass(frozen=True, slots=True)
class Tier:
    """Slots kept for runs whose deadline is within ``horizon`` seconds."""

    slots: int
    horizon: float


class Dispatcher:
    """The claimed runs that no child has yet, and the rules by which they get one."""

    def __init__(self, pool: Pool, tiers: list[Tier], async_slots: int) -> None:
        self.pool = pool
        self.async_slots = async_slots
        self.durations = Durations()
        self.backlog: deque[Flight] = deque()
        self._horizons = [tier.horizon for tier in tiers for _ in range(tier.slots)]

    # -- how much to claim -----------------------------------------------------------------------

    def room(self) -> dict[float | None, int]:
        """How many runs are wanted: with any deadline (None), and for each reserved horizon."""
        wanted: dict[float | None, int] = {}
        window = self._window()
        for child, horizon in self._lanes():
            free = window - len(child.held)
            if free > 0 and not self._slow(child) and not self._exclusive(child):
                wanted[horizon] = wanted.get(horizon, 0) + free
        spare = len(self.backlog)
        if None in wanted:
            wanted[None] = max(wanted[None] - spare, 0)
        return {horizon: count for horizon, count in wanted.items() if count > 0}

    def _window(self) -> int:
        overall = self.durations.overall
        if overall is None:
            return 1
        return max(1, min(WINDOW_RUNS, int(WINDOW_SECONDS / max(overall, 1e-6))))

    # -- handing out -----------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Give the backlog to whoever may have it."""
        if not self.backlog:
            return
        given: dict[int, list[Flight]] = {}
        load = {child.pid: self._load(child) for child, _ in self._lanes()}
        kept: deque[Flight] = deque()
        while self.backlog:
            flight = self.backlog.popleft()
            child = self._child_for(flight, load, given)
            if child is None:
                kept.append(flight)
            else:
                given.setdefault(child.pid, []).append(flight)
                load[child.pid] = load.get(child.pid, 0.0) + self._expected(flight)
        self.backlog = kept
        for pid, flights in given.items():
            self.pool.give(self.pool.children[pid], flights)

    def _child_for(self, flight: Flight, load: dict[int, float], given: dict[int, list[Flight]]) -> Child | None:
        if flight.concurrent and not flight.claim.suspect:
            child = self.pool.async_child()
            if child is None:
                return None
            holds = len(child.held) + len(given.get(child.pid, ()))
            return child if holds < self.async_slots else None
        best = None
        for child, horizon in self._lanes():
            if horizon is not None and not _is_within(flight, horizon):
                continue
            holds = len(child.held) + len(given.get(child.pid, ()))
            if not self._may_hold(child, flight, holds, load[child.pid], given):
                continue
            if best is None or load[child.pid] < load[best.pid]:
                best = child
        return best

    def _may_hold(self, child: Child, flight: Flight, holds: int, load: float, given: dict[int, list[Flight]]) -> bool:
        if holds == 0:
            return True
        alone = flight.claim.suspect or any(other.claim.suspect for other in given.get(child.pid, ()))
        if alone or self._exclusive(child) or self._slow(child) or holds >= WINDOW_RUNS:
            return False
        # A task nobody has seen finish yet travels in a window of one.
        known = self.durations.of(flight.claim.task)
        return known is not None and load + known <= WINDOW_SECONDS

    def _lanes(self) -> Iterator[tuple[Child, float | None]]:
        """The children for plain functions, each with the horizon it is reserved for, if any."""
        children = sorted(self.pool.sync_children(), key=lambda child: child.pid)
        for place, child in enumerate(children):
            yield child, self._horizons[place] if place < len(self._horizons) else None

    def _expected(self, flight: Flight) -> float:
        return self.durations.of(flight.claim.task) or 0.0

    def _load(self, child: Child) -> float:
        return sum(self._expected(flight) for flight in child.held.values())

    def _exclusive(self, child: Child) -> bool:
        return any(flight.claim.suspect for flight in child.held.values())

    def _slow(self, child: Child) -> bool:
        current = child.current
        return current is not None and (self.durations.of(current.claim.task) or 0.0) >= SLOW_SECONDS

    # -- taking back -----------------------------------------------------------------------------

    def tend(self, now: float) -> float | None:
        """Take back what waits behind a slow head. When to look again."""
        next_time: float | None = None
        for child in self.pool.children.values():
            if child.slots or len(child.held) < 2:
                continue
            current = child.current
            if current is None or current.started_at is None:
                continue
            due = current.started_at + SLOW_SECONDS
            if now >= due:
                self.durations.note(current.claim.task, now - current.started_at)
                self.pool.take_back(child)
            else:
                next_time = due if next_time is None else min(next_time, due)
        return next_time

    def stale(self, now: float) -> list[Flight]:
        """Runs that have waited here for a child longer than they should: others may be free."""
        stale = [flight for flight in self.backlog if now - flight.claimed_at > SLOW_SECONDS]
        if stale:
            self.backlog = deque(flight for flight in self.backlog if flight not in stale)
        return stale


def _is_within(flight: Flight, horizon: float) -> bool:
    # Both by the database's clock: when it was claimed, and when it should be done.
    left = flight.claim.deadline - flight.claim.last_attempted_at
    return left.total_seconds() <= horizon
