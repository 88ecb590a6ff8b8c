"""Celery: Redis as its broker, results in the database by django-celery-results, two prefork processes."""

import json
import os
import uuid
from typing import Any

import redis
from celery import Celery, chord
from celery import chain as chained

from benchmarks.peers import database, work

REDIS = os.environ.get("MANTA_PEERS_REDIS", "redis://127.0.0.1:6379/0")

SETTINGS: dict[str, Any] = {"INSTALLED_APPS": ["django_celery_results"]}

NOTE = (
    "`celery worker --pool prefork --concurrency 2`, without gossip, mingle and events, a prefetch of 64 a process, as "
    "its guide says for many short tasks, `worker_disable_rate_limits`, and `CELERY_DB_REUSE_MAX` against two new "
    "connections for each task. Results go to PostgreSQL by django-celery-results; one waits by `get(interval=0.002)`. "
    "The broker is Redis with `hiredis`; by default a task is acknowledged before it runs, so that a killed worker "
    "loses it."
)

app = Celery("peers", broker=REDIS, backend="django-db")
app.conf.update(
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    worker_disable_rate_limits=True,
    worker_prefetch_multiplier=64,
    worker_send_task_events=False,
    result_extended=False,
    broker_connection_retry_on_startup=True,
    task_default_queue="peers",
)

# By default its support for Django closes the connection to the database before and after each task.
app.conf["CELERY_DB_REUSE_MAX"] = 10_000

resize = app.task(name="resize")(work.resize)
stamp = app.task(name="stamp")(work.stamp)
nap = app.task(name="nap")(work.nap)
link = app.task(name="link")(work.link)
count_all = app.task(name="count")(work.count)

RESULTS = "django_celery_results_taskresult"


def commands() -> list[list[str]]:
    flags = ("--pool", "prefork", "--concurrency", "2", "--without-gossip", "--without-mingle", "--loglevel", "WARNING")
    return [["-m", "celery", "-A", "benchmarks.peers.adapters.celery", "worker", *flags, "--queues", "peers"]]


def purge() -> None:
    database.empty(RESULTS, "django_celery_results_chordcounter", "django_celery_results_groupresult")
    _redis().unlink("peers")


def enqueue(name: str, *args: Any) -> Any:
    return app.tasks[name].delay(*args)


def value(result: Any, timeout: float) -> Any:
    from celery.exceptions import TimeoutError as NotYet

    try:
        return result.get(timeout=timeout, interval=0.002)
    except NotYet:
        raise TimeoutError from None


def fill(count: int) -> None:
    """Messages like the one that ``delay`` writes, each with an id of its own; the queue appears when all are there."""
    resize.apply_async(work.ARGUMENTS, queue="template", routing_key="template")
    template = _redis().lpop("template").decode()
    old = json.loads(template)["headers"]["id"]
    pipe = _redis().pipeline(transaction=False)
    for number in range(count):
        pipe.rpush("staged", template.replace(old, str(uuid.UUID(int=number))))
        if number % 10_000 == 9_999:
            pipe.execute()
    pipe.execute()
    _redis().rename("staged", "peers")


def finished() -> int:
    return database.count_rows(RESULTS, "status = 'SUCCESS'")


def moments(most: int) -> list[float]:
    return database.moments(RESULTS, "date_done", "status = 'SUCCESS'", most)


def chain(length: int) -> Any:
    return chained(link.s(0), *[link.s()] * (length - 1)).apply_async()


def fan(width: int) -> Any:
    return chord([resize.s(*work.ARGUMENTS) for _ in range(width)])(count_all.s())


def commands_sent() -> int:
    return int(_redis().info("stats")["total_commands_processed"])


def _redis() -> Any:
    if not _kept:
        # Ours, to fill and to count: with a million waiting an answer may take longer than redis-py's five seconds.
        _kept.append(redis.Redis.from_url(REDIS, socket_timeout=None))
    return _kept[0]


_kept: list[Any] = []
