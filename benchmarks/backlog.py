"""What a claim costs as the backlog grows: it must cost the same."""

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks import scratch
from benchmarks.measure import Contender, Figure, Stopwatch, in_turns, milliseconds
from benchmarks.settle import BATCH, WORKER
from django_manta.ledger import Ledger, PostgresSession

TITLE = "One claim of 100 as the backlog grows (rolled back each time)"

QUEUES = [f"queue-{number}" for number in range(8)]

#: Claims timed in one turn of a backlog.
CLAIMS = 20


class _RolledBack(Exception):
    """Ends the transaction of a claim that must not stay."""


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    largest = rows or (100_000 if quick else 1_000_000)
    sizes = {"small": 1_000, "middle": max(1_000, largest // 10), "large": largest}
    with scratch.databases(list(sizes)):
        for alias, size in sizes.items():
            scratch.fill(size, QUEUES, alias)
        for queues in (QUEUES, QUEUES[:1]):
            yield from compared_sizes(sizes, queues, rounds)


def compared_sizes(sizes: dict[str, int], queues: Sequence[str], rounds: int) -> Iterator[Figure]:
    taken = in_turns(rounds, **{alias: claims(alias, queues) for alias in sizes})
    asked = f"{len(queues)} queue{'s' if len(queues) > 1 else ''}"
    small = taken["small"]
    for alias, size in sizes.items():
        yield Figure(
            what=f"{asked}, {size:,} ready",
            ours=milliseconds(median(taken[alias])),
            limit=milliseconds(median(small)),
            ratios=[mine / theirs for mine, theirs in zip(taken[alias], small, strict=True)],
            at_most=None if alias == "small" else 1.5,
        )


def claims(alias: str, queues: Sequence[str]) -> Contender:
    def contend(watch: Stopwatch) -> None:
        # Claims that were rolled back leave dead versions behind, as many in every database.
        scratch.execute("VACUUM manta_run", alias)
        with scratch.worker_session(alias) as session:
            for _ in range(3):
                rolled_back(session, queues, Stopwatch())
            each = [rolled_back(session, queues, Stopwatch()) for _ in range(CLAIMS)]
        watch.seconds = median(each)

    return contend


def rolled_back(session: PostgresSession, queues: Sequence[str], watch: Stopwatch) -> float:
    try:
        with session.transaction():
            with watch.running():
                claimed = Ledger(session).claim(WORKER, queues, BATCH)
            assert len(claimed) == BATCH, f"A claim of {BATCH} got {len(claimed)}."
            raise _RolledBack
    except _RolledBack:
        return watch.seconds
