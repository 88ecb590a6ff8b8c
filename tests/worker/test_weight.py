"""What a worker has in memory is bounded, also where arguments and results are large."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.app import tasks
from tests.worker.conftest import Start, WorkerProcess, ended

MIB = 2**20

#: What a worker may need at the most while its runs have large arguments or results; without, it is about 65 MiB.
MOST_MEMORY = 250 * MIB

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def memory_of(worker: WorkerProcess) -> Iterator[list[int]]:
    """What the worker's main process needs, at one moment after the other."""
    process = psutil.Process(worker.pid)
    seen = [process.memory_info().rss]
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            seen.append(process.memory_info().rss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@pytest.mark.postgres
def test_large_arguments_do_not_fill_the_memory_of_a_worker(start_worker: Start) -> None:
    """SQLite claims few at a time."""
    # Its children learn from these that the task is short, and are given many at a time.
    small = tasks.measure.map(["x"] * 2_000)
    large = tasks.measure.map(["x" * (2 * MIB)] * 150)
    worker = start_worker().ready()
    with memory_of(worker) as seen:
        ended(*small, *large, limit=120, worker=worker)
    assert {run.return_value for run in large} == {2 * MIB}
    assert max(seen) < MOST_MEMORY, f"{max(seen) / MIB:.0f} MiB"
    print(f"peak {max(seen) / MIB:.0f} MiB")
