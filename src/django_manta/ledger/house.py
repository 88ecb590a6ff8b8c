"""
What workers need of the ledger beside moving runs: looking, leases, leadership.

Functions over a Ledger, each one cheap statement.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from json import loads
from uuid import UUID

from django_manta.ledger.book import Ledger
from django_manta.states import ENDS, State


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's lease as it was last renewed: when, in the database's own words, and for how long."""

    worker: str
    seen_at: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look found."""

    ready: bool
    #: Seconds until the next scheduled run is due; 0 or less: it is.
    next_due: float | None
    #: Tokens of executions of ours that somebody asked to cancel.
    cancelling: tuple[int, ...]
    #: Whether something did not start in time.
    expired: bool
    #: Whether somebody waits for a run and has not been told that it ended, or is not counted yet.
    untold: bool = False
    #: The leases of the others that are in force.
    leases: tuple[Lease, ...] = ()


def look(ledger: Ledger, worker: str, queues: list[str]) -> Sight:
    """Whether something is ready, when something is due, what is to be cancelled, what expired, who else works."""
    params = {"worker": worker, "queues": ledger.dialect.listing(queues)}
    [[ready, next_due, cancelling, expired, leases, untold]] = ledger.session.rows("look", params)
    return Sight(
        bool(ready),
        next_due,
        tuple(loads(cancelling)) if cancelling else (),
        bool(expired),
        bool(untold),
        tuple(Lease(*lease) for lease in loads(leases) if _is_lease(*lease)) if leases else (),
    )


def _is_lease(worker: object, seen_at: object, seconds: object) -> bool:
    """Whether a worker's row can be watched: of one that was altered nobody can say when it is lost."""
    return isinstance(seconds, int | float) and 0 < seconds < float("inf")


def owned(ledger: Ledger, worker: str) -> list[tuple[UUID, int]]:
    """The executions that ``worker`` holds, as the ledger sees it."""
    rows = ledger.session.rows("owned", {"worker": worker})
    return [(ledger.dialect.read_id(run_id), token) for run_id, token in rows]


def lead(ledger: Ledger, cluster: str, worker: str) -> int | None:
    """The term in which ``worker`` leads ``cluster`` from now on, or None: another one does."""
    rows = ledger.session.rows("lead", {"cluster": cluster, "worker": worker})
    return rows[0][0] if rows else None


def forget_lost_workers(ledger: Ledger) -> int:
    """Remove the rows of workers that were lost long ago and hold nothing."""
    return len(ledger.session.rows("forget_workers", {}))


def channel_of(cluster: str) -> str:
    """The name under which a cluster's doorbell rings."""
    return f"manta_{cluster}"


def ring(ledger: Ledger, channel: str, word: str) -> None:
    """Wake the workers, on PostgreSQL. SQLite's workers see the commit itself."""
    if ledger.dialect.name == "postgres":
        alone = not ledger.session.in_transaction()
        ledger.session.run("ring", {"channel": channel, "word": word, "alone": alone})


def find_workflow(ledger: Ledger, name: str, unique_key: str) -> UUID | None:
    """The workflow of this name and key, if this session sees one."""
    rows = ledger.session.rows("find_workflow", {"name": name, "unique_key": unique_key})
    return ledger.dialect.read_id(rows[0][0]) if rows else None


def change_counter(ledger: Ledger) -> int:
    """A number that changes with every commit of another connection to a SQLite file."""
    [[version]] = ledger.session.rows("data_version", {})
    return int(version)


def compiles(ledger: Ledger) -> bool:
    """Whether the server may compile statements of this connection (JIT), which takes longer than any of ours."""
    if ledger.dialect.name != "postgres":
        return False
    [[is_on]] = ledger.session.rows("compiles", {})
    return bool(is_on)


# -- what operators look at: at most so many rows are read, however many there are -----------------


def clock(ledger: Ledger) -> datetime:
    """What time it is, by the clock that decides."""
    [[now]] = ledger.session.rows("clock", {})
    return ledger.dialect.read_moment(now)


@dataclass(frozen=True, slots=True)
class Stranded:
    """A lost worker that left runs on a Ray to which no living worker speaks."""

    worker: str
    runner: str
    address: str
    ray: str
    runs: int


def stranded(ledger: Ledger, limit: int = 1_000) -> list[Stranded]:
    """The lost workers whose runs wait for a worker of their Ray."""
    return [Stranded(*row) for row in ledger.session.rows("stranded", {"limit": limit})]


@dataclass(frozen=True, slots=True)
class Counted:
    """Runs that were counted, up to a limit; ``seconds`` is how long ago the oldest of them came there."""

    runs: int
    seconds: float | None = None


def count_ready(ledger: Ledger, limit: int) -> dict[str, Counted]:
    """Ready runs by queue, at most ``limit`` of each, and how long the longest waiting one has been."""
    params = {"queues": ledger.dialect.listing(ledger.ready_queues()), "limit": limit}
    return {queue: Counted(runs, waited) for queue, runs, waited in ledger.session.rows("count_ready", params)}


def count_scheduled(ledger: Ledger, limit: int) -> dict[str, int]:
    """Scheduled runs by queue, at most ``limit`` of all."""
    return dict(ledger.session.rows("count_scheduled", {"limit": limit}))


def count_owned(ledger: Ledger, limit: int) -> dict[tuple[str, str], int]:
    """Running runs by queue and worker, at most ``limit`` of all."""
    rows = ledger.session.rows("count_owned", {"limit": limit})
    return {(queue, worker): runs for queue, worker, runs in rows}


def count_newest(ledger: Ledger, limit: int) -> dict[tuple[str, str], int]:
    """The newest ``limit`` runs, by state and queue."""
    rows = ledger.session.rows("count_newest", {"limit": limit})
    return {(state, queue): runs for state, queue, runs in rows}


def count_ended(ledger: Ledger, within: timedelta, limit: int) -> dict[State, Counted]:
    """Runs by the end they reached within the last while, at most ``limit`` of each."""
    params = {
        "states": ledger.dialect.listing(sorted(ENDS)),
        "seconds": within.total_seconds(),
        "limit": limit,
    }
    return {State(state): Counted(*counted) for state, *counted in ledger.session.rows("count_ended", params)}


def count_prunable(
    ledger: Ledger, state: State, age: timedelta, limit: int, backends: Sequence[str] | None = None
) -> int:
    """How many runs (of these aliases) retention would remove, at most ``limit``."""
    count, after = 0, None
    while count < limit:
        found = ledger.prunable(state, age, limit, after, backends)
        count += sum(goes for *_, goes in found)
        if len(found) < limit:
            break
        after = found[-1][1], found[-1][0]
    return min(count, limit)


def count_oldest(ledger: Ledger, limit: int) -> dict[str, int]:
    """Finished runs by alias, of the oldest ``limit`` of each end."""
    counted: dict[str, int] = {}
    for state in sorted(ENDS):
        for backend, runs in ledger.session.rows("count_oldest", {"state": state.value, "limit": limit}):
            counted[backend] = counted.get(backend, 0) + runs
    return counted
