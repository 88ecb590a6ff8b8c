"""Processes, nodes and foremen that die, and tasks that will not let go: each ends as the documentation says."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from django_manta import State, payload
from django_manta.execution.runners.flights import GRACE_SECONDS
from django_manta.ledger import Ledger, fsck
from django_manta.models import Attempt, Run
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.ray.clusters import SLOW_SECONDS, add_node, foremen
from tests.ray.conftest import StartOnRay, marked, unique_version
from tests.worker.conftest import ended, outcomes, wait_for

CRASHES = ["CRASHED"] * 3
PATIENCE_SECONDS = 4.0


def test_killers_end_on_ray_as_they_do_on_one_machine(start_on_ray: StartOnRay) -> None:
    good = tasks.add.starmap([(n, 1) for n in range(100)])
    table: dict[str, tuple[Any, State, list[str]]] = {
        "os._exit": (tasks.exit_with.enqueue(3), State.QUARANTINED, CRASHES),
        "segfault": (tasks.segfault.enqueue(), State.QUARANTINED, CRASHES),
        "SIGKILL": (tasks.kill_itself.enqueue(), State.QUARANTINED, CRASHES),
        "SystemExit": (tasks.leave_politely.enqueue(), State.FAILED, ["FAILED"]),
        "KeyboardInterrupt": (tasks.interrupt.enqueue(), State.FAILED, ["FAILED"]),
        "spins": (tasks.spin_too_long.enqueue(), State.FAILED, ["TIMED_OUT"]),
        "sleeps": (tasks.sleep_too_long.enqueue(), State.FAILED, ["TIMED_OUT"] * 2),
        "swallows": (tasks.swallow_its_timeout.enqueue(), State.FAILED, ["TIMED_OUT"]),
        "raises": (tasks.fail.enqueue(), State.FAILED, ["FAILED"]),
        "returns an object": (tasks.return_unstorable.enqueue("object"), State.FAILED, ["FAILED"]),
        "returns a lot": (tasks.repeat.enqueue("x", 20_000_000), State.SUCCESSFUL, ["SUCCESSFUL"]),
        "returns too much": (tasks.repeat.enqueue("x", payload.RESULT_LIMIT), State.FAILED, ["FAILED"]),
    }
    good += tasks.add.starmap([(n, 1) for n in range(100)])
    worker = start_on_ray("--burst")
    assert worker.wait(500) == 0, worker.tell()
    ended(*good, *(run for run, _, _ in table.values()))
    assert {name: (run.state, outcomes(run)) for name, (run, _, _) in table.items()} == {
        name: (state, expected) for name, (_, state, expected) in table.items()
    }
    assert {(run.state, *outcomes(run)) for run in good} == {(State.SUCCESSFUL, "SUCCESSFUL")}
    for name in ("os._exit", "segfault", "SIGKILL"):
        crashed = [attempt for attempt in table[name][0].history if attempt.outcome == "CRASHED"]
        assert ["last words" in attempt.output for attempt in crashed] == [True] * 3, name
        assert ("Segmentation fault" in crashed[0].output) == (name == "segfault")
    for name, words in (
        ("raises", "ValueError"),
        ("SystemExit", "SystemExit"),
        ("returns an object", "Unsupported type: <class 'object'>"),
        ("returns too much", "The task returned 64.0 MiB of JSON"),
    ):
        [error] = table[name][0].errors
        assert words in f"{error.exception_class_path} {error.traceback}", name
    assert "in fail\n" in table["raises"][0].errors[0].traceback
    assert len(table["returns a lot"][0].return_value) == 20_000_000
    [attempt] = [each for each in table["swallows"][0].history if each.outcome != "RETURNED"]
    assert (attempt.finished_at - attempt.started_at).total_seconds() < 0.2 + GRACE_SECONDS + PATIENCE_SECONDS
    assert fsck.check(Ledger()) == []


def test_the_mates_of_a_killer_are_settled_or_returned_and_nobody_but_it_is_charged(start_on_ray: StartOnRay) -> None:
    worker = start_on_ray().ready()
    known = tasks.exit_at.starmap([(n, -1) for n in range(200)])
    ended(*known, limit=SLOW_SECONDS, worker=worker)
    runs = tasks.exit_at.starmap([(n, 70) for n in range(200)])
    ended(*runs, limit=SLOW_SECONDS, worker=worker)
    killer = runs[70]
    assert (killer.state, outcomes(killer)) == (State.QUARANTINED, CRASHES)
    others = [run for run in runs if run is not killer]
    assert {(run.state, *outcomes(run)) for run in others} == {(State.SUCCESSFUL, "SUCCESSFUL")}
    # It had company, which had to be given back: chunks are real.
    assert Attempt.objects.filter(outcome="RETURNED").count() >= 2
    charged = Run.objects.exclude(pk=killer.id)
    assert not charged.exclude(failures=0, crashes=0, losses=0).exists()


def test_cancelled_runs_end_softly_or_by_force(start_on_ray: StartOnRay, tmp_path: Path) -> None:
    worker = start_on_ray().ready()
    beside = tasks.stay_on_ray.enqueue("beside", str(tmp_path / "go"))
    limits = {"busy": 1.0, "asleep": 1.0, "stubborn": GRACE_SECONDS + 1.0}
    runs = {how: tasks.stay.using(ray={"num_cpus": 0.05}).enqueue(how, how) for how in limits}
    for label in ("beside", *limits):
        marked(label, worker)
    for how, run in runs.items():
        asked = time.monotonic()
        run.cancel()
        ended(run, limit=SLOW_SECONDS, worker=worker)
        took = time.monotonic() - asked
        assert (run.state, outcomes(run)) == (State.CANCELLED, ["CANCELLED"])
        assert took < limits[how] + PATIENCE_SECONDS
    (tmp_path / "go").touch()
    ended(beside, limit=SLOW_SECONDS, worker=worker)
    assert (beside.state, outcomes(beside)) == (State.SUCCESSFUL, ["SUCCESSFUL"])


def test_what_takes_two_processors_travels_alone_and_holds_nobody_up(start_on_ray: StartOnRay, tmp_path: Path) -> None:
    worker = start_on_ray().ready()
    staying = tasks.stay_on_ray.enqueue("stays", str(tmp_path / "go"))
    marked("stays", worker)
    # It is known how short they are, and still none has company.
    known = tasks.exit_at.starmap([(n, -1) for n in range(40)])
    ended(*known, limit=SLOW_SECONDS, worker=worker)
    large = tasks.exit_at.using(ray={"num_cpus": 2}).starmap([(n, 1) for n in range(4)])
    small = tasks.add.starmap([(n, 1) for n in range(40)])
    ended(*small, limit=SLOW_SECONDS, worker=worker)
    assert {run.state for run in small} == {State.SUCCESSFUL}
    assert not Attempt.objects.filter(run_id__in=[run.id for run in large]).exists()
    (tmp_path / "go").touch()
    ended(staying, *large, limit=SLOW_SECONDS, worker=worker)
    assert [run.state for run in large] == [State.SUCCESSFUL, State.QUARANTINED, *[State.SUCCESSFUL] * 2]
    assert [[attempt.outcome for attempt in run.history] for run in large if run is not large[1]] == [
        ["SUCCESSFUL"]
    ] * 3


def test_a_run_that_ray_has_not_begun_is_cancelled_at_once(start_on_ray: StartOnRay) -> None:
    worker = start_on_ray().ready()
    run = tasks.stay.using(ray={"num_cpus": 1000}).enqueue("never", "asleep")
    wait_for(lambda: Run.objects.filter(pk=run.id, state="RUNNING").exists(), SLOW_SECONDS, worker.tell)
    run.cancel()
    ended(run, limit=10, worker=worker)
    assert run.state is State.CANCELLED
    assert not Ledgerline.objects.filter(label="never").exists()


def test_what_a_dead_foreman_held_is_lost_and_done_again(start_on_ray: StartOnRay, tmp_path: Path) -> None:
    worker = start_on_ray(ray=unique_version()).ready()
    runs = [tasks.stay_on_ray.enqueue(f"run {n}", str(tmp_path / "go")) for n in range(4)]
    for n in range(4):
        marked(f"run {n}", worker)
    foremen()[0].send_signal(signal.SIGKILL)
    (tmp_path / "go").touch()
    ended(*runs, limit=SLOW_SECONDS, worker=worker)
    assert {(run.state, *outcomes(run)) for run in runs} == {(State.SUCCESSFUL, "LOST", "SUCCESSFUL")}
    assert not Run.objects.exclude(failures=0, crashes=0, losses=0).exists()
    assert fsck.check(Ledger()) == []


def test_what_ran_on_a_dead_node_is_lost_and_done_elsewhere(
    start_on_ray: StartOnRay, cluster: Any, tmp_path: Path
) -> None:
    node = add_node(cluster, num_cpus=2, resources={"doomed_node": 1})
    worker = start_on_ray().ready()
    run = tasks.stay_on_the_doomed_node.enqueue("doomed", str(tmp_path / "go"))
    beside = tasks.stay_on_ray.enqueue("beside", str(tmp_path / "go"))
    marked("doomed", worker)
    marked("beside", worker)
    cluster.remove_node(node, allow_graceful=False)
    wait_for(lambda: Attempt.objects.filter(run_id=run.id, outcome="LOST").exists(), SLOW_SECONDS, worker.tell)
    (tmp_path / "go").touch()
    other = add_node(cluster, num_cpus=2, resources={"doomed_node": 1})
    ended(run, beside, limit=SLOW_SECONDS, worker=worker)
    assert (run.state, outcomes(run)) == (State.SUCCESSFUL, ["LOST", "SUCCESSFUL"])
    assert (beside.state, outcomes(beside)) == (State.SUCCESSFUL, ["SUCCESSFUL"])
    cluster.remove_node(other, allow_graceful=False)


def test_what_ray_ends_for_lack_of_memory_has_crashed(
    cluster: Any, start_on_ray: StartOnRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._common.utils import get_system_memory
    from ray._private.utils import get_used_memory

    worker = start_on_ray().ready()
    # A node that takes the machine for full when one more gibibyte is in use.
    total, used = get_system_memory(), get_used_memory()
    if total - used < 6 * 2**30:
        pytest.skip("needs 6 GiB of free memory")
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{(used + 2**30) / total:.3f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    node = add_node(cluster, num_cpus=1, resources={"small_node": 1})
    try:
        run = tasks.hold_memory.enqueue(3 * 1024, 20.0)
        ended(run, limit=SLOW_SECONDS, worker=worker)
    finally:
        cluster.remove_node(node)
    assert run.state is State.QUARANTINED
    # The next process may be ended before the task has begun, while the memory of the last is still counted.
    assert [outcome for outcome in outcomes(run) if outcome != "INTERRUPTED"] == CRASHES
    assert "Ray ended its process for lack of memory." in run.reason
