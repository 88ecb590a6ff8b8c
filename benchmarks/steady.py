"""
A worker that keeps up with a constant inflow, in a table that keeps millions of finished runs.

The table is in balance: each run that ends becomes one more that is kept, and retention removes the oldest at the same
rate. So vacuum has all that it has in production: dead versions of what was claimed and settled, and what was deleted.

    drain on an empty table · fill · drain · the inflow, looked at minute by minute · drain
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import claims, retained, scratch, tasks, working
from benchmarks.measure import Figure, percentile

TITLE = "A constant inflow beside finished runs that are kept"

QUEUE = "steady"

ROWS, QUICK_ROWS = 10_000_000, 500_000
SECONDS, QUICK_SECONDS = 900.0, 60.0
MINUTE, QUICK_MINUTE = 60.0, 10.0

#: Of what the machine could enqueue, execute and settle in the same time.
SHARE = 0.65

#: Runs of one drain, and how often it is repeated.
DRAINED, QUICK_DRAINED = 20_000, 10_000
DRAINS = 3

#: A run must be there when it is counted at the end: nothing is removed that came with the inflow.
KEPT_SECONDS = 180.0

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Capacity:
    """Runs a second: of ``enqueue_many()`` alone, and of a worker with nobody beside it."""

    enqueue: float
    drain: float

    @property
    def both(self) -> float:
        """Of a machine that does one after the other: on so few cores each takes from the other."""
        return 1 / (1 / self.enqueue + 1 / self.drain)


@dataclass(frozen=True, slots=True)
class House:
    """The state of the table at one moment."""

    moment: float
    sizes: retained.Sizes
    dead: int
    vacuums: int
    analyses: int
    #: Runs, each with its attempt.
    deleted: int


@dataclass(frozen=True, slots=True)
class Minute:
    settled: float
    pickup: tuple[float, float]
    #: Of those that found runs.
    claim: tuple[float, float]
    #: Of those that found none, as if they took no time where there were none.
    empty: tuple[float, float]
    claims: int
    house: House


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = rows or (QUICK_ROWS if quick else ROWS)
    seconds, minute = (QUICK_SECONDS, QUICK_MINUTE) if quick else (SECONDS, MINUTE)
    drained = QUICK_DRAINED if quick else DRAINED
    with working.worker(QUEUE) as worker:
        empty = capacity(worker, drained)
        one_finished_run(worker)
    rate = SHARE * empty.both
    span = max(count / rate, seconds + KEPT_SECONDS)
    filled_at, took = fill(count, span)
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as name:
        # What is the oldest now is the first that goes.
        kept = span + time.time() - filled_at
        with living(MANTA_BENCH_CLAIMS=name, MANTA_BENCH_RETENTION=str(kept)) as worker:
            before = capacity(worker, drained)
            minutes = watched(worker, Path(name), rate, seconds, minute)
            after = capacity(worker, drained)
    tell(count, took, rate, minutes, minute)
    # Retention comes once a minute, vacuum too: of less than that one part has them and another has not.
    yield from judged(count, rate, empty, before, after, minutes, held=not quick)


def judged(
    count: int,
    rate: float,
    empty: Capacity,
    before: Capacity,
    after: Capacity,
    minutes: Sequence[Minute],
    *,
    held: bool,
) -> Iterator[Figure]:
    """Whether the last minute is as the first, as a target if the minutes are ``held`` to it."""
    first, last = minutes[0], minutes[-1]
    for what, mine in (("before the inflow", before), ("after the inflow", after)):
        yield Figure(
            what=f"drain with {count:,} kept, {what}, against an empty table",
            ours=f"{mine.drain:,.0f}/s",
            limit=f"{empty.drain:,.0f}/s",
            ratios=[mine.drain / empty.drain],
        )
    yield Figure(
        what=f"settled a second in the last minute, against the first (inflow {rate:,.0f}/s)",
        ours=f"{last.settled:,.0f}/s",
        limit=f"{first.settled:,.0f}/s",
        ratios=[last.settled / first.settled],
        at_least=0.8 if held else None,
    )
    looked_at: tuple[tuple[str, Callable[[Minute], tuple[float, float]]], ...] = (
        ("claim", lambda each: each.claim),
        ("claim of nothing", lambda each: each.empty),
        ("pickup", lambda each: each.pickup),
    )
    for what, of in looked_at:
        for place, name in enumerate(("p50", "p99")):
            mine, theirs = of(last)[place], of(first)[place]
            if not (mine and theirs):
                continue
            yield Figure(
                what=f"{what} {name} of the last minute, against the first",
                ours=f"{mine * 1000:.2f} ms",
                limit=f"{theirs * 1000:.2f} ms",
                ratios=[mine / theirs],
                at_most=1.2 if held and (what, name) == ("claim", "p99") else None,
            )


# -- before ------------------------------------------------------------------------------------------


def capacity(worker: working.Command, count: int) -> Capacity:
    """The best of a few: whatever else the machine does makes it less."""
    enqueued, drained = [], []
    for _ in range(DRAINS):
        began = time.perf_counter()
        with working.committed(by_database=True) as commit:
            working.enqueue(tasks.resize.using(queue_name=QUEUE), [tasks.arguments(number) for number in range(count)])
        enqueued.append(time.perf_counter() - began)
        worker.wait_for(lambda: not under_way(), "every run has ended", every=0.1)
        [[last]] = working.ask("SELECT max(finished_at) FROM manta_run WHERE state = 'SUCCESSFUL'")
        drained.append((last - commit.moment).total_seconds())
    return Capacity(count / min(enqueued), count / min(drained))


def under_way() -> bool:
    """Whether anything is ready or running: by the indexes of those, whatever else is in the table."""
    [[found]] = working.ask(
        "SELECT EXISTS (SELECT FROM manta_run WHERE state = 'READY' AND queue = %s)"
        " OR EXISTS (SELECT FROM manta_run WHERE state IN ('RUNNING', 'CANCELLING') AND worker > '')",
        QUEUE,
    )
    return bool(found)


def one_finished_run(worker: working.Command) -> None:
    scratch.empty()
    working.enqueue_and_wait(worker, QUEUE, 1)


def fill(count: int, span: float) -> tuple[float, float]:
    """When the newest of them ended, and how long it took to make them."""
    print(f"  making {count:,} finished runs of the last {span:,.0f} s …", flush=True)
    began = time.time()
    retained.fill(count, newest=began, apart=span / count)
    return began, time.time() - began


@contextmanager
def living(**environment: str) -> Iterator[working.Command]:
    """A worker beside what is in the table, which has had something to do."""
    flags = ("--processes", str(working.PROCESSES), "--queues", QUEUE)
    with working.command("manta", "worker", *flags, **environment) as worker:
        for _ in range(3):
            calls = [tasks.arguments(number) for number in range(working.WARM_UP_RUNS)]
            working.enqueue(tasks.resize.using(queue_name=QUEUE), calls)
            worker.wait_for(lambda: not under_way(), "it has warmed up")
        yield worker


# -- the inflow --------------------------------------------------------------------------------------


def watched(worker: working.Command, notes: Path, rate: float, seconds: float, minute: float) -> list[Minute]:
    began, houses = 0.0, []
    with inflow(rate, seconds) as ends:
        began = time.time()
        for number in range(1, math.floor(seconds / minute) + 1):
            time.sleep(max(0.0, began + number * minute - time.time()))
            houses.append(house())
        told = ends()
    print(f"  the inflow's worst delay was {told['worst']:.2f} s, at its end {told['late']:.2f} s", flush=True)
    worker.wait_for(lambda: not under_way(), "the backlog is gone", every=0.2)
    # All at the end: who counts meanwhile is in the way of what is counted.
    made = list(claims.noted(notes))
    return [
        _minute(began + number * minute, began + (number + 1) * minute, made, house)
        for number, house in enumerate(houses)
    ]


@contextmanager
def inflow(rate: float, seconds: float) -> Iterator[Callable[[], dict[str, float]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.inflow", QUEUE, str(rate), str(seconds)],
        cwd=working.ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    stdout = process.stdout
    assert stdout is not None
    try:
        if stdout.readline().strip() != "ready":
            raise working.Trouble("Nobody enqueues: benchmarks.inflow did not start.")
        yield lambda: json.loads(stdout.readline())
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)
        stdout.close()


def house() -> House:
    [found] = working.ask(
        "SELECT sum(n_dead_tup), sum(autovacuum_count), sum(autoanalyze_count),"
        " max(n_tup_del) FILTER (WHERE relname = 'manta_run')"
        " FROM pg_stat_user_tables WHERE relname IN ('manta_run', 'manta_attempt')"
    )
    return House(time.time(), retained.sizes(), *(int(each) for each in found))


def _minute(begin: float, end: float, made: Sequence[claims.Claim], house: House) -> Minute:
    # The moment of an enqueue is that of its statement: a run is there when its batch has committed.
    [[settled]] = working.ask(
        "SELECT count(*) FROM manta_run WHERE state = 'SUCCESSFUL'"
        " AND finished_at >= to_timestamp(%s) AND finished_at < to_timestamp(%s)",
        begin,
        end,
    )
    [[half, most]] = working.ask(
        "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY waited),"
        " percentile_disc(0.99) WITHIN GROUP (ORDER BY waited)"
        " FROM (SELECT EXTRACT(EPOCH FROM started_at - enqueued_at)::float8 AS waited FROM manta_run"
        " WHERE state = 'SUCCESSFUL' AND finished_at >= to_timestamp(%s) AND finished_at < to_timestamp(%s)) AS run",
        begin,
        end,
    )
    meanwhile = [claim for claim in made if begin <= claim.ended < end]
    took = [claim.seconds for claim in meanwhile if claim.runs]
    # What is slow in a table with many dead versions is above all a claim that reads them all and finds nothing.
    vain = [claim.seconds for claim in meanwhile if not claim.runs] or [0.0]
    if not took:
        raise working.Trouble("The worker claimed nothing for a minute.")
    return Minute(
        settled / (end - begin),
        (half, most),
        (percentile(took, 0.5), percentile(took, 0.99)),
        (percentile(vain, 0.5), percentile(vain, 0.99)),
        len(meanwhile),
        house,
    )


def tell(count: int, took: float, rate: float, minutes: Sequence[Minute], minute: float) -> None:
    """Minute by minute."""
    size = minutes[0].house.sizes.total
    print(f"  {count:,} runs were made in {took:,.0f} s; {size / MIB:,.0f} MiB with the first minute's")
    print(f"  inflow {rate:,.0f}/s; a line is {minute:g} s")
    print(
        "  settled/s  claims/s  claim p50 ms   p99 ms  of nothing   p99 ms  pickup p50 ms   p99 ms"
        "  runs MiB  indexes  attempts  indexes      dead  vacuums  analyses    deleted"
    )
    for each in minutes:
        sizes = each.house.sizes
        print(
            f"  {each.settled:9,.0f} {each.claims / minute:9,.0f} {each.claim[0] * 1000:13.2f}"
            f" {each.claim[1] * 1000:8.2f} {each.empty[0] * 1000:11.2f} {each.empty[1] * 1000:8.2f}"
            f" {each.pickup[0] * 1000:14.2f} {each.pickup[1] * 1000:8.2f}"
            f" {sizes.runs / MIB:9,.0f} {sizes.run_indexes / MIB:8,.0f} {sizes.attempts / MIB:9,.0f}"
            f" {sizes.attempt_indexes / MIB:8,.0f} {each.house.dead:9,} {each.house.vacuums:8}"
            f" {each.house.analyses:9} {each.house.deleted:10,}"
        )
    print(flush=True)
