"""The limit of any queue that executes in processes: the standard library's pool, which keeps nothing anywhere."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from benchmarks.peers import work
from benchmarks.peers.measures import NAP_SECONDS, PAUSE_SECONDS, PROCESSES, Sample, Sizes

SETTINGS: dict[str, Any] = {}

#: How many runs are sent at once; the best of these counts.
CHUNKS = (100, 250, 500)

NOTE = (
    "`concurrent.futures.ProcessPoolExecutor(2)`, results in memory. Nothing is kept. The drain and the fan-out are "
    f"the best of `map()` with {', '.join(map(str, CHUNKS[:-1]))} and {CHUNKS[-1]} runs at once; chain and latencies "
    "one `submit()` a run."
)


def measures(sizes: Sizes) -> dict[str, Callable[[], Sample]]:
    pool = ProcessPoolExecutor(PROCESSES, mp_context=get_context("forkserver"))
    list(pool.map(work.stamp, [0.2] * 2 * PROCESSES))
    return {
        "pickup": lambda: singles(pool, sizes, lambda began, ended, started: (started - began) / 1e6),
        "result": lambda: singles(pool, sizes, lambda began, ended, started: (ended - began) / 1e6),
        "chain": lambda: chain(pool, sizes.chain),
        "fan": lambda: fan(pool, sizes.fan),
        "naps": lambda: naps(pool, sizes.naps),
        "drain": lambda: drain(pool, sizes.drain),
    }


def singles(pool: ProcessPoolExecutor, sizes: Sizes, of: Callable[[int, int, int], float]) -> Sample:
    dice, found = random.Random(7), []
    for _ in range(sizes.latency):
        time.sleep(dice.uniform(*PAUSE_SECONDS))
        began = time.monotonic_ns()
        [started, _process] = pool.submit(work.stamp).result()
        found.append(of(began, time.monotonic_ns(), started))
    return Sample(sorted(found)[len(found) // 2], samples=found)


def chain(pool: ProcessPoolExecutor, length: int) -> Sample:
    began, last = time.perf_counter(), 0
    for _ in range(length):
        last = pool.submit(work.link, last).result()
    return Sample(1000 * (time.perf_counter() - began) / length)


def fan(pool: ProcessPoolExecutor, width: int) -> Sample:
    def once(chunk: int) -> float:
        began = time.perf_counter()
        pool.submit(work.count, resized(pool, width, chunk)).result()
        return 1000 * (time.perf_counter() - began)

    return Sample(min(once(chunk) for chunk in CHUNKS))


def naps(pool: ProcessPoolExecutor, count: int) -> Sample:
    began = time.perf_counter()
    list(pool.map(work.nap, [NAP_SECONDS] * count))
    return Sample(100 * count * NAP_SECONDS / PROCESSES / (time.perf_counter() - began))


def drain(pool: ProcessPoolExecutor, count: int) -> Sample:
    def once(chunk: int) -> float:
        began = time.perf_counter()
        resized(pool, count, chunk)
        return count / (time.perf_counter() - began)

    return Sample(max(once(chunk) for chunk in CHUNKS))


def resized(pool: ProcessPoolExecutor, count: int, chunk: int) -> list[Any]:
    return list(pool.map(work.resize, *zip(*[work.ARGUMENTS] * count, strict=True), chunksize=chunk))
