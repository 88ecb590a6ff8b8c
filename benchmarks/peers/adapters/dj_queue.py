"""dj-queue: one supervisor with two worker processes of one thread, woken by LISTEN/NOTIFY."""

from typing import Any

from benchmarks.peers import database, work

#: How many runs a thread claims ahead (by default 2). Of 2, 10, 50 and 100 this one drains fastest.
PREFETCH = 50

WORKERS = {"queues": "*", "threads": 1, "processes": 2, "polling_interval": 0.1, "prefetch_multiplier": PREFETCH}

SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": ["dj_queue"],
    "TASKS": {
        "default": {
            "BACKEND": "dj_queue.backend.DjQueueBackend",
            "QUEUES": [],
            "OPTIONS": {
                "workers": [WORKERS],
                "listen_notify": True,
            },
        }
    },
}

NOTE = (
    f"`dj_queue` with two worker processes of one thread, a `prefetch_multiplier` of {PREFETCH} (by default 2), "
    "`listen_notify` on, and `CONN_MAX_AGE` as its documentation advises. It has nothing that waits for something else."
)

JOBS, READY = "dj_queue_jobs", "dj_queue_ready_executions"


def commands() -> list[list[str]]:
    return [["-m", "django", "dj_queue", "--verbosity", "0"]]


def purge() -> None:
    # The processes that are at work are in a table of their own, and stay.
    database.execute(f"TRUNCATE {JOBS} CASCADE")
    database.execute("CHECKPOINT")


def enqueue(name: str, *args: Any) -> Any:
    return _tasks().enqueue(name, *args)


def value(result: Any, timeout: float) -> Any:
    return _tasks().value(result, timeout)


def bulk(count: int) -> None:
    from django.tasks import default_task_backend

    default_task_backend.enqueue_all([(_tasks().resize, work.ARGUMENTS, {})] * count)


#: Rows beyond these are copies.
WRITTEN = 2_000


def fill(count: int) -> None:
    with database.appearing(JOBS, READY):
        bulk(min(count, WRITTEN))
        if count > WRITTEN:
            database.copies(JOBS, count - WRITTEN, key="id", id="gen_random_uuid()")
            # Each job that is ready has a row in a second table. The planner must know how many there are: it took the
            # tables for empty once, and compared a million rows with a million.
            database.execute(f"ANALYZE {JOBS}, {READY}")
            columns = [name for [name] in database.ask(_COLUMNS, READY)]
            given = ["job.id" if name == "job_id" else f"one.{name}" for name in columns]
            database.execute(
                f"INSERT INTO {READY} ({', '.join(columns)}) SELECT {', '.join(given)} FROM {JOBS} AS job,"
                f" (SELECT * FROM {READY} LIMIT 1) AS one"
                f" WHERE NOT EXISTS (SELECT FROM {READY} AS other WHERE other.job_id = job.id)"
            )


_COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name = %s AND column_name <> 'id'
"""


def finished() -> int:
    return database.count_rows(JOBS, "finished_at IS NOT NULL")


def moments(most: int) -> list[float]:
    return database.moments(JOBS, "finished_at", "finished_at IS NOT NULL", most)


def _tasks() -> Any:
    from benchmarks.peers import django_tasks

    return django_tasks
