"""What a worker has in memory is bounded, also where arguments and results are large."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psutil
import pytest
from django.db import connection

from django_manta import State
from django_manta.execution.runners.flights import GRACE_SECONDS
from django_manta.ledger import PostgresSession
from tests.app import tasks
from tests.worker.conftest import Start, WorkerProcess, ended, outcomes, wait_for

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


def is_waited_for(seconds: float) -> bool:
    """Whether a statement has waited for a lock for so long."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            " AND clock_timestamp() - query_start > make_interval(secs => %s)",
            [seconds],
        )
        [[count]] = cursor.fetchall()
    return bool(count)


@pytest.mark.postgres
@pytest.mark.parametrize("task", [tasks.repeat, tasks.repeat_async])
def test_no_run_is_killed_for_its_time_limit_while_its_value_is_stored(start_worker: Start, task: Any) -> None:
    worker = start_worker().ready()
    ended(task.enqueue("x", 1), worker=worker)
    with closing(PostgresSession()) as other, other.transaction():
        other.connection.execute("LOCK TABLE manta_attempt IN EXCLUSIVE MODE")
        # It is stored by the process that made it.
        large = task.using(timeout=1).enqueue("x", 2 * MIB)
        wait_for(lambda: is_waited_for(1 + GRACE_SECONDS + 1), 30, worker.tell)
    ended(large, worker=worker)
    assert (large.state, outcomes(large)) == (State.SUCCESSFUL, ["SUCCESSFUL"]), worker.tell()
    assert "died" not in worker.log.read_text()


@pytest.mark.parametrize("task", [tasks.return_what_is_never_read, tasks.return_what_is_never_read_async])
def test_a_run_whose_value_is_never_stored_does_not_keep_its_process_for_ever(start_worker: Start, task: Any) -> None:
    worker = start_worker("--processes", "1", environment={"MANTA_TEST_MODULE": "tests.quick_storage"}).ready()
    stuck = task.using(timeout=0.5, max_attempts=1).enqueue()
    ended(stuck, worker=worker)
    assert (stuck.state, outcomes(stuck)) == (State.FAILED, ["TIMED_OUT"]), worker.tell()
    assert "its value was not stored within 2 s" in stuck.errors[0].traceback + stuck.history[0].error_message
    after = tasks.add.enqueue(1, 2)
    ended(after, worker=worker)
    assert after.state is State.SUCCESSFUL
