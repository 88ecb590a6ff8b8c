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
from django_manta.models import Attempt, Run, Worker
from django_manta.worker import questions
from django_manta.worker.questions import Questions
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.ray.clusters import SLOW_SECONDS, foremen, free_port
from tests.ray.conftest import StartOnRay, marked, said, unique_version
from tests.ray.releases import release, worker_of
from tests.worker.conftest import Start, WorkerProcess, ended, outcomes, wait_for

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
    wait_for(lambda: drive(envoy) or "joining" in heard, SLOW_SECONDS)
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


# -- the foreman -------------------------------------------------------------------------------------


def test_a_foreman_that_hangs_is_told_of_nothing_is_claimed_and_all_goes_on_when_it_answers(
    start_on_ray: StartOnRay, go: Path, stopped: list[psutil.Process]
) -> None:
    version = unique_version()
    worker = start_on_ray(ray=version).ready()
    idle = start_on_ray(ray=version).ready()
    runs = begin(worker, go)
    foreman = foremen()[0]
    stop(foreman, stopped)
    wait_for(lambda: says(worker, SILENT) and says(idle, SILENT), SLOW_SECONDS, worker.tell)
    ready = tasks.add.enqueue(1, 2)
    for words in (said("doctor"), said("health"), *(said("explain", run.id) for run in (*runs, ready))):
        assert SILENT in words
    assert said("doctor").count("claims nothing. Ray does not answer") == 2
    assert "unhealthy" not in said("health", "--worker", str(worker.pid))
    assert SILENT in said("health", "--worker", str(worker.pid))
    assert (Run.objects.get(pk=ready.id).state, Run.objects.get(pk=ready.id).attempts) == ("READY", 0)
    go.touch()
    foreman.send_signal(signal.SIGCONT)
    ended(*runs, ready, limit=SLOW_SECONDS, worker=worker)
    assert_none_was_started_twice([*runs, ready])
    for each in (worker, idle):
        wait_for(lambda: Worker.objects.filter(pid=each.pid, troubles="{}").exists(), 30, each.tell)  # noqa: B023
    assert "answers again, after" in worker.log.read_text()
    assert SILENT not in said("doctor")


def test_what_a_lost_worker_has_at_a_foreman_that_hangs_waits_for_it_and_is_not_started_twice(
    start_worker: Start, options: dict[str, Any], go: Path, tmp_path: Path, stopped: list[psutil.Process]
) -> None:
    """Also much longer than any foreman of an older release would be waited for, which is 5 s here."""
    impatient = ("worker/adoption.py", "UNREACHABLE_SECONDS = 600.0", "UNREACHABLE_SECONDS = 5.0")
    given = worker_of(options, release(tmp_path / "release", impatient), unique_version())
    first = start_worker("--runner", "ray", **given).ready()
    runs = begin(first, go)
    [lost] = Worker.objects.filter(pid=first.pid).values_list("pk", flat=True)
    foreman = foremen()[0]
    stop(foreman, stopped)
    first.signal(signal.SIGKILL)
    second = start_worker("--runner", "ray", **given).ready()
    words = "which does not answer. They may be executing, and are not started again."
    wait_for(lambda: says(second, words), SLOW_SECONDS, second.tell)
    for told in (said("doctor"), said("health"), said("explain", runs[0].id)):
        assert f"{RUNS} runs of {lost} wait for the foreman" in told
        assert f"manage.py manta recover {lost}" in told
    assert Run.objects.filter(state="RUNNING", worker=lost).count() == RUNS
    go.touch()
    foreman.send_signal(signal.SIGCONT)
    ended(*runs, limit=SLOW_SECONDS, worker=second)
    assert_none_was_started_twice(runs)
    wait_for(lambda: Worker.objects.filter(pid=second.pid, troubles="{}").exists(), 30, second.tell)


def test_a_foreman_that_hangs_for_good_can_be_killed_and_what_it_had_is_started_again(
    start_on_ray: StartOnRay, go: Path, stopped: list[psutil.Process]
) -> None:
    worker = start_on_ray(ray=unique_version()).ready()
    runs = begin(worker, go)
    foreman = foremen()[0]
    stop(foreman, stopped)
    go.touch()
    foreman.send_signal(signal.SIGKILL)
    ended(*runs, limit=SLOW_SECONDS, worker=worker)
    assert {(run.state, *outcomes(run)) for run in runs} == {(State.SUCCESSFUL, "LOST", "SUCCESSFUL")}


def test_silence_is_counted_from_the_last_sign_of_life_and_not_while_the_worker_itself_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr(questions.time, "monotonic", lambda: now)
    asked = Questions()

    def silent_after(seconds: float, step: float = 1.0) -> list[str]:
        nonlocal now
        found: list[str] = []
        until = now + seconds
        while now < until:
            now += step
            found += asked.look(now)
        return found

    asked.look(now)
    number = asked.add("home", lambda told: None)
    assert silent_after(25) == []
    asked.heard_from("home")
    assert silent_after(29) == []
    assert silent_after(60, step=60) == []
    assert silent_after(29) == []
    assert silent_after(10) == ["home"]
    assert asked.is_open(number)
    assert asked.heard_from("home") is not None
    assert asked.silent == {}
    asked.answered(number)
    assert silent_after(60) == []
