"""django-ray 0.7: its worker without Ray (`--sync`), or on a local Ray with two processors (Ray Core)."""

import os
from typing import Any

from benchmarks.peers import database, work

VARIANT = os.environ.get("MANTA_PEER_VARIANT", "core")

SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": ["django.contrib.contenttypes", "django.contrib.auth", "django_ray"],
    "TASKS": {"default": {"BACKEND": "django_ray.backends.RayTaskBackend", "QUEUES": ["default"]}},
    "DJANGO_RAY": {
        "RAY_ADDRESS": "auto",
        "RUNNER": "ray_core",
        "DEFAULT_CONCURRENCY": 2,
        "WORKER_POLL_INTERVAL_SECONDS": 0.01,
        "WORKER_POLL_MAX_INTERVAL_SECONDS": 0.01,
    },
}

NOTE = (
    "`django_ray_worker --sync`, two of them, or `--local` with two runs at a time; it looks for work every 10 ms "
    "(by default 100 ms). Its workflows run inside one durable task and are not compared."
)

TABLE = "django_ray_raytaskexecution"


def commands() -> list[list[str]]:
    worker = ["-m", "django", "django_ray_worker", "--queue", "default", "--verbosity", "0"]
    return [[*worker, "--sync"]] * 2 if VARIANT == "sync" else [[*worker, "--local", "--concurrency", "2"]]


def purge() -> None:
    database.empty(TABLE)


def enqueue(name: str, *args: Any) -> Any:
    return _tasks().enqueue(name, *args)


def value(result: Any, timeout: float) -> Any:
    return _tasks().value(result, timeout)


def fill(count: int) -> None:
    with database.appearing(TABLE):
        enqueue("resize", *work.ARGUMENTS)
        database.copies(TABLE, count - 1, key="id", task_id="gen_random_uuid()::text")


def finished() -> int:
    return database.count_rows(TABLE, "state = 'SUCCEEDED'")


def moments(most: int) -> list[float]:
    return database.moments(TABLE, "finished_at", "state = 'SUCCEEDED'", most)


def _tasks() -> Any:
    from benchmarks.peers import django_tasks

    return django_tasks
