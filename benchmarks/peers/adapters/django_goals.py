"""django-goals: two busy workers, which execute goals and move what waits."""

import time
import uuid
from typing import Any

from django.db import transaction

from benchmarks.peers import database, stamps, work

SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": [
        "django.contrib.contenttypes",
        "django.contrib.auth",
        "django_goals",
        "django_object_actions",
    ],
}

NOTE = (
    "Two `goals_busy_worker` processes, which look for work once a second when idle; there is no setting for it. Its "
    "`goals_blocking_worker` is meant for latency, but hangs at its first notification with psycopg 3.2 and 3.3. It "
    "keeps states and no values: a result is that the goal is achieved, and a start is noted in a file. Handlers run "
    "inside a transaction. Measured on Django 5.2."
)

GOALS, PROGRESS = "django_goals_goal", "django_goals_goalprogress"


def resize(goal: Any, *args: Any) -> Any:
    work.resize(*args)
    return _done()


def stamp(goal: Any, key: str, seconds: float = 0.0) -> Any:
    stamps.leave(key, work.stamp(seconds))
    return _done()


def nap(goal: Any, seconds: float) -> Any:
    work.nap(seconds)
    return _done()


def link(goal: Any) -> Any:
    work.link()
    return _done()


def _done() -> Any:
    from django_goals.models import AllDone

    return AllDone()


def commands() -> list[list[str]]:
    return [["-m", "django", "goals_busy_worker"]] * 2


def purge() -> None:
    database.empty(GOALS)


def enqueue(name: str, *args: Any) -> Any:
    key = uuid.uuid4().hex if name == "stamp" else ""
    return _schedule(name, [key, *args] if key else list(args)), key


def _schedule(name: str, args: list[Any], after: list[Any] | None = None) -> Any:
    from django_goals.models import schedule

    return schedule(f"{__name__}.{name}", args=args, precondition_goals=after)


def value(handle: Any, timeout: float) -> Any:
    goal, key = handle
    deadline = time.monotonic() + timeout
    while not database.ask(f"SELECT FROM {GOALS} WHERE id = %s AND state = 'achieved'", goal.id):
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(0.002)
    return stamps.find(key) if key else None


def fill(count: int) -> None:
    with database.appearing(GOALS):
        enqueue("resize", *work.ARGUMENTS)
        later = "\"row\".deadline + number * interval '1 microsecond'"
        database.copies(GOALS, count - 1, key="id", id="gen_random_uuid()", deadline=later)


def finished() -> int:
    return database.count_rows(PROGRESS, "success")


def chain(length: int) -> Any:
    with transaction.atomic():
        last = _schedule("link", [])
        for _ in range(length - 1):
            last = _schedule("link", [], [last])
    return last, ""


def fan(width: int) -> Any:
    with transaction.atomic():
        parts = [_schedule("resize", list(work.ARGUMENTS)) for _ in range(width)]
        return _schedule("link", [], parts), ""
