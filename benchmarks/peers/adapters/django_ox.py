"""django-ox: one `ox_worker` with two processes; workflows by its optional app `oxpull`."""

from typing import Any

from django.db import transaction

from benchmarks.peers import database, work

SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": ["django_ox", "oxpull"],
    "TASKS": {
        "default": {"BACKEND": "django_ox.backend.OxBackend", "QUEUES": ["default"]},
        # Its worker looks at dependencies in every claim: only workflows pay for that. A worker takes from its queues,
        # whichever backend wrote them: so they have a queue of their own.
        "flows": {
            "BACKEND": "oxpull.backend.OxpullBackend",
            "QUEUES": ["flows"],
            "OPTIONS": {
                "WORKER_CLASS": "oxpull.worker.OxpullWorker",
                "WORKFLOWS": True,
                "SCHEDULES": {
                    "oxpull-workflow-reconcile": {
                        "task": "oxpull.workflows.reconcile",
                        "cron": "* * * * *",
                        "queue_name": "flows",
                    },
                },
            },
        },
    },
}

NOTE = (
    "`ox_worker --processes 2 --interval 0.01` (by default it looks once a second), connections kept. Workflows run on "
    "a second alias with `OxpullBackend`, whose nodes are not given each other's values."
)

TABLE = "django_ox_oxtask"

FLOWS = {"backend": "flows", "queue_name": "flows"}


def commands() -> list[list[str]]:
    return [["-m", "django", "ox_worker", "--processes", "2", "--interval", "0.01", "--verbosity", "0"]]


def workflow_commands() -> list[list[str]]:
    # One pair for all: an idle second one would look for work beside it every 10 ms.
    return [[*commands()[0], "--backend", "flows", "--queues", "flows,default"]]


def purge() -> None:
    database.empty(TABLE)


def enqueue(name: str, *args: Any) -> Any:
    return _tasks().enqueue(name, *args)


def value(result: Any, timeout: float) -> Any:
    return _tasks().value(result, timeout)


def bulk(count: int) -> None:
    from django_ox.bulk import enqueue_many

    enqueue_many(_tasks().resize, [(work.ARGUMENTS, {})] * count)


def fill(count: int) -> None:
    with database.appearing(TABLE):
        enqueue("resize", *work.ARGUMENTS)
        database.copies(TABLE, count - 1, key="id", id="gen_random_uuid()", enqueued_at="clock_timestamp()")


def finished() -> int:
    return database.count_rows(TABLE, "status = 'SUCCESSFUL'")


def moments(most: int) -> list[float]:
    return database.moments(TABLE, "finished_at", "status = 'SUCCESSFUL'", most)


def chain(length: int) -> Any:
    from oxpull import workflows

    link = _tasks().link.using(**FLOWS)
    with transaction.atomic():
        flow = workflows.create("chain")
        for number in range(length):
            flow.add(str(number), link, depends_on=str(number - 1) if number else None)
        flow.seal()
    return _result(flow, str(length - 1))


def fan(width: int) -> Any:
    from oxpull import workflows

    resize, join = _tasks().resize.using(**FLOWS), _tasks().count.using(**FLOWS)
    with transaction.atomic():
        flow = workflows.create("fan")
        for number in range(width):
            flow.add(str(number), resize, *work.ARGUMENTS)
        flow.add("join", join, [], depends_on=[str(number) for number in range(width)])
        flow.seal()
    return _result(flow, "join")


def _result(flow: Any, node: str) -> Any:
    from django.tasks import task_backends

    return task_backends["flows"].get_result(str(flow.node_ids()[node]))


def _tasks() -> Any:
    from benchmarks.peers import django_tasks

    return django_tasks
