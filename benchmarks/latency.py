"""How soon an idle worker starts a run, beside the round trip of a bare NOTIFY."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import psycopg

from benchmarks import scratch, tasks, working
from benchmarks.echo import PING, PONG
from benchmarks.measure import Figure, measured, milliseconds, percentile

TITLE = "An idle worker: from the commit of an enqueue to the first line of the task"

QUEUE = "latency"

#: Between two runs: longer than the doorbell's debounce, so that the worker has gone to sleep again, and
#: never the same, so that nothing that happens regularly is always met or always missed.
PAUSE_SECONDS = (0.04, 0.08)


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = 50 if quick else 200
    dice = random.Random(count)
    with working.worker(QUEUE) as worker, answering() as connection:
        delays, trips = [], []
        for number in range(count + 5):
            time.sleep(dice.uniform(*PAUSE_SECONDS))
            trip = round_trip(connection)
            time.sleep(dice.uniform(*PAUSE_SECONDS))
            delay = start_of_one(worker)
            if number >= 5:
                trips.append(trip)
                delays.append(delay)
    yield measured(
        f"{count} single runs, p50",
        [delay * 1000 for delay in delays],
        "ms",
        limit=f"{milliseconds(median(trips))} NOTIFY",
        ratios=[median(delays) / median(trips)],
        at_most=3,
    )
    yield measured(
        f"{count} single runs, p99",
        [percentile(delays, 0.99) * 1000],
        "ms",
        limit=f"{milliseconds(percentile(trips, 0.99))} NOTIFY",
        ratios=[percentile(delays, 0.99) / percentile(trips, 0.99)],
        at_most=15,
    )


def start_of_one(worker: working.Command, queue: str | None = None) -> float:
    """Seconds from the commit to the first line. CLOCK_MONOTONIC is one clock for all processes of a machine."""
    # Not as a default: benchmarks.compare sets the name.
    queue = queue or QUEUE
    with working.committed() as commit:
        [run_id] = working.enqueue(tasks.stamp.using(queue_name=queue), [([], {})])
    # It is left alone meanwhile: whoever asks for the result takes time on a processor.
    time.sleep(0.02)
    worker.wait_for(lambda: working.has_ended(run_id), "the run has ended", every=0.005)
    [[started, _]] = working.values_of([run_id])
    return float(started - commit.nanoseconds) / 1e9


@contextmanager
def answering() -> Iterator[psycopg.Connection[Any]]:
    """Somebody in another process who answers our NOTIFY, and the connection that hears the answer."""
    echo = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.echo"],
        cwd=working.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert echo.stdin is not None
    assert echo.stdout is not None
    try:
        if echo.stdout.readline() != b"ready\n":
            raise working.Trouble("Nobody answers NOTIFY: benchmarks.echo did not start.")
        with scratch.plain_connection() as connection:
            connection.execute(f"LISTEN {PONG}")
            yield connection
    finally:
        echo.stdin.close()
        try:
            echo.wait(5)
        except subprocess.TimeoutExpired:
            echo.kill()
            echo.wait()
        echo.stdout.close()


def round_trip(connection: psycopg.Connection[Any]) -> float:
    """Seconds from our NOTIFY to the answer."""
    began = time.monotonic()
    connection.execute(f"NOTIFY {PING}")
    if not list(connection.notifies(timeout=5, stop_after=1)):
        raise working.Trouble("Nobody answered NOTIFY within 5 s.")
    return time.monotonic() - began
