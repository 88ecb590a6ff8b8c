"""Drivers and foremen that hang (SIGSTOP): they are noticed, told of, and nothing is started twice."""

import selectors
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from django_manta import State
from django_manta.execution.runners.ray import envoys
from django_manta.ledger import Ledger, fsck
from django_manta.models import Attempt, Worker
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.ray.clusters import SLOW_SECONDS, free_port
from tests.ray.conftest import StartOnRay, marked
from tests.worker.conftest import WorkerProcess, ended, outcomes, wait_for

RUNS = 2
SILENT = "has said nothing for more than 30 s"


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Path]:
    """The file for which the runs stay."""
    yield tmp_path / "go"
    (tmp_path / "go").touch()


@pytest.fixture
def stopped() -> Iterator[list[psutil.Process]]:
    """Processes that are continued when the test is over."""
    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        if process.is_running():
            process.send_signal(signal.SIGCONT)


def begin(worker: WorkerProcess, go: Path) -> list[Any]:
    runs: list[Any] = [tasks.stay_on_ray.enqueue(f"run {n}", str(go)) for n in range(RUNS)]
    for n in range(RUNS):
        marked(f"run {n}", worker)
    return runs


def driver_of(worker: WorkerProcess) -> psutil.Process:
    [driver] = [child for child in psutil.Process(worker.pid).children() if "envoy" in " ".join(child.cmdline())]
    return driver


def stop(process: psutil.Process, stopped: list[psutil.Process]) -> None:
    stopped.append(process)
    process.send_signal(signal.SIGSTOP)


def says(worker: WorkerProcess, words: str) -> bool:
    return Worker.objects.filter(pid=worker.pid, lost_at=None, troubles__contains=words).exists()


def assert_none_was_started_twice(runs: list[Any]) -> None:
    assert {(run.state, *outcomes(run)) for run in runs} == {(State.SUCCESSFUL, "SUCCESSFUL")}
    assert Ledgerline.objects.filter(label__startswith="run").count() == RUNS
    assert not Attempt.objects.exclude(outcome="SUCCESSFUL").exists()
    assert fsck.check(Ledger()) == []


# -- the driver --------------------------------------------------------------------------------------


def test_a_driver_that_hangs_is_replaced_and_what_ran_meanwhile_is_settled(
    start_on_ray: StartOnRay, go: Path, stopped: list[psutil.Process]
) -> None:
    worker = start_on_ray().ready()
    runs = begin(worker, go)
    driver = driver_of(worker)
    stop(driver, stopped)
    go.touch()
    ended(*runs, limit=SLOW_SECONDS, worker=worker)
    assert not driver.is_running()
    assert_none_was_started_twice(runs)
    assert f"Its driver process {driver.pid} did not answer for 15 s and was killed." in worker.log.read_text()
    wait_for(lambda: Worker.objects.filter(pid=worker.pid, troubles="{}").exists(), 30, worker.tell)


def test_a_driver_that_hangs_does_not_keep_its_worker_from_stopping(
    start_on_ray: StartOnRay, go: Path, stopped: list[psutil.Process]
) -> None:
    worker = start_on_ray().ready()
    runs = begin(worker, go)
    driver = driver_of(worker)
    stop(driver, stopped)
    asked = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait(30) == 0, worker.tell()
    assert time.monotonic() - asked < envoys.LEAVE_SECONDS
    assert not driver.is_running()
    second = start_on_ray()
    go.touch()
    ended(*runs, limit=SLOW_SECONDS, worker=second)
    assert_none_was_started_twice(runs)


@pytest.fixture
def gone() -> list[str]:
    return []


@pytest.fixture
def envoy(gone: list[str]) -> Iterator[envoys.Envoy]:
    """The worker's end of a driver that waits for a Ray which is not there, and reads nothing meanwhile."""
    with selectors.DefaultSelector() as selector:
        address = f"127.0.0.1:{free_port()}"
        hello = {"address": address, "namespace": "n", "num_cpus": None, "runtime_env": {}}
        envoy = envoys.Envoy(selector, hello, on_message=lambda message, text: None, on_gone=gone.append)
        envoy.start()
        yield envoy
        envoy.close()


def drive(envoy: envoys.Envoy) -> None:
    """A step of the worker's loop."""
    for key, _ in envoy.selector.select(0.05):
        key.data()
    envoy.tend(time.monotonic())


def test_a_driver_that_waits_for_ray_lives_and_one_that_hangs_before_it_has_joined_is_replaced(
    envoy: envoys.Envoy, gone: list[str], monkeypatch: pytest.MonkeyPatch, stopped: list[psutil.Process]
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(envoy, "_on_message", lambda message, text: heard.append(message[0]))
    monkeypatch.setattr(envoys, "JOIN_SECONDS", 12.0)
    until = time.monotonic() + 15
    while time.monotonic() < until:
        drive(envoy)
    assert (heard.count("away"), gone) == (1, [])
    assert heard.count("joining") >= 2
    assert envoy.pid is not None
    driver = psutil.Process(envoy.pid)
    stop(driver, stopped)
    wait_for(lambda: drive(envoy) or gone, 30)
    assert gone == [f"Its driver process {driver.pid} did not answer for 12 s and was killed."]
    wait_for(lambda: drive(envoy) or envoy.is_up, 30)
    assert envoy.pid != driver.pid
    assert not driver.is_running()


def test_a_driver_that_was_let_go_and_hangs_is_killed(
    envoy: envoys.Envoy, gone: list[str], monkeypatch: pytest.MonkeyPatch, stopped: list[psutil.Process]
) -> None:
    monkeypatch.setattr(envoys, "LEAVE_SECONDS_ELSEWHERE", 0.5)
    assert envoy.pid is not None
    driver = psutil.Process(envoy.pid)
    stop(driver, stopped)
    envoy.restart()
    wait_for(lambda: drive(envoy) or not driver.is_running(), 30)
    assert len(gone) == 1


def test_what_a_driver_does_not_read_is_bounded(envoy: envoys.Envoy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envoys, "OUTBOX_BYTES", 2**20)
    sent = 0
    while not envoy.is_clogged:
        envoy.send(["say", "home", None], "x" * 100_000)
        sent += 1
    assert sent < 30
