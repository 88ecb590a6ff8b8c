"""django-q2: one cluster with two workers, its queue in the database or in Redis, its results in the database."""

import os
import time
from typing import Any

from benchmarks.peers import database, work

VARIANT = os.environ.get("MANTA_PEER_VARIANT", "orm")
REDIS = os.environ.get("MANTA_PEERS_REDIS", "")

#: How many the guard asks the database for at once. Its documentation names it as the means against latency.
BULK = 50

SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": ["django.contrib.contenttypes", "django_q"],
    "Q_CLUSTER": {
        "name": "peers",
        "workers": 2,
        "timeout": 600,
        "retry": 1200,
        "save_limit": 0,
        "queue_limit": 500,
        "log_level": "WARNING",
        "catch_up": False,
        "ack_failures": True,
        **({"orm": "default", "poll": 0.01, "bulk": BULK} if VARIANT == "orm" else {"redis": REDIS}),
    },
    # A fan-out is joined in the cache, which all processes must share. It has a key for each of its parts, and by
    # Django's default a cache in the database throws away what is beyond 300.
    "CACHES": {
        "default": {
            "BACKEND": "django.core.cache.backends.db.DatabaseCache",
            "LOCATION": "django_cache",
            "OPTIONS": {"MAX_ENTRIES": 1_000_000},
        }
        if VARIANT == "orm"
        else {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS}
    },
}

NOTE = (
    "`qcluster` with two workers and `save_limit` 0, so that every result is kept in the database. With the ORM broker "
    f"`poll` is 0.01 and `bulk` {BULK}; with Redis a task is gone from the queue once a cluster has taken it. A "
    "cluster has processes besides its workers: a sentinel, a pusher and a monitor. `async_iter` is its fan-out: the "
    "join is a list of the values, made in the shared cache. It hands nothing on in a chain."
)

QUEUE, TASK = "django_q_ormq", "django_q_task"


def prepare() -> None:
    from django.core.management import call_command

    if VARIANT == "orm":
        call_command("createcachetable", verbosity=0)


def commands() -> list[list[str]]:
    return [["-m", "django", "qcluster", "--verbosity", "0"]]


def purge() -> None:
    database.empty(QUEUE, TASK)
    if VARIANT == "redis":
        _broker().purge_queue()


def enqueue(name: str, *args: Any) -> Any:
    from django_q.tasks import async_task

    return async_task(f"benchmarks.peers.work.{name}", *args, broker=_broker())


def value(handle: Any, timeout: float) -> Any:
    from django_q.tasks import fetch, result_group

    if isinstance(handle, tuple):
        group, count = handle
        values = result_group(group, wait=int(timeout * 1000), count=count)
        if values is None or len(values) < count:
            raise TimeoutError
        return values
    # Its own wait looks every 10 ms, which is longer than a run takes: first with smaller pauses, as for everybody.
    looked = time.monotonic()
    while time.monotonic() - looked < min(EAGER_SECONDS, timeout):
        if task := fetch(handle):
            return task.result
        time.sleep(0.002)
    task = fetch(handle, wait=int(timeout * 1000))
    if task is None:
        raise TimeoutError
    return task.result


#: Then looks would take from the workers what they give to the one who waits.
EAGER_SECONDS = 0.2


#: Packages beyond these are copies with the same id, which would count once: nobody gets so far.
WRITTEN = 20_000


def fill(count: int) -> None:
    packages = [_package() for _ in range(min(count, WRITTEN))]
    if VARIANT == "orm":
        from django.utils import timezone
        from django_q.models import OrmQ

        rows = [OrmQ(key="peers", payload=package, lock=timezone.now()) for package in packages]
        with database.appearing(QUEUE):
            OrmQ.objects.bulk_create(rows, batch_size=1_000)
            if count > WRITTEN:
                database.copies(QUEUE, count - WRITTEN, key="id")
        return
    broker = _broker()
    staged = f"{broker.list_key}:staged"
    broker.connection.rpush(staged, *packages)
    for first in range(WRITTEN, count, 10_000):
        broker.connection.rpush(staged, *packages[-1:] * min(10_000, count - first))
    broker.connection.rename(staged, broker.list_key)


def _package() -> str:
    """As ``async_task`` makes it."""
    from django.utils import timezone
    from django_q.humanhash import uuid
    from django_q.signing import SignedPackage

    name, identifier = uuid()
    call = {"func": "benchmarks.peers.work.resize", "args": work.ARGUMENTS, "kwargs": {}}
    package: str = SignedPackage.dumps(
        {"id": identifier, "name": name, **call, "ack_failure": True, "started": timezone.now()}
    )
    return package


def finished() -> int:
    return database.count_rows(TASK, "success")


def chain(length: int) -> Any:
    from django_q.tasks import async_chain

    return async_chain([("benchmarks.peers.work.link", ())] * length), length


def fan(width: int) -> Any:
    from django_q.tasks import async_iter

    return async_iter("benchmarks.peers.work.resize", [work.ARGUMENTS] * width)


def _broker() -> Any:
    """One for all calls, as its documentation advises: by default each call would open a connection."""
    from django_q.brokers import get_broker

    if not _kept:
        _kept.append(get_broker())
    return _kept[0]


_kept: list[Any] = []


def _commands_sent() -> int:
    return int(_broker().connection.info("stats")["total_commands_processed"])


if VARIANT == "redis":
    commands_sent = _commands_sent
