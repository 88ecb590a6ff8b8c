"""
Outcomes on their way to the ledger, in batches.

An outcome waits a moment for company and no longer. What the database could not take (it was away,
somebody held the row) stays here and is tried again; nothing is dropped before the ledger has said
what became of it. What the database refuses, whatever is made of it, is put aside: it is tried again by itself, later
each time, and the others go on.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from django.db import Error as DatabaseError

from django_manta.ledger import Claimed, Ledger, Settleable, Settled, Written, conflicts
from django_manta.states import State
from django_manta.worker.scribe import Scribe

logger = logging.getLogger("django_manta")

#: How long an outcome waits for company: when others are likely to follow at once, and when not.
LINGER_SECONDS = 0.002
BUSY_LINGER_SECONDS = 0.02

#: How many travel together, and how many are worth a journey while more are coming.
BATCH = 1_000
WORTHWHILE = 100

#: And how many bytes of results: what is larger goes alone. They need not be weighed as long as none is heavy.
BATCH_BYTES = 16 * 1024 * 1024
HEAVY_BYTES = BATCH_BYTES // BATCH

#: A worker with so many outcomes that are not settled, or so many bytes of heavy ones, claims no more: if it died, what
#: it has executed would be executed again. Nor does it take more from its children, who wait with them.
FULL = 3 * BATCH
FULL_BYTES = 4 * BATCH_BYTES

#: With this many outcomes that the database refuses, or bytes of them, a worker claims no more either, because it keeps
#: them all. It goes on hearing its children.
FULL_ASIDE = FULL
FULL_ASIDE_BYTES = 4 * FULL_BYTES

#: From so many on the loop does not wait while they are settled; and so many batches are there at a time, one of them
#: under way.
MANY = 50
BATCHES = 2

#: Of no more than so many, what becomes ready by them is claimed in the same transaction.
FEW = 20

#: A row that somebody holds is tried again after so long.
LOCKED_SECONDS = 0.02

#: What the database refuses is tried again after so long, then after twice as long, and so on up to the last.
ASIDE_SECONDS, LONGEST_ASIDE_SECONDS = 1.0, 60.0


#: An execution, what became of it, and the state that its run reached; None where it was no longer ours.
type Moved = tuple[Claimed, Settleable, State | None]


class Waiting(NamedTuple):
    claim: Claimed
    settlement: Settleable
    since: float


class Aside(NamedTuple):
    """
    What the database refused: when to try it again, how long it has waited for that, and its bytes if it is heavy.
    """

    one: Waiting
    due: float
    delay: float
    weight: int


class Settler:
    """The outcomes of one worker that are not settled yet."""

    def __init__(self, worker: str, scribe: Scribe | None = None) -> None:
        self.worker = worker
        #: Settles many while the loop goes on; None where only one can write at a time.
        self._scribe = scribe
        #: What it is settling, and what it will settle next.
        self._under_way: deque[list[Waiting]] = deque()
        #: The last batch failed there. The next one is settled by the loop, which finds out whether it is the database
        #: that is away, or only the scribe who has no connection.
        self._by_hand = False
        #: What the loop is to hear of the scribe when it next asks.
        self._trouble: BaseException | None = None
        self._is_closed = False
        #: How many the next batch may have: half of what could not be settled.
        self._limit = BATCH
        #: More outcomes are on their way: the worker has as much in hand as it can.
        self.busy = False
        #: In the order in which they came.
        self._waiting: dict[int, Waiting] = {}
        #: One of those that wait, or waited since there were none, is heavy, or may be.
        self._has_heavy = False
        #: The bytes of those that are heavy and not settled, by token, and of all of them.
        self._heavy: dict[int, int] = {}
        self._heavy_bytes = 0
        #: What somebody held the row of, and when to try it again.
        self._locked: dict[int, Waiting] = {}
        self._locked_until = 0.0
        #: What the database refused, by token, and for how long each of these was put aside the last time.
        self._aside: dict[int, Aside] = {}
        self._delays: dict[int, float] = {}
        #: The bytes of the heavy ones among what is put aside. They are part of ``_heavy_bytes``.
        self._aside_bytes = 0
        #: What followed from the last settlements: queues in which something became ready and is not claimed, runs that
        #: ended.
        self.ready: set[str] = set()
        self.ended: list[UUID] = []
        #: Some who waited for them were held by somebody, and have not been told.
        self.untold = False
        #: What was claimed together with the last settlements, if it was.
        self.claims: list[Claimed] | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._locked) + len(self._aside) + sum(map(len, self._under_way))

    def __contains__(self, token: int) -> bool:
        return (
            token in self._waiting
            or token in self._locked
            or token in self._aside
            or any(one.claim.token == token for batch in self._under_way for one in batch)
        )

    def add(self, claim: Claimed, settlement: Settleable, now: float) -> None:
        self._waiting[claim.token] = Waiting(claim, settlement, now)
        weight = _weight(settlement)
        if weight > HEAVY_BYTES:
            self._has_heavy = True
            self._heavy_bytes += weight - self._heavy.get(claim.token, 0)
            self._heavy[claim.token] = weight

    def next_time(self) -> float | None:
        """When the next batch should go, or None if nothing waits, or has to wait until those before it are done."""
        if self._under_way:
            return 0.0 if self._may_follow else None
        times = []
        for oldest in self._waiting.values():
            if len(self._waiting) >= WORTHWHILE:
                return 0.0
            times.append(oldest.since + (BUSY_LINGER_SECONDS if self.busy else LINGER_SECONDS))
            break
        if self._locked:
            times.append(self._locked_until)
        if self._aside:
            times.append(min(each.due for each in self._aside.values()))
        return min(times, default=None)

    @property
    def put_aside(self) -> int:
        """How many the database refuses: nobody waits for these."""
        return len(self._aside)

    def is_put_aside(self, token: int) -> bool:
        return token in self._aside

    def expect(self, count: int) -> None:
        """So many were claimed at once."""
        if count >= MANY and self._scribe is not None:
            self._with_scribe(self._scribe.expect)

    @property
    def has_many(self) -> bool:
        """So many wait that they are settled while the loop goes on."""
        return self._has_scribe and len(self._waiting) >= MANY

    @property
    def _may_follow(self) -> bool:
        """The scribe is at work, and so many wait that they need not wait for that."""
        return self._has_scribe and len(self._waiting) >= WORTHWHILE and len(self._under_way) < BATCHES

    @property
    def _has_scribe(self) -> bool:
        return self._scribe is not None and not self._by_hand and not self._is_closed

    @property
    def is_full(self) -> bool:
        """
        So many wait that no more should be claimed, nor taken from those who execute. What the database refuses does
        not count: it may stay for ever, and the others go on.
        """
        return len(self) - len(self._aside) >= FULL or self._heavy_bytes - self._aside_bytes >= FULL_BYTES

    @property
    def is_full_of_refused(self) -> bool:
        """The database refuses so much that no more should be claimed: all of it is kept in memory."""
        return len(self._aside) >= FULL_ASIDE or self._aside_bytes >= FULL_ASIDE_BYTES

    def flush(
        self, ledger: Ledger, now: float, claim: Callable[[list[Settleable]], Settled | None] | None = None
    ) -> list[Moved]:
        """
        Settle what is due. What moved, with its state; None where it was no longer ours.

        Few are settled by ``claim``, if it can: together with a claim of what becomes ready by them. Many are only
        begun: they are there to be collected when the scribe says so.
        """
        self.claims = None
        if self._under_way and not self._may_follow:
            return []
        batch = self._next_batch(now)
        if self._hand_over(batch):
            return []
        settlements = [one.settlement for one in batch]
        settled = None
        try:
            if claim is not None and 0 < len(batch) <= FEW and any(one.claim.dependents for one in batch):
                settled = claim(settlements)
            if settled is None:
                settled = ledger.settle(settlements, self.worker)
        except DatabaseError as error:
            self._limit = max(1, len(batch) // 2)
            if len(batch) != 1 or not conflicts.is_answer(error):
                raise
            settled = Settled(refused={batch[0].claim.token: str(error).strip()})
        else:
            if batch:
                self._limit, self._by_hand = BATCH, False
        self.claims = settled.claims
        self._take_out(batch)
        return self._conclude(batch, settled, now)

    def _next_batch(self, now: float) -> list[Waiting]:
        if self._locked and self._locked_until <= now:
            self._waiting, self._has_heavy = self._locked | self._waiting, True
            self._locked = {}
        if not self._under_way and (alone := self._next_aside(now)) is not None:
            return [alone]
        if not self._has_heavy:
            return list(islice(self._waiting.values(), self._limit))
        batch: list[Waiting] = []
        weight = 0
        for one in self._waiting.values():
            weight += _weight(one.settlement)
            if batch and (len(batch) >= self._limit or weight > BATCH_BYTES):
                break
            batch.append(one)
        return batch

    def _next_aside(self, now: float) -> Waiting | None:
        """Something that was put aside and is due. It goes by itself: others would be refused with it."""
        for token, (one, due, delay, weight) in self._aside.items():
            if due <= now:
                del self._aside[token]
                self._aside_bytes -= weight
                self._delays[token] = delay
                self._waiting[token], self._has_heavy = one, True
                return one
        return None

    def _put_aside(self, one: Waiting, words: str, now: float) -> None:
        claim = one.claim
        delay = min(2 * self._delays.pop(claim.token, ASIDE_SECONDS / 2), LONGEST_ASIDE_SECONDS)
        weight = self._heavy.get(claim.token, 0)
        self._aside[claim.token] = Aside(one, now + delay, delay, weight)
        self._aside_bytes += weight
        logger.error(
            "The database refuses to settle run %s (attempt %s, %s): %s. It is tried again in %g s; the others go on.",
            claim.id,
            claim.attempts,
            one.settlement.outcome,
            words,
            delay,
        )

    def _hand_over(self, batch: list[Waiting]) -> bool:
        """Whether the scribe settles them."""
        scribe = self._scribe
        # While it is at work also a few that weigh much: the loop must not settle beside it.
        if scribe is None or not self._has_scribe or (len(batch) < MANY and not self._under_way):
            return False
        settlements = [one.settlement for one in batch]
        if not self._with_scribe(lambda: scribe.begin(settlements, self.worker)):
            return False
        self._take_out(batch)
        self._under_way.append(batch)
        return True

    def _take_out(self, batch: list[Waiting]) -> None:
        """These wait no more."""
        if len(batch) == len(self._waiting):
            self._waiting, self._has_heavy = {}, False
            return
        for one in batch:
            del self._waiting[one.claim.token]

    def _with_scribe(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except RuntimeError:
            logger.warning("There is no thread to be had that settles: the loop does.", exc_info=True)
            self._scribe = None
        return self._scribe is not None

    def collect(self, now: float) -> list[Moved]:
        """What the scribe has settled since, as of flush(). If it could not, all of it is waiting again."""
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        moved: list[Moved] = []
        while self._scribe is not None and self._under_way:
            try:
                settled = self._scribe.collect()
            except BaseException as error:
                batch = self._under_way.popleft()
                self._waiting, self._has_heavy = {one.claim.token: one for one in batch} | self._waiting, True
                self._by_hand, self._limit = True, max(1, len(batch) // 2)
                if not isinstance(error, DatabaseError):
                    if not moved:
                        raise
                    # The next time: what was settled before it is still to be told.
                    self._trouble = error
                    break
                logger.warning("The scribe could not settle %s runs: %s", len(batch), str(error).strip())
                continue
            if settled is None:
                break
            if not self._by_hand:
                self._limit = BATCH
            moved += self._conclude(self._under_way.popleft(), settled, now)
        return moved

    def _conclude(self, batch: list[Waiting], settled: Settled, now: float) -> list[Moved]:
        self.ready |= settled.ready
        self.ended += settled.ended
        self.untold = self.untold or settled.untold
        reached = settled.moved.get
        if self._delays:
            for one in batch:
                if one.claim.token not in settled.refused:
                    self._delays.pop(one.claim.token, None)
        if self._heavy:
            self._let_go(
                one.claim.token for one in batch if one.claim.token not in settled.busy | settled.refused.keys()
            )
        if not settled.busy and not settled.refused:
            return [(claim, settlement, reached(claim.token)) for claim, settlement, _ in batch]
        moved = []
        for one in batch:
            token = one.claim.token
            if token in settled.busy:
                self._locked[token] = one
                self._locked_until = now + LOCKED_SECONDS
            elif token in settled.refused:
                self._put_aside(one, settled.refused[token], now)
            else:
                moved.append((one.claim, one.settlement, reached(token)))
        return moved

    def _let_go(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._heavy_bytes -= self._heavy.pop(token, 0)

    def clear(self) -> None:
        """Our lease is lost: nothing of this is ours to settle."""
        self._waiting.clear()
        self._locked.clear()
        self._aside.clear()
        self._delays.clear()
        self._under_way.clear()
        self._heavy.clear()
        self._heavy_bytes = self._aside_bytes = 0

    def close(self, seconds: float) -> None:
        """What is under way has so long, and can be collected. What is settled after this is settled by the loop."""
        self._is_closed = True
        if self._scribe is not None and self._scribe.ident is not None:
            self._scribe.stop()
            self._scribe.join(seconds)


def _weight(settlement: Settleable) -> int:
    """
    Bytes, about: all but its result is capped, and what is written down is ASCII. Results come here written down.
    """
    return len(settlement.text if isinstance(settlement, Written) else settlement.result or "")
