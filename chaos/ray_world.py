"""What the storms over Ray share: a cluster on this machine, and workers that use it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from chaos import world
from tests.ray.clusters import new_cluster

LEASE_SECONDS = 2


@contextmanager
def cluster(num_cpus: int) -> Iterator[Any]:
    """A Ray of this machine's own, until the end of the block."""
    # Who ignores SIGINT passes that on to every Ray process, where nothing could be cancelled then.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = new_cluster(num_cpus)
    try:
        yield started
    finally:
        end(started)


def end(started: Any) -> None:
    with suppress(Exception):
        started.shutdown()


@contextmanager
def workers(address: str) -> Iterator[Callable[[str], world.WorkerProcess]]:
    """Start workers of a release that use the Ray at ``address``."""
    options: dict[str, Any] = {
        "LEASE_SECONDS": LEASE_SECONDS,
        "QUEUE_OPTIONS": {"default": {"runner": "ray"}},
    }
    with world.workers() as begin:

        def start(version: str = "1") -> world.WorkerProcess:
            return begin("--runner", "ray", RAY={"ADDRESS": address, "VERSION": version}, **options)

        yield start
