"""
Outcomes on their way to the ledger, in batches.

An outcome waits a moment for company and no longer. What the database could not take (it was away,
somebody held the row) stays here and is tried again; nothing is dropped before the ledger has said
what became of it.
"""

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from django_manta.ledger import Claimed, Ledger, Settleable, Settled
from django_manta.states import State
from django_manta.worker.scribe import Scribe

#: How long an outcome waits for company: when others are likely to follow at once, and when not.
LINGER_SECONDS = 0.002
BUSY_LINGER_SECONDS = 0.02

#: How many travel together, and how many are worth a journey while more are coming.
BATCH = 1_000
WORTHWHILE = 100

#: From so many on the loop does not wait while they are settled.
MANY = 50

#: Of no more than so many, what becomes ready by them is claimed in the same transaction.
FEW = 20

#: A row that somebody holds is tried again after so long.
LOCKED_SECONDS = 0.02


class Waiting(NamedTuple):
    claim: Claimed
    settlement: Settleable
    since: float


class Settler:
    """The outcomes of one worker that are not settled yet."""

    def __init__(self, worker: str, scribe: Scribe | None = None) -> None:
        self.worker = worker
        #: Settles many while the loop goes on; None where only one can write at a time.
        self._scribe = scribe
        #: What it is settling.
        self._under_way: list[Waiting] = []
        #: More outcomes are on their way: the worker has as much in hand as it can.
        self.busy = False
        #: In the order in which they came.
        self._waiting: dict[int, Waiting] = {}
        #: What somebody held the row of, and when to try it again.
        self._locked: dict[int, Waiting] = {}
        self._locked_until = 0.0
        #: What followed from the last settlements: queues in which something became ready and is not claimed, runs that
        #: ended.
        self.ready: set[str] = set()
        self.ended: list[UUID] = []
        #: What was claimed together with the last settlements, if it was.
        self.claims: list[Claimed] | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._locked) + len(self._under_way)

    def __contains__(self, token: int) -> bool:
        return (
            token in self._waiting or token in self._locked or any(one.claim.token == token for one in self._under_way)
        )

    def add(self, claim: Claimed, settlement: Settleable, now: float) -> None:
        self._waiting[claim.token] = Waiting(claim, settlement, now)

    def next_time(self) -> float | None:
        """When the next batch should go, or None if nothing waits, or has to wait until the one before it is done."""
        if self._under_way:
            return None
        times = []
        for oldest in self._waiting.values():
            if len(self._waiting) >= WORTHWHILE:
                return 0.0
            times.append(oldest.since + (BUSY_LINGER_SECONDS if self.busy else LINGER_SECONDS))
            break
        if self._locked:
            times.append(self._locked_until)
        return min(times, default=None)

    def expect(self, count: int) -> None:
        """So many were claimed at once."""
        if count >= MANY and self._scribe is not None:
            self._scribe.expect()

    @property
    def has_many(self) -> bool:
        """So many wait that they are settled while the loop goes on."""
        return self._scribe is not None and len(self._waiting) >= MANY

    def flush(
        self, ledger: Ledger, now: float, claim: Callable[[], list[Claimed]] | None = None
    ) -> list[tuple[Claimed, Settleable, State | None]]:
        """
        Settle what is due. What moved, with its state; None where it was no longer ours.

        With ``claim``, what becomes ready by few is claimed in the same transaction. Many are only begun: they are
        there to be collected when the scribe says so.
        """
        self.claims = None
        if self._under_way:
            return []
        batch = self._next_batch(now)
        settlements = [one.settlement for one in batch]
        if len(batch) >= MANY and self._scribe is not None:
            for one in batch:
                del self._waiting[one.claim.token]
            self._under_way = batch
            self._scribe.begin(settlements, self.worker)
            return []
        settled = None
        if claim is not None and 0 < len(batch) <= FEW and any(one.claim.dependents for one in batch):
            settled = ledger.settle_and_claim(settlements, self.worker, claim)
        if settled is None:
            settled = ledger.settle(settlements, self.worker)
        self.claims = settled.claims
        for one in batch:
            del self._waiting[one.claim.token]
        return self._conclude(batch, settled, now)

    def _next_batch(self, now: float) -> list[Waiting]:
        if self._locked and self._locked_until <= now:
            self._waiting = self._locked | self._waiting
            self._locked = {}
        return list(islice(self._waiting.values(), BATCH))

    def collect(self, now: float) -> list[tuple[Claimed, Settleable, State | None]]:
        """What the scribe has settled since, as of flush(). If it could not, all of it is waiting again."""
        if self._scribe is None or not self._under_way:
            return []
        try:
            settled = self._scribe.collect()
        except BaseException:
            batch, self._under_way = self._under_way, []
            self._waiting = {one.claim.token: one for one in batch} | self._waiting
            raise
        if settled is None:
            return []
        batch, self._under_way = self._under_way, []
        return self._conclude(batch, settled, now)

    def _conclude(
        self, batch: list[Waiting], settled: Settled, now: float
    ) -> list[tuple[Claimed, Settleable, State | None]]:
        self.ready |= settled.ready
        self.ended += settled.ended
        moved = []
        for one in batch:
            token = one.claim.token
            if token in settled.busy:
                self._locked[token] = one
                self._locked_until = now + LOCKED_SECONDS
            else:
                moved.append((one.claim, one.settlement, settled.moved.get(token)))
        return moved

    def clear(self) -> None:
        """Our lease is lost: nothing of this is ours to settle."""
        self._waiting.clear()
        self._locked.clear()
        self._under_way.clear()

    def close(self, seconds: float) -> None:
        """Nothing more will come. What is under way has so long."""
        if self._scribe is not None and self._scribe.ident is not None:
            self._scribe.stop()
            self._scribe.join(seconds)
