"""
One side of ``benchmarks.compare``: measures the tree that PYTHONPATH names, one figure for each line that it reads.

Uses only what a user's project would use, and helpers of the tree's own ``benchmarks``: so it can measure older trees.
It is started with a name for its database (MANTA_BENCH_RUN) and prints ``{"ready": …}``; then for each line, the name
of a measurement, ``{"seconds": …}``; it ends with its standard input.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import django

django.setup()

from django.db import transaction  # noqa: E402

from benchmarks import latency, scratch, tasks, working  # noqa: E402
from django_manta import workflow  # noqa: E402

QUEUE = "compare"
#: No worker takes from it: the enqueue alone is measured.
IDLE_QUEUE = "nobody"

CHAIN_STEPS = 50
REQUESTS = 150
PICKUPS = 25


def drain(worker: working.Command, count: int) -> float:
    scratch.empty()
    seconds = working.seconds_since(working.enqueue_and_wait(worker, QUEUE, count))
    [[good]] = working.ask("SELECT count(*) FROM manta_run WHERE state = 'SUCCESSFUL' AND result IS NOT NULL")
    assert good == count, f"{good} of {count} runs succeeded."
    return seconds


def enqueue_in_requests(worker: working.Command) -> float:
    """The median of single enqueues on a kept connection, each in a transaction with other queries around it."""
    scratch.empty()
    task = tasks.resize.using(queue_name=IDLE_QUEUE)
    taken = []
    for number in range(REQUESTS):
        args, kwargs = tasks.arguments(number)
        with transaction.atomic():
            working.ask("SELECT count(*) FROM django_migrations")
            began = time.perf_counter()
            task.enqueue(*args, **kwargs)
            taken.append(time.perf_counter() - began)
        working.ask("SELECT 1")
    return median(taken)


def enqueue_alone(worker: working.Command) -> float:
    """The same without a transaction around it, and with a pause, as requests come: the commit is measured too."""
    scratch.empty()
    task = tasks.resize.using(queue_name=IDLE_QUEUE)
    taken = []
    for number in range(REQUESTS // 2):
        args, kwargs = tasks.arguments(number)
        time.sleep(0.005)
        began = time.perf_counter()
        task.enqueue(*args, **kwargs)
        taken.append(time.perf_counter() - began)
    return median(taken)


def enqueue_many(worker: working.Command) -> float:
    scratch.empty()
    calls = [tasks.arguments(number) for number in range(5_000)]
    began = time.perf_counter()
    tasks.resize.using(queue_name=IDLE_QUEUE).enqueue_many(calls)
    return time.perf_counter() - began


def pickup(worker: working.Command) -> float:
    scratch.empty()
    dice = random.Random(PICKUPS)
    delays = []
    for _ in range(PICKUPS):
        time.sleep(dice.uniform(*latency.PAUSE_SECONDS))
        delays.append(latency.start_of_one(worker))
    return median(delays)


def chain(worker: working.Command, block: Callable[[], AbstractContextManager[Any]]) -> float:
    """Seconds a step, from the first enqueue to the last end."""
    scratch.empty()
    link = tasks.stamp.using(queue_name=QUEUE)
    began = time.perf_counter()
    with block():
        last = link.enqueue()
        for _ in range(CHAIN_STEPS - 1):
            last = link.using(after=[last]).enqueue()
    worker.wait_for(lambda: working.has_ended(last.id), "the last link has ended", every=0.002)
    return (time.perf_counter() - began) / CHAIN_STEPS


MEASUREMENTS: dict[str, Callable[[working.Command], float]] = {
    "drain of 20,000": lambda worker: drain(worker, 20_000),
    "drain of 2,000": lambda worker: drain(worker, 2_000),
    "enqueue in a request": enqueue_in_requests,
    "enqueue by itself": enqueue_alone,
    "enqueue_many(5,000)": enqueue_many,
    "pickup": pickup,
    "chain in workflow()": lambda worker: chain(worker, lambda: workflow("compare")),
    "chain in atomic()": lambda worker: chain(worker, transaction.atomic),
    "chain without a transaction": lambda worker: chain(worker, nullcontext),
}


def main() -> None:
    latency.QUEUE = QUEUE
    with scratch.databases(["default"]), working.worker(QUEUE) as worker:
        drain(worker, 5_000)
        print(json.dumps({"ready": list(MEASUREMENTS)}), flush=True)
        for line in sys.stdin:
            print(json.dumps({"seconds": MEASUREMENTS[line.strip()](worker)}), flush=True)


if __name__ == "__main__":
    main()
