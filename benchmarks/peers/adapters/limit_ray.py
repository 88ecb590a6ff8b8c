"""The limit of any queue that executes on Ray: plain Ray tasks, which keep nothing but in Ray's own memory."""

import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks.peers import work
from benchmarks.peers.measures import NAP_SECONDS, PAUSE_SECONDS, PROCESSES, Sample, Sizes

SETTINGS: dict[str, Any] = {}

#: How many runs one call executes; the best of these counts.
CHUNKS = (100, 250, 500)

NOTE = (
    "`ray.remote(max_retries=0)` on a local Ray with two processors, results in its object store. The drain and the "
    f"fan-out are the best of {', '.join(map(str, CHUNKS[:-1]))} and {CHUNKS[-1]} runs a call; chain and latencies one "
    "call a run."
)


def measures(sizes: Sizes) -> dict[str, Callable[[], Sample]]:
    import ray

    ray.init(address="local", num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False)
    # One for all calls: each that is made is a function of its own to Ray.
    resize = _remote(_resized)
    ray.get([resize.remote([work.ARGUMENTS]) for _ in range(min(2_000, sizes.drain))])
    return {
        "pickup": lambda: singles(sizes, lambda began, ended, started: (started - began) / 1e6),
        "result": lambda: singles(sizes, lambda began, ended, started: (ended - began) / 1e6),
        "chain": lambda: chain(sizes.chain),
        "fan": lambda: fan(resize, sizes.fan),
        "naps": lambda: naps(sizes.naps),
        "drain": lambda: drain(resize, sizes.drain),
    }


def _remote(function: Callable[..., Any]) -> Any:
    import ray

    return ray.remote(max_retries=0)(function)


def singles(sizes: Sizes, of: Callable[[int, int, int], float]) -> Sample:
    import ray

    stamp, dice, found = _remote(work.stamp), random.Random(7), []
    ray.get(stamp.remote())
    for _ in range(sizes.latency):
        time.sleep(dice.uniform(*PAUSE_SECONDS))
        began = time.monotonic_ns()
        [started, _process] = ray.get(stamp.remote())
        found.append(of(began, time.monotonic_ns(), started))
    return Sample(sorted(found)[len(found) // 2], samples=found)


def chain(length: int) -> Sample:
    import ray

    link, began = _remote(work.link), time.perf_counter()
    last = link.remote()
    for _ in range(length - 1):
        last = link.remote(last)
    ray.get(last)
    return Sample(1000 * (time.perf_counter() - began) / length)


def fan(resize: Any, width: int) -> Sample:
    import ray

    join = _remote(_join)

    def once(chunk: int) -> float:
        began = time.perf_counter()
        ray.get(join.remote(*[resize.remote(calls) for calls in _calls(width, chunk)]))
        return 1000 * (time.perf_counter() - began)

    return Sample(min(once(chunk) for chunk in CHUNKS))


def _resized(calls: list[Any]) -> list[Any]:
    return [work.resize(*arguments) for arguments in calls]


def _join(*parts: Any) -> int:
    return work.count([one for part in parts for one in part])


def _calls(count: int, chunk: int) -> list[list[Any]]:
    return [[work.ARGUMENTS] * min(chunk, count - first) for first in range(0, count, chunk)]


def naps(count: int) -> Sample:
    import ray

    nap, began = _remote(work.nap), time.perf_counter()
    ray.get([nap.remote(NAP_SECONDS) for _ in range(count)])
    return Sample(100 * count * NAP_SECONDS / PROCESSES / (time.perf_counter() - began))


def drain(resize: Any, count: int) -> Sample:
    import ray

    def once(chunk: int) -> float:
        began = time.perf_counter()
        ray.get([resize.remote(calls) for calls in _calls(count, chunk)])
        return count / (time.perf_counter() - began)

    return Sample(max(once(chunk) for chunk in CHUNKS))
