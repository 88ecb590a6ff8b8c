"""What one process says cannot end another, and fits into its memory: foreman, driver process and worker."""

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from django_manta import State
from django_manta.execution.runners.ray import messages
from django_manta.execution.runners.ray.envoys import Envoy
from django_manta.ledger import Ledger, fsck
from tests.app import tasks
from tests.ray.clusters import SLOW_SECONDS, foremen
from tests.ray.conftest import StartOnRay, unique_version
from tests.worker.conftest import Start, WorkerProcess, ended, outcomes, wait_for

MEBIBYTE = 2**20


@pytest.fixture
def start_apart(start_worker: Start, options: dict[str, Any]) -> StartOnRay:
    """Start a worker whose nodes cannot reach the database, with a foreman of its own."""
    profile = options["RUNTIME_ENVS"]["tests"]
    nowhere = profile["env_vars"] | {"DATABASE_URL": "postgresql://postgres@127.0.0.1:1/postgres"}

    def start(*flags: str) -> WorkerProcess:
        given = options | {
            "RAY": options["RAY"] | unique_version(),
            "RUNTIME_ENVS": {"tests": profile | {"env_vars": nowhere}},
            # The foreman is stopped for a while.
            "LEASE_SECONDS": 5,
        }
        return start_worker("--runner", "ray", *flags, **given)

    return start


def exists(path: Path, worker: WorkerProcess) -> None:
    wait_for(path.exists, SLOW_SECONDS, worker.tell)


def test_a_process_that_dies_while_its_outcome_is_half_sent_ends_nothing_else(
    start_apart: StartOnRay, tmp_path: Path
) -> None:
    worker = start_apart().ready()
    begun, go = tmp_path / "begun", tmp_path / "go"
    run = tasks.die_while_telling.enqueue(str(begun), str(go))
    exists(begun, worker)
    beside = [tasks.add.using(ray={"num_cpus": 0.05}).enqueue(number, 1) for number in range(20)]
    foreman = foremen()[0]
    executing = [each for each in psutil.Process().children(recursive=True) if each.name().startswith("ray::manta:")]
    foreman.suspend()
    go.touch()
    try:
        gone = psutil.wait_procs(
            [each for each in executing if run.id.replace("-", "") in " ".join(each.cmdline())], timeout=SLOW_SECONDS
        )
        assert len(gone[0]) == 1
    finally:
        foreman.resume()
    ended(run, *beside, limit=SLOW_SECONDS, worker=worker)
    assert (run.state, outcomes(run)) == (State.SUCCESSFUL, ["CRASHED", "SUCCESSFUL"])
    assert {(each.state, *outcomes(each)) for each in beside} == {(State.SUCCESSFUL, "SUCCESSFUL")}
    assert "Segmentation fault" in run.history[0].output
    assert worker.process.poll() is None, worker.tell()
    assert fsck.check(Ledger()) == []


@pytest.mark.parametrize(
    "words",
    [
        'ended\tKEY\t0.1\t\t["ended","KEY",false,[0.1,true,"xxFatal Python error: Segmentation fault',
        "who goes there?",
    ],
)
def test_a_process_that_sends_garbage_has_crashed(start_on_ray: StartOnRay, words: str) -> None:
    worker = start_on_ray().ready()
    garbler = tasks.say_garbage.enqueue(words)
    beside = [tasks.add.enqueue(number, 1) for number in range(20)]
    ended(garbler, *beside, limit=SLOW_SECONDS, worker=worker)
    assert (garbler.state, outcomes(garbler)) == (State.QUARANTINED, ["CRASHED"] * 3)
    assert "unreadable message" in garbler.reason
    assert "last words" in garbler.history[0].output
    assert words.split("\t")[0] in garbler.history[0].output
    assert {(each.state, *outcomes(each)) for each in beside} == {(State.SUCCESSFUL, "SUCCESSFUL")}
    assert worker.process.poll() is None, worker.tell()


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """As long as it exists, what ``fork_mark_and_exit`` leaves behind lives on."""
    yield tmp_path / "mark"
    (tmp_path / "mark").unlink()


def test_a_process_that_leaves_another_behind_when_it_dies_has_crashed(start_on_ray: StartOnRay, mark: Path) -> None:
    worker = start_on_ray().ready()
    run = tasks.fork_mark_and_exit.using(timeout=2 * SLOW_SECONDS).enqueue(str(mark))
    ended(run, limit=2 * SLOW_SECONDS, worker=worker)
    assert (run.state, outcomes(run)) == (State.QUARANTINED, ["CRASHED"] * 3)
    assert "left a process behind" in run.reason


def test_a_process_that_leaves_another_behind_can_be_cancelled(start_on_ray: StartOnRay, mark: Path) -> None:
    worker = start_on_ray().ready()
    run = tasks.fork_mark_and_exit.using(timeout=2 * SLOW_SECONDS).enqueue(str(mark))
    exists(mark, worker)
    run.cancel()
    ended(run, limit=SLOW_SECONDS, worker=worker)
    assert run.state is State.CANCELLED
    assert len(outcomes(run)) == 1


