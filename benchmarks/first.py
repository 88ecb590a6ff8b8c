"""
The first thousand of a large backlog, against a thousand alone: what is the size, and what is the wait for it.

To write a million rows takes a quarter of a minute, in which the workers are stopped (SIGSTOP), as the peers' are: who
looks for work among rows that nobody can see yet walks over all of them. So a thousand alone is measured twice: at
once, and by workers that were stopped for as long. What is lost against the first and not against the second is not
the backlog's doing.
"""

import time
from collections.abc import Iterator

from benchmarks import scratch, tasks, working
from benchmarks.measure import Figure, Stopwatch, compared, in_turns
from benchmarks.peers import database

TITLE = "The first 1,000 of a backlog, results and attempts stored, two processes"

QUEUE = "first"

#: So many are timed, and so many drained before, so that all are as warm.
FIRST, WARM = 1_000, 10_000

#: Rows beyond these are copies, whose signatures are not their own: nobody gets so far.
SIGNED = 20_000

LARGE, QUICK_LARGE = 1_000_000, 100_000


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = max(rows or (QUICK_LARGE if quick else LARGE), FIRST)
    writing = 0.0

    def alone(watch: Stopwatch) -> None:
        watch.seconds, _ = first_of(FIRST)

    def rested(watch: Stopwatch) -> None:
        watch.seconds, _ = first_of(FIRST, stopped=writing)

    def large(watch: Stopwatch) -> None:
        nonlocal writing
        watch.seconds, writing = first_of(count)

    # The last one begins, in the round that does not count: from then on it is known how long it takes to write them.
    taken = in_turns(rounds, alone=alone, rested=rested, large=large)
    what = f"of {count:,}, against 1,000 alone"
    yield compared(f"{what}, at once", FIRST, taken["large"], taken["alone"], at_least=0.9)
    yield compared(f"{what}, after as long a stop", FIRST, taken["large"], taken["rested"])
    yield compared("1,000 alone: after that stop, against at once", FIRST, taken["rested"], taken["alone"])


def first_of(count: int, stopped: float = 0.0) -> tuple[float, float]:
    """
    Seconds until the first thousand of ``count`` have ended, and those for which the worker was stopped: for as long as
    it takes to write them, and no less than ``stopped``.
    """
    with working.worker(QUEUE) as worker:
        for before in (WARM, FIRST):
            working.enqueue_and_wait(worker, QUEUE, before)
            scratch.empty()
        with worker.still():
            began = time.monotonic()
            with database.appearing("manta_run"):
                fill(count)
            time.sleep(max(0.0, began + stopped - time.monotonic()))
            appeared, writing = time.time(), time.monotonic() - began
        # The rows say when each ended; to count them among so many would take a processor from the worker.
        time.sleep(0.5)
        ended = worker.wait_for(lambda: moments() if working.ask(ENDED, FIRST - 1) else [], "1,000 have ended")
    return ended[-1] - appeared, writing


ENDED = "SELECT FROM manta_run WHERE finished_at IS NOT NULL OFFSET %s LIMIT 1"


def moments() -> list[float]:
    return database.moments("manta_run", "finished_at", "finished_at IS NOT NULL", FIRST)


def fill(count: int) -> None:
    """So many runs of the queue, the first of them as an enqueue leaves them."""
    calls = [tasks.arguments(number) for number in range(min(count, SIGNED))]
    working.enqueue(tasks.resize.using(queue_name=QUEUE), calls)
    if count > SIGNED:
        later = "\"row\".deadline + interval '1 day' + number * interval '1 microsecond'"
        database.copies("manta_run", count - SIGNED, key="id", id="gen_random_uuid()", deadline=later)
