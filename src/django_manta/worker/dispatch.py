"""
How much to claim, and which child gets which run.

A window per child, measured in work, not in runs: it starts at one run and grows as the task proves
to be short, until a child holds about ``WINDOW_SECONDS`` of work, or the most that it may hold, which grows
while there is a backlog. When the head of a window takes longer than ``SLOW_SECONDS`` its unstarted mates
are taken back and given to others. For a child with a longer run, whose length is known, the next one is
fetched a moment before it is done.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django_manta.execution.durations import Durations
from django_manta.execution.runners.flights import Flight
from django_manta.execution.runners.processes import Child, Pool

#: How much work a child may hold, so that it never waits for the next claim.
WINDOW_SECONDS = 0.03

#: And how many runs at the most: in the first window after a rest, and in the end. While the first is claimed the
#: children have nothing to do, and the first ends are settled beside what is executed after them. It grows by so much
#: with each claim that brings at least half of what there was room for.
FIRST_RUNS = 64
WINDOW_RUNS = 1024
GROWTH = 1.5

#: The most that is claimed at once.
CLAIM_LIMIT = 1_000

#: The first helping: of a backlog so many are settled before more is claimed, because what is claimed and executed
#: after them takes the processors that would settle them. No longer than HELPING_SECONDS, and for the last HELPING_LEFT
#: no longer than HELPING_LEFT_SECONDS: they may be long, or locked by somebody. And nobody waits where no more than
#: HELPING_SMALL are in hand at a time: then runs take their time, and it is the children who would wait.
HELPING_RUNS, HELPING_SMALL, HELPING_SECONDS = 1_000, 256, 0.25
HELPING_LEFT, HELPING_LEFT_SECONDS = 20, 0.01

#: Of so many queues that nothing is claimed from any more one remembers what they held.
STALE_QUEUES = 100

#: A head that takes longer than this gives up its mates, and what waits longer for a child is given back.
SLOW_SECONDS = 0.05

#: So long before a run should be done, the next one is fetched.
FETCH_SECONDS = 0.015


@dataclass(frozen=True, slots=True)
class Tier:
    """Slots kept for runs whose deadline is within ``horizon`` seconds."""

    slots: int
    horizon: float


@dataclass(frozen=True, slots=True)
class Appetite:
    """How many runs are wanted, of which queues, and how near their deadline must be."""

    limit: int
    queues: Sequence[str]
    horizon: float | None = None
    #: Tasks that are not wanted: coroutines, when there is no slot for them.
    not_tasks: Sequence[str] = ()


@dataclass(slots=True)
class _Lane:
    """A child for plain functions while runs are being handed out."""

    child: Child
    horizon: float | None
    holds: int
    #: How many it may hold.
    limit: int
    load: float
    #: It takes no company: it is slow, or what it holds is suspect.
    closed: bool
    given: list[Flight]


class Dispatcher:
    """The claimed runs that no child has yet, and the rules by which they get one."""

    def __init__(
        self, pool: Pool, tiers: Sequence[Tier], async_slots: int, in_hand: Callable[[], int] = lambda: 0
    ) -> None:
        self.pool = pool
        #: How many runs the worker has claimed and not settled.
        self._in_hand = in_hand
        self.async_slots = async_slots
        self.durations = Durations()
        self.backlog: deque[Flight] = deque()
        #: How many a child may hold at present, and how many plain functions the last claim was to bring.
        self._most = FIRST_RUNS
        self._asked = 0
        #: How many of the present backlog were settled, and since when there is more of it than the first helping.
        self._settled = 0
        self._limited_since: float | None = None
        #: Since when all of that is settled but for the last few.
        self._left_since: float | None = None
        #: The last claim brought suspects: they travel alone, so no more is claimed than can start.
        self.cautious = False
        self._horizons = [tier.horizon for tier in tiers for _ in range(tier.slots)]
        #: What queues have been seen to hold: coroutines, plain functions, or both.
        self._kinds: dict[str, set[bool]] = {}
        #: The tasks that were seen to be coroutines.
        self._coroutines: set[str] = set()

    def take_on(self, flights: Sequence[Flight]) -> None:
        """Claimed runs that are to be executed here."""
        if self._asked:
            is_filled = 2 * sum(not flight.concurrent for flight in flights) >= self._asked
            self._most = min(WINDOW_RUNS, int(GROWTH * self._most)) if is_filled else FIRST_RUNS
            if not is_filled:
                # What is in hand now is not of the next backlog.
                self._settled, self._limited_since, self._left_since = -self._plain_in_hand(), None, None
        suspects = False
        for flight in flights:
            self._kinds.setdefault(flight.claim.queue, set()).add(flight.concurrent)
            if flight.concurrent:
                self._coroutines.add(flight.claim.task)
            suspects = suspects or flight.claim.suspect
            self.backlog.append(flight)
        self.cautious = suspects

    def take_back(self, flights: Sequence[Flight], now: float) -> None:
        """Runs that a child did not start: first in line for the next one."""
        for flight in flights:
            flight.waiting_since = now
        self.backlog.extendleft(reversed(flights))

    def settled(self, count: int) -> None:
        """The ledger has said what became of so many."""
        self._settled += count

    # -- how much to claim -----------------------------------------------------------------------

    def appetite(self, queues: Sequence[str], now: float) -> list[Appetite]:
        """
        What to claim now.

        Queues that hold nothing but coroutines are asked for as many as their child has slots for;
        the others for what the children for plain functions can take. Neither waits for the other.
        """
        if len(self._kinds) > len(queues) + STALE_QUEUES:
            self._kinds = {queue: kinds for queue, kinds in self._kinds.items() if queue in set(queues)}
        waiting = sum(1 for flight in self.backlog if flight.concurrent)
        only_async = [queue for queue in queues if self._kinds.get(queue) == {True}]
        wanted = self._room(now)
        plain = self._limited(wanted.pop(None, 0) - (len(self.backlog) - waiting), now)
        found = []
        self._asked = 0
        slots = self._async_slots(waiting)
        if plain > 0:
            # Where no more coroutines can be started, only what stands among and behind them is wanted.
            full = slots <= 0
            others = [queue for queue in queues if full or queue not in only_async]
            if others:
                self._asked = min(plain, CLAIM_LIMIT)
                found.append(Appetite(plain, others, not_tasks=tuple(sorted(self._coroutines)) if full else ()))
        if only_async and slots > 0 and self.pool.async_child() is not None:
            # Suspects among them are executed one by one, where plain functions are.
            found.append(Appetite(min(slots, max(plain, 0)) if self.cautious else slots, only_async))
            found = [want for want in found if want.limit > 0]
        found += [Appetite(count, queues, horizon) for horizon, count in wanted.items() if count > 0]
        return found

    def _limited(self, room: int, now: float) -> int:
        """How many of those there is room for are part of the first helping, if that is not settled yet."""
        if room <= 0 or self._settled >= HELPING_RUNS:
            return room
        in_hand = self._plain_in_hand()
        left = max(0, HELPING_RUNS - self._settled - in_hand)
        if left >= room or in_hand + room <= HELPING_SMALL:
            return room
        if self._limited_since is None:
            self._limited_since = now
        if self._left_since is None and self._settled >= HELPING_RUNS - HELPING_LEFT:
            self._left_since = now
        return room if any(now >= until for until in self._limits()) else left

    def _limits(self) -> list[float]:
        """When the first helping is not waited for any more."""
        limits = (self._limited_since, HELPING_SECONDS), (self._left_since, HELPING_LEFT_SECONDS)
        return [since + seconds for since, seconds in limits if since is not None]

    def _plain_in_hand(self) -> int:
        """How many runs the worker has claimed and not settled, coroutines under way apart."""
        return self._in_hand() - sum(len(child.held) for child in self.pool.children.values() if child.slots)

    def _async_slots(self, waiting: int) -> int:
        """How many more coroutines can be started; as many as ever until their child is there."""
        held = sum(len(child.held) for child in self.pool.children.values() if child.slots)
        return self.async_slots - waiting - held

    def _room(self, now: float) -> dict[float | None, int]:
        """How many runs the children for plain functions can take: with any deadline (None), and by horizon."""
        wanted: dict[float | None, int] = {}
        window = 1 if self.cautious else self._window()
        for child, horizon in self._lanes():
            holds = len(child.held)
            if holds == 0:
                free = window
            elif holds > window // 2:
                # Not for a run or two: a claim costs as much for one as for twenty.
                free = 0
            elif self._is_closed(child):
                free = 0
            else:
                free = window - holds
            if free == 0 and horizon is None and not self.cautious:
                due = self._fetch_at(child)
                free = 1 if due is not None and due <= now <= due + FETCH_SECONDS else 0
            free = min(free, self._limit(child) - holds)
            if free > 0:
                wanted[horizon] = wanted.get(horizon, 0) + free
        return wanted

    def _fetch_at(self, child: Child) -> float | None:
        """When to fetch what follows a run that takes its time, if one knows how long."""
        head = child.head
        if head is None or head.started_at is None or len(child.held) > 1:
            return None
        known = self.durations.of(head.claim.task)
        return None if known is None or known < FETCH_SECONDS else head.started_at + known - FETCH_SECONDS

    def next_fetch(self, now: float) -> float | None:
        """When room is made for a run that follows one under way, or the first helping is not waited for any more."""
        times = [self._fetch_at(child) for child, horizon in self._lanes() if horizon is None]
        times += self._limits()
        return min((due for due in times if due is not None and due > now), default=None)

    def _window(self) -> int:
        overall = self.durations.overall
        if overall is None:
            return 1
        return max(1, min(self._most, int(WINDOW_SECONDS / max(overall, 1e-6))))

    # -- handing out -----------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Give the backlog to whoever may have it."""
        if not self.backlog:
            return
        lanes = [
            _Lane(child, horizon, len(child.held), self._limit(child), self._load(child), self._is_closed(child), [])
            for child, horizon in self._lanes()
        ]
        concurrent: list[Flight] = []
        slots = self._async_room()
        kept: deque[Flight] = deque()
        for flight in self.backlog:
            if flight.concurrent and not flight.claim.suspect:
                if len(concurrent) < slots:
                    concurrent.append(flight)
                else:
                    kept.append(flight)
                continue
            known = self.durations.of(flight.claim.task)
            lane = self._lane_for(flight, known, lanes)
            if lane is None:
                kept.append(flight)
                if flight.claim.suspect:
                    self._make_room(lanes)
                continue
            lane.given.append(flight)
            lane.holds += 1
            lane.load += known or 0.0
            # Nobody follows what may take long.
            lane.closed = lane.closed or known is None or flight.claim.suspect
        self.backlog = kept
        for lane in lanes:
            if lane.given:
                self.pool.give(lane.child, lane.given)
        if concurrent:
            child = self.pool.async_child()
            assert child is not None
            self.pool.give(child, concurrent)

    def _async_room(self) -> int:
        if not any(flight.concurrent for flight in self.backlog):
            return 0
        child = self.pool.async_child()
        return 0 if child is None else self.async_slots - len(child.held)

    def _lane_for(self, flight: Flight, known: float | None, lanes: list[_Lane]) -> _Lane | None:
        """The least loaded child that may have it."""
        best, least = None, 0.0
        suspect, seconds = flight.claim.suspect, known or 0.0
        for lane in lanes:
            holds = lane.holds
            if holds >= lane.limit:
                continue
            if lane.horizon is not None and not _is_within(flight, lane.horizon):
                continue
            # A suspect travels alone.
            if holds and (lane.closed or suspect or lane.load + seconds > WINDOW_SECONDS):
                continue
            load = lane.load if holds else 0.0
            if best is None or load < least or (load == least and holds < best.holds):
                best, least = lane, load
        return best

    def _make_room(self, lanes: list[_Lane]) -> None:
        """Let the child that is done first become empty, for a suspect that waits."""
        open_lanes = [lane for lane in lanes if not lane.closed]
        if open_lanes:
            min(open_lanes, key=lambda lane: lane.load).closed = True

    def _lanes(self) -> list[tuple[Child, float | None]]:
        """The children for plain functions, each with the horizon it is reserved for, if any."""
        horizons = self._horizons
        return [
            (child, horizons[child.lane] if child.lane < len(horizons) else None)
            for child in sorted(self.pool.sync_children(), key=lambda child: child.lane)
        ]

    def _limit(self, child: Child) -> int:
        left = self.pool.left(child)
        return WINDOW_RUNS if left is None else min(WINDOW_RUNS, len(child.held) + left)

    def _load(self, child: Child) -> float:
        expected = self.durations.of
        return sum(expected(flight.claim.task) or 0.0 for flight in child.held.values())

    def _is_closed(self, child: Child) -> bool:
        """
        Whether it takes no company: it holds a suspect, which travels alone, or a run that takes its time,
        or may: the last one it was given is of a task that nobody has seen finish.
        """
        head = child.head
        if head is None:
            return False
        last = next(reversed(child.held.values()))
        known = self.durations.of
        return (
            head.claim.suspect
            or known(last.claim.task) is None
            or (head.started_at is not None and (known(head.claim.task) or 0.0) >= SLOW_SECONDS)
        )

    # -- taking back -----------------------------------------------------------------------------

    def tend(self, now: float) -> float | None:
        """Take back what waits behind a slow head. When to look again."""
        next_time: float | None = None
        for child in self.pool.children.values():
            if child.slots or len(child.held) < 2:
                continue
            head = child.head
            if head is None or head.started_at is None:
                continue
            due = head.started_at + SLOW_SECONDS
            if now >= due:
                self.durations.note(head.claim.task, now - head.started_at)
                self.pool.take_back(child)
            else:
                next_time = due if next_time is None else min(next_time, due)
        return next_time

    def overdue(self, now: float) -> list[Flight]:
        """Runs that have waited here longer than they should: the executors of other workers may be free."""
        if not self.backlog:
            return []
        # The child for coroutines is started when the first one comes, which waits for it.
        starting = not self.pool.has_async_child
        overdue: list[Flight] = []
        kept: deque[Flight] = deque()
        for flight in self.backlog:
            waits = now - flight.waiting_since <= SLOW_SECONDS or (flight.concurrent and starting)
            (kept if waits else overdue).append(flight)
        self.backlog = kept
        return overdue


def _is_within(flight: Flight, horizon: float) -> bool:
    # Both by the database's clock: when it was claimed, and when it should be done.
    return flight.claim.deadline - flight.claim.last_attempted_at <= horizon * 1_000_000
