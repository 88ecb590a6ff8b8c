"""Three Ray nodes on this machine: a head, and two that are stopped as `ray stop` stops them, and replaced."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import psutil

from chaos import ray_world
from tests.ray.clusters import add_node, named, new_cluster

HEAD_CPUS, NODE_CPUS = 1, 2

#: `ray stop` waits for 16 seconds, a third of that for each of its three kinds of processes, before it kills.
GRACE_SECONDS = 16 / 3


class Nodes:
    """The cluster. Its processes, and what they start, find the database at ``database_url``."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        with _environment(DATABASE_URL=database_url):
            self.cluster = new_cluster(HEAD_CPUS)
            self.others = [add_node(self.cluster, num_cpus=NODE_CPUS) for _ in range(2)]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def stop_one(self, *, at_once: bool) -> set[int]:
        """
        Stop the node that is oldest, in the order of `ray stop` (first the raylet, and when that is gone everything
        else), or all ``at_once``, as systemd stops a service. Returns the process ids that it had.
        """
        node = self.others.pop(0)
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        others = raylet.children(recursive=True)
        pids = {raylet.pid, *(process.pid for process in others)}
        for together in [[*others, raylet]] if at_once else [[raylet], others]:
            _terminate(together)
        self.cluster.remove_node(node, allow_graceful=False)
        return pids

    def add_one(self) -> None:
        with _environment(DATABASE_URL=self._url):
            self.others.append(add_node(self.cluster, num_cpus=NODE_CPUS))

    def executing(self) -> int:
        """The number of processes that execute runs of ours."""
        return len(named("ray::manta:"))

    def end(self) -> None:
        ray_world.end(self.cluster)


def _terminate(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=GRACE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=2)


def hang(process: psutil.Process, seconds: float, is_over: Callable[[], bool]) -> None:
    """Stop a process (SIGSTOP) for this many seconds, or until ``is_over``, and continue it unless it was ended."""
    deadline = time.monotonic() + seconds
    process.suspend()
    try:
        while time.monotonic() < deadline and not is_over():
            time.sleep(0.1)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
