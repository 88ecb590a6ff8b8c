"""
Sees whether the others renew their leases.

A lease is lost only when another worker, itself connected throughout, saw it unchanged for its full
length. What counts is what was watched, not what the dates say: a clock that jumps declares nobody dead,
and when the whole database was away nobody was connected, and nobody is declared dead either.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from django_manta.ledger.house import Lease


@dataclass(slots=True)
class _Watched:
    lease: Lease
    #: For how long it was seen not to change.
    seconds: float = 0.0


class Watch:
    """What one worker has seen of the others' leases."""

    def __init__(self) -> None:
        self._others: dict[str, _Watched] = {}
        self._looked_at = 0.0

    def look(self, leases: Iterable[Lease], now: float) -> list[Lease]:
        """The leases that were not renewed for their full length."""
        gap = now - self._looked_at
        self._looked_at = now
        former, self._others = self._others, {}
        overdue = []
        for lease in leases:
            known = former.get(lease.worker)
            if known is None or known.lease != lease:
                known = _Watched(lease)
            else:
                # When we were stopped, or waited for the database, so may the others have been: no single
                # gap between two looks proves that somebody is gone.
                known.seconds += min(gap, lease.seconds / 2)
            self._others[lease.worker] = known
            if known.seconds >= lease.seconds:
                overdue.append(lease)
        return overdue

    def next_time(self) -> float | None:
        """When the first of them will have been watched for its full length, if nothing changes."""
        return min(
            (self._looked_at + other.lease.seconds - other.seconds for other in self._others.values()), default=None
        )

    def forget(self) -> None:
        """The database was away: what was seen before proves nothing after."""
        self._others.clear()