def test_a_large_outcome_is_settled_where_it_was_executed(start_on_ray: StartOnRay, tmp_path: Path) -> None:
    worker = start_on_ray().ready()
    begun, go = tmp_path / "begun", tmp_path / "go"
    run = tasks.repeat_when_told.enqueue(str(begun), str(go), 100 * 1024)
    exists(begun, worker)
    worker.signal(signal.SIGSTOP)
    go.touch()
    try:
        ended(run, limit=SLOW_SECONDS)
    finally:
        worker.signal(signal.SIGCONT)
    assert (run.state, len(run.return_value)) == (State.SUCCESSFUL, 100 * 1024)


def test_results_of_50_mib_from_nodes_without_a_database_fit_into_memory(
    start_apart: StartOnRay, record_property: Callable[[str, object], None]
) -> None:
    count = int(os.environ.get("MANTA_TEST_LARGE_RUNS", "8"))
    worker = start_apart().ready()
    first = tasks.add.enqueue(1, 1)
    ended(first, limit=SLOW_SECONDS, worker=worker)
    [driver] = [each for each in psutil.Process(worker.pid).children() if _is_driver(each)]
    peaks: dict[str, int] = {}
    with Watched({"foreman": foremen()[0], "driver": driver, "worker": psutil.Process(worker.pid)}, peaks):
        runs = tasks.repeat.starmap([("x", 50 * MEBIBYTE)] * count)
        ended(*runs, limit=SLOW_SECONDS + 10 * count, worker=worker)
    assert {(run.state, *outcomes(run)) for run in runs} == {(State.SUCCESSFUL, "SUCCESSFUL")}
    record_property("peaks", peaks)
    print(peaks)
    assert max(peaks.values()) < 600, peaks


def _is_driver(process: psutil.Process) -> bool:
    return "runners.ray.envoy" in " ".join(process.cmdline())


class Watched:
    """The most memory that processes have, in MiB, while this is open."""

    def __init__(self, processes: dict[str, psutil.Process], peaks: dict[str, int]) -> None:
        self.processes, self.peaks = processes, peaks
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()

    def watch(self) -> None:
        while not self.over.wait(0.01):
            for name, process in self.processes.items():
                self.peaks[name] = max(self.peaks.get(name, 0), process.memory_info().rss // MEBIBYTE)


# -- foremen that raise ------------------------------------------------------------------------------


class Driver:
    """A driver process, and what it has told."""

    def __init__(self, cluster: Any, namespace: str) -> None:
        self.selector = selectors.DefaultSelector()
        self.told: list[tuple[list[Any], str]] = []
        self.times_gone = 0
        hello = {"address": cluster.address, "namespace": namespace, "num_cpus": None, "runtime_env": {}, "deals": True}
        self.envoy = Envoy(
            self.selector,
            hello,
            on_message=lambda message, text: self.told.append((message, text)),
            on_gone=self._gone,
        )
        self.envoy.start()

    def _gone(self, why: str) -> None:
        self.times_gone += 1

    def of(self, kind: str, name: str | None = None) -> list[list[Any]]:
        for key, _ in self.selector.select(0.01):
            key.data()
        self.envoy.tend(time.monotonic())
        return [message for message, _ in self.told if message[0] == kind and name in (None, *message[1:2])]

    def ask(self, name: str, number: int) -> None:
        text = messages.say("adopt", worker="w", keys=[])
        self.envoy.send(["say", name, number], text)


@pytest.fixture
def driver(cluster: Any) -> Iterator[Driver]:
    import ray

    namespace = f"raising-{time.monotonic_ns()}"
    ray.init(address=cluster.address, namespace=namespace, log_to_driver=False, ignore_reinit_error=True)

    class Raising:
        def speak(self, text: str) -> str:
            raise RuntimeError("not today")

        def listen(self, text: str) -> str:
            return "{"

    raising = ray.remote(num_cpus=0)(Raising).options(name="raising", lifetime="detached").remote()
    started = Driver(cluster, namespace)
    yield started
    started.envoy.close()
    ray.kill(raising)
    for name in ray.util.list_named_actors():
        ray.kill(ray.get_actor(name))
    ray.shutdown()


def test_a_foreman_that_raises_does_not_end_the_driver_process_for_the_others(driver: Driver) -> None:
    driver.envoy.send(["open", "w", "home"])
    wait_for(lambda: driver.of("foreman", "home"), SLOW_SECONDS)
    driver.ask("raising", 1)
    wait_for(lambda: len(driver.of("trouble", "raising")) >= 3, SLOW_SECONDS)
    assert "not today" in driver.of("trouble", "raising")[0][2]
    driver.ask("home", 2)
    wait_for(lambda: [message for message in driver.of("answer") if message[1] == 2], SLOW_SECONDS)
    assert (driver.times_gone, len(driver.of("foreman", "home")), driver.of("away")) == (0, 1, [])


def test_a_driver_process_that_can_speak_with_no_foreman_leaves_it_to_the_next_one(driver: Driver) -> None:
    wait_for(lambda: driver.of("here"), SLOW_SECONDS)
    driver.envoy.send(["open", "w", "raising"])
    wait_for(lambda: driver.of("away"), SLOW_SECONDS)
    assert "not today" in driver.of("away")[0][1]
