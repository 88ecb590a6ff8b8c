"""Real workers in real processes, killed by real signals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_manta.models import Run, Worker

ROOT = Path(__file__).parent.parent.parent


class WorkerProcess:
    """``manage.py manta worker`` as a person would start it, in a process group of its own."""

    def __init__(self, environment: dict[str, str], log: Path, *flags: str, **options: Any) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.manage", "manta", "worker", *flags],
            cwd=ROOT,
            env={
                **environment,
                "MANTA_TEST_OPTIONS": json.dumps(options),
                "DJANGO_SETTINGS_MODULE": "tests.settings",
            },
            stdout=log.open("a"),
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

    def wait(self, timeout: float = 30) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"The worker did not end in {timeout} s:\n{self.tell()}")

    def tell(self) -> str:
        unfinished = Run.objects.exclude(state="SUCCESSFUL").values_list("id", "task", "state", "worker", "suspect")
        return self.log.read_text()[-4000:] + "\n".join(map(str, unfinished[:20]))

    def end(self) -> None:
        if self.process.poll() is None:
            # Its own group, which nobody else is in.
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait(10)


def wait_for(condition: Callable[[], Any], limit: float = 20, explain: Callable[[], str] = str) -> Any:
    """Wait until ``condition`` is true; fail after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    return pytest.fail(f"It did not happen within {limit} s.\n{explain()}")


@pytest.fixture
def start_worker(
    transactional_db: None, subprocess_environment: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start(*flags: str, **options: Any) -> WorkerProcess:
        worker = WorkerProcess(subprocess_environment, tmp_path / f"worker-{len(started)}.log", *flags, **options)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.end()
