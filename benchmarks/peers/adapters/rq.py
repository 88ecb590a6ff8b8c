"""RQ: two workers of a pool that execute in their own process."""

import os
from typing import Any

import redis
from rq import Queue
from rq.job import Job

from benchmarks.peers import work

REDIS = os.environ.get("MANTA_PEERS_REDIS", "redis://127.0.0.1:6379/0")

SETTINGS: dict[str, Any] = {}

NOTE = (
    "`rq worker-pool --num-workers 2` with `SimpleWorker`, which executes in its own process: RQ's default forks a "
    "process for each job, which is safer and slower. `hiredis`. Results live in Redis; one waits by "
    "`Job.latest_result` with a timeout. Dependent jobs are given no values."
)

KEEP_SECONDS = 3_600
LARGE = 15_000


def commands() -> list[list[str]]:
    pool = ["-m", "rq.cli", "worker-pool", "peers", "--url", REDIS, "--num-workers", "2"]
    return [[*pool, "--worker-class", "rq.worker.SimpleWorker", "--logging-level", "WARNING"]]


def purge() -> None:
    kept = _redis()
    if kept.llen("rq:queue:peers") > LARGE:
        # Left over from a backlog: no worker is running, and a million keys one by one take long.
        kept.flushdb(asynchronous=True)
        return
    kept.delete("rq:queue:peers", "rq:finished:peers", "rq:wip:peers")
    portion: list[bytes] = []
    for pattern in ("rq:job:*", "rq:results:*"):
        for key in kept.scan_iter(pattern, count=10_000):
            portion.append(key)
            if len(portion) == 5_000:
                kept.unlink(*portion)
                portion = []
    if portion:
        kept.unlink(*portion)


def enqueue(name: str, *args: Any) -> Any:
    return _queue().enqueue(f"benchmarks.peers.work.{name}", *args, result_ttl=KEEP_SECONDS)


def value(job: Any, timeout: float) -> Any:
    result = job.latest_result(timeout=max(1, int(timeout)))
    if result is None:
        raise TimeoutError
    return result.return_value


def bulk(count: int) -> None:
    call = Queue.prepare_data("benchmarks.peers.work.resize", args=work.ARGUMENTS, result_ttl=KEEP_SECONDS)
    _queue().enqueue_many([call] * count)


def fill(count: int) -> None:
    """Hashes like the one of a first job, each with an id of its own; the queue appears when all are there."""
    first = Job.create("benchmarks.peers.work.resize", work.ARGUMENTS, result_ttl=KEEP_SECONDS, connection=_redis())
    first.origin = "peers"
    first.set_status("queued")
    pipe = _redis().pipeline(transaction=False)
    mapping = first.to_dict()
    for number in range(count):
        pipe.hset(f"rq:job:filled-{number}", mapping=mapping)
        pipe.rpush("staged", f"filled-{number}")
        if number % 10_000 == 9_999:
            pipe.execute()
    pipe.execute()
    _redis().rename("staged", "rq:queue:peers")


def finished() -> int:
    return int(_redis().zcard("rq:finished:peers"))


def chain(length: int) -> Any:
    last = enqueue("link")
    for _ in range(length - 1):
        last = _queue().enqueue("benchmarks.peers.work.link", depends_on=last, result_ttl=KEEP_SECONDS)
    return last


def fan(width: int) -> Any:
    call = Queue.prepare_data("benchmarks.peers.work.resize", args=work.ARGUMENTS, result_ttl=KEEP_SECONDS)
    parts = _queue().enqueue_many([call] * width)
    return _queue().enqueue("benchmarks.peers.work.link", depends_on=parts, result_ttl=KEEP_SECONDS)


def commands_sent() -> int:
    return int(_redis().info("stats")["total_commands_processed"])


_kept: list[Any] = []


def _redis() -> Any:
    if not _kept:
        # Ours, to fill and to count: with a million waiting an answer may take longer than redis-py's five seconds.
        _kept.append(redis.Redis.from_url(REDIS, socket_timeout=None))
    return _kept[0]


def _queue() -> Queue:
    return Queue("peers", connection=_redis())
