"""django-manta: a worker with two processes, or one that executes on a Ray with two processors."""

import os
from typing import Any

from benchmarks.peers import database, work

VARIANT = os.environ.get("MANTA_PEER_VARIANT", "processes")

SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": ["django_manta"],
    "TASKS": {
        "default": {
            "BACKEND": "django_manta.MantaBackend",
            "OPTIONS": {"QUEUE_OPTIONS": {"default": {"runner": "ray"}}, "RAY": {"NUM_CPUS": 2}}
            if VARIANT == "ray"
            else {},
        }
    },
}

NOTE = (
    "One worker as the quickstart starts it: `manta worker --processes 2`, or `--runner ray` with two processors. The "
    "worker has a process of its own beside the two that execute: it claims and settles for both, many runs with one "
    "statement, and hands them over in batches. Each of the two executes one run at a time. One waits by "
    "`result.join()`."
)

TABLES = ("manta_run", "manta_attempt", "manta_dependency", "manta_gate", "manta_herald", "manta_workflow")

#: Rows beyond these are copies, whose signatures are not their own: nobody gets so far.
SIGNED = 20_000


def commands() -> list[list[str]]:
    how = ("--runner", "ray") if VARIANT == "ray" else ("--processes", "2")
    return [["-m", "django", "manta", "worker", "--verbosity", "0", *how]]


def purge() -> None:
    database.empty(*TABLES)


def enqueue(name: str, *args: Any) -> Any:
    return _tasks().enqueue(name, *args)


def value(result: Any, timeout: float) -> Any:
    return result.join(timeout)


def bulk(count: int) -> None:
    _tasks().resize.enqueue_many([(work.ARGUMENTS, {})] * count)


def fill(count: int) -> None:
    with database.appearing("manta_run"):
        bulk(min(count, SIGNED))
        if count > SIGNED:
            later = "\"row\".deadline + interval '1 day' + number * interval '1 microsecond'"
            database.copies("manta_run", count - SIGNED, key="id", id="gen_random_uuid()", deadline=later)


def finished() -> int:
    return database.count_rows("manta_run", "state = 'SUCCESSFUL' AND finished_at IS NOT NULL")


def moments(most: int) -> list[float]:
    return database.moments("manta_run", "finished_at", "state = 'SUCCESSFUL' AND finished_at IS NOT NULL", most)


def chain(length: int) -> Any:
    from django_manta import workflow

    link = _tasks().link
    with workflow("chain"):
        last = link.enqueue()
        for _ in range(length - 1):
            last = link.enqueue(last)
    return last


def fan(width: int) -> Any:
    from django_manta import workflow

    with workflow("fan"):
        return _tasks().count.enqueue(_tasks().resize.enqueue_many([(work.ARGUMENTS, {})] * width))


def _tasks() -> Any:
    """They can be imported only when Django is set up; and to type checkers they are Django's, not ours."""
    from benchmarks.peers import django_tasks

    return django_tasks
