"""Nodes that are stopped in an orderly way cost their runs time, and charge them with nothing."""

import contextlib
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from django_manta import State
from django_manta.ledger import Ledger, fsck
from django_manta.models import Attempt, Run
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.ray.clusters import SLOW_SECONDS, add_node, named, stop_node
from tests.ray.conftest import StartOnRay, marked
from tests.worker.conftest import ended, outcomes, wait_for

#: On the node that is stopped; two more have room on the other one. Each has a process of its own, which takes its time
#: to load the project.
RUNS = 6
START_SECONDS = 3 * SLOW_SECONDS


@pytest.mark.parametrize("raylet_first", [True, False], ids=["as `ray stop` does", "the raylet last"])
def test_runs_on_a_node_that_is_stopped_are_executed_again_elsewhere(
    start_on_ray: StartOnRay, cluster: Any, tmp_path: Path, raylet_first: bool
) -> None:
    node = add_node(cluster, num_cpus=RUNS)
    worker = start_on_ray().ready()
    go = tmp_path / "go"
    runs = [tasks.stay_on_ray.using(ray={"num_cpus": 1}).enqueue(f"run {n}", str(go)) for n in range(RUNS + 2)]
    try:
        wait_for(lambda: Ledgerline.objects.count() == len(runs), START_SECONDS, worker.tell)
    finally:
        stop_node(cluster, node, raylet_first=raylet_first)
    wait_for(lambda: Attempt.objects.values("run_id").distinct().count() == RUNS, SLOW_SECONDS, worker.tell)
    go.touch()
    ended(*runs, limit=SLOW_SECONDS, worker=worker)
    seen = sorted((run.state.value, *outcomes(run)) for run in runs)
    print({each: seen.count(each) for each in set(seen)})
    assert {(state, last) for state, *_, last in seen} == {("SUCCESSFUL", "SUCCESSFUL")}
    assert {outcome for _, *early, _ in seen for outcome in early} <= {"LOST", "INTERRUPTED"}
    assert not Run.objects.exclude(failures=0, crashes=0, losses=0).exists()
    assert fsck.check(Ledger()) == []


def test_sigterm_to_a_process_of_ray_interrupts_its_run_and_ends_the_process(
    start_on_ray: StartOnRay, tmp_path: Path
) -> None:
    worker = start_on_ray().ready()
    go = tmp_path / "go"
    staying = tasks.stay_on_ray.enqueue("staying", str(go))
    once = tasks.stay_on_ray.using(max_losses=0).enqueue("once", str(go))
    for label in ("staying", "once"):
        marked(label, worker)
    pids = dict(Ledgerline.objects.values_list("label", "amount"))
    for pid in set(pids.values()):
        psutil.Process(pid).send_signal(signal.SIGTERM)
    wait_for(lambda: Attempt.objects.filter(outcome="INTERRUPTED").count() == 2, SLOW_SECONDS, worker.tell)
    for pid in set(pids.values()):
        wait_for(lambda pid=pid: not psutil.pid_exists(pid), 20, worker.tell)
    go.touch()
    ended(staying, once, limit=SLOW_SECONDS, worker=worker)
    assert (staying.state, outcomes(staying)) == (State.SUCCESSFUL, ["INTERRUPTED", "SUCCESSFUL"])
    assert (once.state, outcomes(once)) == (State.LOST, ["INTERRUPTED"])
    assert "max_losses is 0" in once.reason
    assert Ledgerline.objects.filter(label="once").count() == 1
    assert not Run.objects.exclude(failures=0, crashes=0, losses=0).exists()


def test_what_a_process_has_not_begun_that_gets_sigterm_is_executed_by_others(start_on_ray: StartOnRay) -> None:
    worker = start_on_ray().ready()
    known = [tasks.sleep.enqueue(0.01) for _ in range(40)]
    ended(*known, limit=START_SECONDS, worker=worker)
    runs = [tasks.sleep.enqueue(0.01) for _ in range(600)]
    ids = [run.id for run in runs]
    stopped = 0
    for done in (50, 200, 350):
        wait_for(lambda done=done: Run.objects.filter(pk__in=ids).finished().count() >= done, 60, worker.tell)
        for process in named("ray::manta:"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
                stopped += 1
    ended(*runs, limit=START_SECONDS, worker=worker)
    counted = Counter(attempt.outcome.value for run in runs for attempt in run.history)
    print(f"{stopped} processes were told to end: {counted}")
    assert stopped
    assert {run.state for run in runs} == {State.SUCCESSFUL}
    assert not counted.keys() - {"SUCCESSFUL", "INTERRUPTED", "RETURNED", "LOST"}
    assert not Run.objects.exclude(failures=0, crashes=0, losses=0).exists()
