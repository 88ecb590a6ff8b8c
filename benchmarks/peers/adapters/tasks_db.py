"""django-tasks-db: two `db_worker` processes."""

from typing import Any

from benchmarks.peers import database

SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": ["django_tasks_db"],
    "TASKS": {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
}

NOTE = (
    "Two `db_worker` processes that look for work every 10 ms (`--interval 0.01`; by default once a second) and keep "
    "their connections. It has no call for many, and nothing that waits for something else."
)

TABLE = "django_tasks_database_dbtaskresult"


def commands() -> list[list[str]]:
    return [["-m", "django", "db_worker", "--interval", "0.01", "--no-startup-delay", "--verbosity", "0"]] * 2


def purge() -> None:
    database.empty(TABLE)


def enqueue(name: str, *args: Any) -> Any:
    from benchmarks.peers import django_tasks

    return django_tasks.enqueue(name, *args)


def value(result: Any, timeout: float) -> Any:
    from benchmarks.peers import django_tasks

    return django_tasks.value(result, timeout)


def fill(count: int) -> None:
    from benchmarks.peers import work

    with database.appearing(TABLE):
        enqueue("resize", *work.ARGUMENTS)
        database.copies(TABLE, count - 1, key="id", id="gen_random_uuid()", enqueued_at="clock_timestamp()")


def finished() -> int:
    return database.count_rows(TABLE, "status = 'SUCCESSFUL'")


def moments(most: int) -> list[float]:
    return database.moments(TABLE, "finished_at", "status = 'SUCCESSFUL'", most)
