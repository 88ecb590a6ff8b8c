"""What it costs to wait for others: a hop of a chain, a join of very many, and an edge to what is running."""

import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from django.db import transaction

from benchmarks import latency, scratch, tasks, working
from benchmarks.measure import Figure, Stopwatch, compared, in_turns, measured, milliseconds, percentile
from django_manta import promise, resolve

TITLE = "Workflows with a worker of two processes"

#: The worker takes from the queue of ``latency`` too, for the pickups that the hops are compared with.
QUEUE = "workflows"


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    with working.worker(QUEUE, latency.QUEUE) as worker:
        yield from hops(worker, rounds=min(rounds, 3), length=200 if quick else 1_000, pickups=20 if quick else 40)
        yield from joins(worker, rounds=min(rounds, 5), count=rows or (2_000 if quick else 10_000))
        yield edges_to_what_is_running(worker, count=50 if quick else 200)


# -- a chain -----------------------------------------------------------------------------------------


def hops(worker: working.Command, *, rounds: int, length: int, pickups: int) -> Iterator[Figure]:
    """From the first line of one link to the first line of the next, beside the pickups of single runs."""
    hopped, picked, ratios = [], [], []
    for _ in range(rounds):
        scratch.empty()
        singles = [pickup(worker) for _ in range(pickups)]
        delays = chain(worker, length)
        singles += [pickup(worker) for _ in range(pickups)]
        picked.append(median(singles))
        hopped.append(median(delays) * 1000)
        ratios.append(median(delays) / median(singles))
    yield Figure(
        what=f"a chain of {length:,}: a hop, p50, against the pickup of a single run",
        ours=f"{median(hopped):.2f} ms",
        limit=milliseconds(median(picked)),
        ratios=ratios,
        at_most=3,
    )


def pickup(worker: working.Command) -> float:
    time.sleep(latency.PAUSE_SECONDS[0])
    return latency.start_of_one(worker)


def chain(worker: working.Command, length: int) -> list[float]:
    """Seconds between the first lines of each two links."""
    link = tasks.stamp.using(queue_name=QUEUE)
    # Nothing starts before everything is counted: what is measured is the telling, not the enqueue.
    last = beginning = promise()
    ids = []
    with transaction.atomic():
        for _ in range(length):
            last = link.using(after=[last]).enqueue()
            ids.append(last.id)
    resolve(beginning.id)
    worker.wait_for(lambda: working.has_ended(ids[-1]), "the last link has ended", every=0.1)
    moments = [moment for moment, _ in working.values_of(ids)]
    return [(after - before) / 1e9 for before, after in pairwise(moments)]


# -- a join ------------------------------------------------------------------------------------------


def joins(worker: working.Command, *, rounds: int, count: int) -> Iterator[Figure]:
    """Many runs and one that is given the values of all, against as many runs that nobody waits for."""

    def ours(watch: Stopwatch) -> None:
        scratch.empty()
        calls = [tasks.arguments(number) for number in range(count)]
        with working.committed(by_database=True) as commit:
            parts = tasks.resize.using(queue_name=QUEUE).enqueue_many(calls)
            joined = tasks.how_many.using(queue_name=QUEUE).enqueue(parts)
        working.wait_until_ended(worker, joined.id)
        assert working.values_of([joined.id]) == [count]
        watch.seconds = working.seconds_since(commit)

    def plain(watch: Stopwatch) -> None:
        scratch.empty()
        watch.seconds = working.seconds_since(working.enqueue_and_wait(worker, QUEUE, count))

    taken = in_turns(rounds, ours=ours, plain=plain)
    yield compared(
        f"map of {count:,} and a join of their values, against a drain",
        count,
        taken["ours"],
        taken["plain"],
        at_least=0.6,
    )


# -- an edge -----------------------------------------------------------------------------------------


def edges_to_what_is_running(worker: working.Command, *, count: int) -> Figure:
    """How long an enqueue takes that depends on a run under way, beside one that depends on nothing."""
    scratch.empty()
    task = tasks.resize.using(queue_name="nobody")
    running = tasks.nap.using(queue_name=QUEUE).enqueue(count * 0.1)
    worker.wait_for(lambda: working.ask("SELECT FROM manta_run WHERE state = 'RUNNING'"), "it is running")
    depending, plain = [], []
    for number in range(count):
        args, kwargs = tasks.arguments(number)
        began = time.perf_counter()
        task.using(after=[running]).enqueue(*args, **kwargs)
        between = time.perf_counter()
        task.enqueue(*args, **kwargs)
        depending.append(between - began)
        plain.append(time.perf_counter() - between)
    [[state]] = working.ask("SELECT state FROM manta_run WHERE id = %s", running.id)
    assert state == "RUNNING", f"What was depended on is {state} already."
    return measured(
        f"{count} enqueues that depend on what is running, p99",
        [percentile(depending, 0.99) * 1000],
        "ms",
        limit=f"{milliseconds(percentile(plain, 0.99))} without",
        ratios=[median(depending) / median(plain)],
        at_most=50,
    )
