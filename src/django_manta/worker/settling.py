"""
Outcomes on their way to the ledger, in batches.

An outcome waits a moment for company and no longer. What the database could not take (it was away,
somebody held the row) stays here and is tried again; nothing is dropped before the ledger has said
what became of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from django_manta.ledger import Claimed, Ledger, Settlement
from django_manta.states import State

#: How long an outcome waits for company, and how many travel together.
LINGER_SECONDS = 0.002
BATCH = 200

#: A row that somebody holds is tried again after so long.
BUSY_SECONDS = 0.02


@dataclass(slots=True)
class Waiting:
    claim: Claimed
    settlement: Settlement
    since: float
    not_before: float = 0.0


class Settler:
    """The outcomes of one worker that are not settled yet."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self._waiting: dict[int, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, token: int) -> bool:
        return token in self._waiting

    def add(self, claim: Claimed, settlement: Settlement, now: float) -> None:
        self._waiting[claim.token] = Waiting(claim, settlement, now)

    def next_time(self) -> float | None:
        """When the next batch should go, or None if nothing waits."""
        if not self._waiting:
            return None
        if len(self._waiting) >= BATCH:
            return 0.0
        return min(max(one.since + LINGER_SECONDS, one.not_before) for one in self._waiting.values())

    def flush(self, ledger: Ledger, now: float) -> Iterator[tuple[Claimed, Settlement, State | None]]:
        """Settle what is due. What moved, with its state; None where it was no longer ours."""
        due = islice((one for one in list(self._waiting.values()) if one.not_before <= now), BATCH)
        batch = {one.claim.token: one for one in due}
        if not batch:
            return
        settled = ledger.settle([one.settlement for one in batch.values()], self.worker)
        for token, one in batch.items():
            if token in settled.busy:
                one.not_before = now + BUSY_SECONDS
                continue
            del self._waiting[token]
            yield one.claim, one.settlement, settled.moved.get(token)

    def clear(self) -> None:
        """Our lease is lost: nothing of this is ours to settle."""
        self._waiting.clear()
