"""procrastinate with its Django app: two worker processes, one job at a time, woken by LISTEN/NOTIFY."""

import time
import uuid
from typing import Any

from procrastinate import Blueprint

from benchmarks.peers import database, stamps, work

tasks = Blueprint()


@tasks.task(name="resize")
def resize(image: str, width: int, height: int, quality: int = 80) -> dict[str, int]:
    return work.resize(image, width, height, quality)


@tasks.task(name="stamp")
def stamp(key: str, seconds: float = 0.0) -> None:
    stamps.leave(key, work.stamp(seconds))


@tasks.task(name="nap")
def nap(seconds: float) -> None:
    work.nap(seconds)


def on_app_ready(app: Any) -> None:
    app.add_tasks_from(tasks, namespace="peers")


SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": ["procrastinate.contrib.django"],
    "PROCRASTINATE_ON_APP_READY": "benchmarks.peers.adapters.procrastinate.on_app_ready",
}

NOTE = (
    "Two `procrastinate worker` processes with `--concurrency 1`, LISTEN/NOTIFY on. It keeps the state and the events "
    "of a job and no values: a result is that the job has succeeded, and a start is noted in a file. It has nothing "
    "that waits for something else."
)

JOBS, EVENTS = "procrastinate_jobs", "procrastinate_events"

NAMES = {"resize": ("image", "width", "height", "quality"), "nap": ("seconds",)}


def commands() -> list[list[str]]:
    return [["-m", "django", "procrastinate", "worker", "--concurrency", "1"]] * 2


def purge() -> None:
    database.empty(JOBS, EVENTS)


def enqueue(name: str, *args: Any) -> Any:
    if name == "stamp":
        key = uuid.uuid4().hex
        return _task("stamp").defer(key=key, seconds=args[0] if args else 0.0), key
    return _task(name).defer(**dict(zip(NAMES[name], args, strict=True))), ""


def value(handle: tuple[int, str], timeout: float) -> Any:
    job, key = handle
    deadline = time.monotonic() + timeout
    while not database.ask(f"SELECT FROM {JOBS} WHERE id = %s AND status = 'succeeded'", job):
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(0.002)
    return stamps.find(key) if key else None


def bulk(count: int) -> None:
    given = dict(zip(NAMES["resize"], work.ARGUMENTS, strict=True))
    _task("resize").batch_defer(*[given] * count)


#: Rows beyond these are copies, made without a NOTIFY for each.
WRITTEN = 2_000


def fill(count: int) -> None:
    with database.appearing(JOBS, EVENTS):
        bulk(min(count, WRITTEN))
        if count > WRITTEN:
            database.execute("SET LOCAL session_replication_role = replica")
            database.copies(JOBS, count - WRITTEN, key="id")
            database.execute(
                f"INSERT INTO {EVENTS} (job_id, type) SELECT id, 'deferred' FROM {JOBS} AS job"
                f" WHERE id > (SELECT max(job_id) FROM {EVENTS})"
            )
            database.execute("SET LOCAL session_replication_role = origin")


def finished() -> int:
    return database.count_rows(EVENTS, "type = 'succeeded'")


def moments(most: int) -> list[float]:
    return database.moments(EVENTS, "at", "type = 'succeeded'", most)


def _task(name: str) -> Any:
    from procrastinate.contrib.django import app

    return app.tasks[f"peers:{name}"]
