"""Starts workers as a service manager would, and ends them: some kindly, one not."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MANAGE = Path(__file__).resolve().parent.parent / "montecarlo" / "manage.py"

#: Child processes of each worker, or processors of Ray; and how long what they are at may take when it is told to stop.
PROCESSES, STOP_SECONDS = 2, 10


class WorkerProcess:
    """``manage.py manta worker``, in a process of its own."""

    def __init__(self, number: int, runner: str, log: Path) -> None:
        self.number = number
        self.log = log
        self.flags = ["--runner", runner] if runner != "processes" else ["--processes", str(PROCESSES)]
        flags = [*self.flags, "--stop-timeout", str(STOP_SECONDS), "--name", f"demo-{number}"]
        with log.open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(MANAGE), "manta", "worker", *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __str__(self) -> str:
        return f"worker {self.number}, process {self.process.pid}"

    def stop(self) -> "Stop":
        """As a deploy does: it finishes what it is at, or leaves that to Ray, gives back the rest, and leaves."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_SECONDS + 10)
        return Stop(self, code, time.monotonic() - began)

    def kill(self) -> None:
        """As the kernel does when memory runs out: it can do nothing any more, and its children end with it."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """However far it is. A second signal means: now."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        if self.process.poll() is None:
            self.kill()


@dataclass(frozen=True, slots=True)
class Stop:
    """How a worker left that was told to."""

    worker: WorkerProcess
    code: int
    seconds: float


@contextmanager
def workers(runner: str, log: Path) -> Iterator[Callable[[], WorkerProcess]]:
    """Give a function that starts a worker; those that are left end with the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    started: list[WorkerProcess] = []

    def start() -> WorkerProcess:
        started.append(WorkerProcess(len(started) + 1, runner, log))
        return started[-1]

    try:
        yield start
    finally:
        for worker in started:
            worker.end()
