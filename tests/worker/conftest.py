"""Real workers in real processes, killed by real signals."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from django_manta.ledger import Ledger, own_session
from django_manta.models import Run, Worker
from tests.app.models import Ledgerline
from tests.ledger.given import worker_record

ROOT = Path(__file__).parent.parent.parent

type Start = Callable[..., WorkerProcess]


class WorkerProcess:
    """``manage.py manta worker`` as a person would start it, in a process group of its own."""

    def __init__(
        self, environment: dict[str, str], log: Path, *flags: str, module: str = "tests.manage", **options: Any
    ) -> None:
        self.log = log
        module = environment.get("MANTA_TEST_MODULE", module)
        with log.open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "manta", "worker", *flags],
                cwd=ROOT,
                env={
                    "DJANGO_SETTINGS_MODULE": "tests.settings",
                    **environment,
                    "MANTA_TEST_OPTIONS": json.dumps(options),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def ready(self) -> "WorkerProcess":
        """Wait until it has registered."""
        wait_for(lambda: Worker.objects.filter(pid=self.pid, lost_at=None).exists(), 30, self.tell)
        return self

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def signal_group(self, number: int) -> None:
        os.killpg(self.pid, number)

    def fork_server(self) -> psutil.Process:
        """The process from which its children come."""
        found: list[psutil.Process] = wait_for(psutil.Process(self.pid).children, 20, self.tell)
        return found[0]

    def children(self) -> list[psutil.Process]:
        """The processes that execute runs."""
        return list(self.fork_server().children())

    def wait(self, timeout: float = 30) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"The worker did not end in {timeout} s:\n{self.tell()}")

    def lines(self) -> list[str]:
        """What it has logged."""
        return self.log.read_text().splitlines()

    def tell(self) -> str:
        unfinished = Run.objects.exclude(state="SUCCESSFUL").values_list("id", "task", "state", "worker", "suspect")
        return self.log.read_text()[-4000:] + "\n".join(map(str, unfinished[:20]))

    def processes(self) -> list[psutil.Process]:
        """All that is alive of its session, which nobody else is in."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def end(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(10)


def wait_for(condition: Callable[[], Any], limit: float = 20, explain: Callable[[], str] = str) -> Any:
    """Wait until ``condition`` is true; fail after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    return pytest.fail(f"It did not happen within {limit} s.\n{explain()}")


def ended(*results: Any, limit: float = 30, worker: WorkerProcess | None = None) -> None:
    """Wait until these runs have ended, and refresh their results."""
    ids = [result.id for result in results]
    wait_for(
        lambda: Run.objects.filter(pk__in=ids).finished().count() == len(ids), limit, worker.tell if worker else str
    )
    for result in results:
        result.refresh()


def states() -> dict[str, int]:
    """How many runs are in each state."""
    return dict(Counter(Run.objects.values_list("state", flat=True)))


def outcomes(result: Any) -> list[str]:
    """How its attempts ended that user code was started for."""
    return [attempt.outcome.value for attempt in result.history if attempt.outcome != "RETURNED"]


def marked(label: str, worker: WorkerProcess) -> None:
    """Wait until a task has left this mark, which it does when it has started."""
    wait_for(lambda: Ledgerline.objects.filter(label=label).exists(), 30, worker.tell)


@pytest.fixture
def start_worker(transactional_db: None, subprocess_environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start a worker with these flags and OPTIONS; whatever is left of it ends with the test."""
    started: list[WorkerProcess] = []

    def start(*flags: str, environment: dict[str, str] | None = None, **options: Any) -> WorkerProcess:
        log = tmp_path / f"worker-{len(started)}.log"
        worker = WorkerProcess(subprocess_environment | (environment or {}), log, *flags, **options)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.end()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """With a connection of its own, and a worker that exists there only."""
    session = own_session()
    ledger = Ledger(session)
    ledger.register(worker_record())
    yield ledger
    session.close()
