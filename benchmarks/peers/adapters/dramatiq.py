"""Dramatiq: Redis as its broker and for its results, two processes of one thread."""

import os
import uuid
from typing import Any

# Read when its worker is imported; the workers inherit them. How many messages a process fetches at once (by default
# two for each thread), and how many milliseconds an idle one waits at most before it asks again (by default 1,000).
os.environ.setdefault("dramatiq_queue_prefetch", "100")
os.environ.setdefault("dramatiq_worker_timeout", "10")

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.rate_limits.backends import RedisBackend as Barriers
from dramatiq.results import Results, ResultTimeout
from dramatiq.results.backends import RedisBackend

from benchmarks.peers import work

REDIS = os.environ.get("MANTA_PEERS_REDIS", "redis://127.0.0.1:6379/0")

#: A database with nothing but results, so that they can be counted and thrown away.
RESULTS = REDIS.removesuffix("0") + "1"

SETTINGS: dict[str, Any] = {}

NOTE = (
    "`dramatiq --processes 2 --threads 1` with a prefetch of 100; idle processes ask every 10 ms (by default up to a "
    "second apart). The middleware `Results` with a Redis backend and `GroupCallbacks`, `hiredis`. Results live in "
    "Redis; one waits by its blocking `get_result`. Groups give their callback no values."
)

broker = RedisBroker(url=REDIS)
results = RedisBackend(url=RESULTS)
broker.add_middleware(Results(backend=results, store_results=True))
broker.add_middleware(dramatiq.middleware.GroupCallbacks(Barriers(url=REDIS)))
dramatiq.set_broker(broker)

resize = dramatiq.actor(actor_name="resize")(work.resize)
stamp = dramatiq.actor(actor_name="stamp")(work.stamp)
nap = dramatiq.actor(actor_name="nap")(work.nap)
link = dramatiq.actor(actor_name="link")(work.link)

ACTORS = {actor.actor_name: actor for actor in (resize, stamp, nap, link)}


def commands() -> list[list[str]]:
    return [["-m", "dramatiq", "benchmarks.peers.adapters.dramatiq", "--processes", "2", "--threads", "1"]]


def purge() -> None:
    _redis().unlink("dramatiq:default", "dramatiq:default.msgs")
    _redis(RESULTS).flushdb(asynchronous=True)


def enqueue(name: str, *args: Any) -> Any:
    return ACTORS[name].send(*args)


def value(message: Any, timeout: float) -> Any:
    try:
        return message.get_result(backend=results, block=True, timeout=int(timeout * 1000))
    except ResultTimeout:
        raise TimeoutError from None


def fill(count: int) -> None:
    """What the broker writes, each with an id of its own; its queue appears when all are there."""
    template = resize.message(*work.ARGUMENTS)
    template = template.copy(options={**template.options, "redis_message_id": template.message_id})
    encoded, old = template.encode().decode(), template.message_id
    pipe = _redis().pipeline(transaction=False)
    for number in range(count):
        new = str(uuid.UUID(int=number))
        pipe.hset("dramatiq:default.msgs", new, encoded.replace(old, new))
        pipe.rpush("staged", new)
        if number % 10_000 == 9_999:
            pipe.execute()
    pipe.execute()
    _redis().rename("staged", "dramatiq:default")


def finished() -> int:
    return int(_redis(RESULTS).dbsize())


def chain(length: int) -> Any:
    pipe = dramatiq.pipeline([link.message(0), *[link.message() for _ in range(length - 1)]]).run()
    return pipe.messages[-1]


def fan(width: int) -> Any:
    join = link.message(0)
    group = dramatiq.group([resize.message(*work.ARGUMENTS) for _ in range(width)])
    group.add_completion_callback(join)
    group.run()
    return join


def commands_sent() -> int:
    return int(_redis().info("stats")["total_commands_processed"])


def _redis(url: str = REDIS) -> Any:
    if url not in _kept:
        # Ours, to fill and to count: with a million waiting an answer may take longer than redis-py's five seconds.
        _kept[url] = redis.Redis.from_url(url, socket_timeout=None)
    return _kept[url]


_kept: dict[str, Any] = {}
