"""The most resident memory that foremen, drivers and workers had, sampled while a block runs."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from tests.ray.clusters import foremen

SAMPLE_SECONDS = 0.05
SEARCH_SECONDS = 0.5

#: A process with so much is killed, before the machine has nothing left for anybody.
TOO_MUCH_BYTES = 3 * 10**9


class Watch:
    """Samples the workers that it is given, their drivers, and the foremen that were started since it began."""

    def __init__(self, workers: Callable[[], list[int]]) -> None:
        self.most = dict.fromkeys(("foreman", "driver", "worker"), 0)
        #: What was killed because it had too much.
        self.killed: list[str] = []
        self._workers = workers
        self._began = time.time()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(10)

    def megabytes(self) -> dict[str, int]:
        return {role: most // 10**6 for role, most in self.most.items()}

    def _sample(self) -> None:
        searched, found = 0.0, list[tuple[str, psutil.Process]]()
        while not self._over.wait(SAMPLE_SECONDS):
            if time.monotonic() - searched > SEARCH_SECONDS:
                searched, found = time.monotonic(), list(self._find())
            for role, process in found:
                with suppress(psutil.Error):
                    self._note(role, process, process.memory_info().rss)

    def _note(self, role: str, process: psutil.Process, size: int) -> None:
        self.most[role] = max(self.most[role], size)
        if size > TOO_MUCH_BYTES:
            self.killed.append(f"a {role} with {size // 10**6} MB was killed")
            process.kill()

    def _find(self) -> Iterator[tuple[str, psutil.Process]]:
        for foreman in foremen():
            with suppress(psutil.Error):
                if foreman.create_time() >= self._began:
                    yield "foreman", foreman
        for pid in self._workers():
            with suppress(psutil.Error):
                yield "worker", psutil.Process(pid)
                yield from (("driver", driver) for driver in drivers(pid))


def drivers(worker: int) -> list[psutil.Process]:
    """The processes of a worker in which Ray's driver lives: one, or two while one takes over."""
    found = []
    with suppress(psutil.Error):
        for child in psutil.Process(worker).children():
            with suppress(psutil.Error):
                if any(".runners.ray" in word for word in child.cmdline()):
                    found.append(child)
    return found


@contextmanager
def watch(workers: Callable[[], list[int]]) -> Iterator[Watch]:
    watching = Watch(workers)
    watching.start()
    try:
        yield watching
    finally:
        watching.stop()
