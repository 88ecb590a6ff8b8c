"""A worker on one machine: it takes runs, executes them in children, settles them, and stops well."""

import os
import signal
import time
from datetime import timedelta

import pytest

from django_manta import State
from django_manta.ledger import Ledger, fsck
from django_manta.models import Attempt, Run, Worker
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.worker.conftest import Start, ended, marked, states, wait_for


def test_a_burst_executes_all_that_is_ready_and_leaves(start_worker: Start) -> None:
    tasks.add.starmap([(n, 1) for n in range(300)])
    tasks.add_async.starmap([(n, 1) for n in range(50)])
    failing = tasks.fail_first.enqueue()
    worker = start_worker("--burst")
    assert worker.wait(60) == 0, worker.tell()
    assert states() == {"SUCCESSFUL": 351}
    failing.refresh()
    assert [attempt.outcome for attempt in failing.history] == ["FAILED", "SUCCESSFUL"]
    assert Attempt.objects.count() == 352
    assert Worker.objects.count() == 0
    assert fsck.check(Ledger()) == []


def test_a_run_enqueued_while_the_worker_idles_is_taken_at_once(start_worker: Start) -> None:
    start_worker().ready()
    first = tasks.add.enqueue(1, 2)
    ended(first)
    result = tasks.write_line.enqueue("soon", 1)
    ended(result, limit=2)
    waited = result.started_at - result.enqueued_at
    assert waited < timedelta(seconds=0.5)


def test_a_scheduled_run_starts_when_it_is_due(start_worker: Start) -> None:
    start_worker().ready()
    ended(tasks.add.enqueue(1, 2))
    result = tasks.add.using(run_after=timedelta(seconds=0.7)).enqueue(1, 2)
    ended(result, limit=5)
    assert result.task.run_after <= result.started_at < result.task.run_after + timedelta(seconds=0.5)


@pytest.mark.parametrize("how", ["term", "group", "interrupt"])
def test_a_deploy_loses_nothing_and_charges_nobody(start_worker: Start, how: str) -> None:
    results = tasks.sleep.map([0.02] * 300)
    worker = start_worker("--stop-timeout", "5").ready()
    wait_for(lambda: Run.objects.successful().count() > 10, 30, worker.tell)
    asked = time.monotonic()
    if how == "term":
        worker.signal(signal.SIGTERM)
    else:
        worker.signal_group(signal.SIGTERM if how == "group" else signal.SIGINT)
    successor = start_worker("--burst")
    assert worker.wait(10) == 0, worker.tell()
    assert time.monotonic() - asked < 7
    assert successor.wait(60) == 0, successor.tell()
    ended(*results)
    assert states() == {"SUCCESSFUL": 300}
    assert set(Attempt.objects.values_list("outcome", flat=True)) <= {"SUCCESSFUL", "RETURNED"}
    assert Run.objects.filter(failures=0, crashes=0, losses=0, attempts=1).count() == 300
    assert fsck.check(Ledger()) == []


def test_what_outlasts_the_stop_timeout_is_interrupted_and_given_back(start_worker: Start) -> None:
    sleeping, stubborn = tasks.stay.enqueue("sleeping", "asleep"), tasks.stay.enqueue("stubborn", "stubborn")
    worker = start_worker("--stop-timeout", "0.5").ready()
    marked("sleeping", worker)
    marked("stubborn", worker)
    asked = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait(10) == 0, worker.tell()
    assert time.monotonic() - asked < 0.5 + 2 + 1
    for result in (sleeping, stubborn):
        result.refresh()
        assert (result.state, [attempt.outcome for attempt in result.history]) == (State.READY, ["INTERRUPTED"])
    assert fsck.check(Ledger()) == []


def test_a_killed_worker_is_found_and_its_runs_taken_over(start_worker: Start) -> None:
    first = start_worker(LEASE_SECONDS=2).ready()
    second = start_worker(LEASE_SECONDS=2).ready()
    # Now, so that neither is done before the other one has begun.
    results = tasks.sleep.map([1.0] * 12)
    wait_for(lambda: Run.objects.running().count() >= 3, 30, first.tell)
    first.signal(signal.SIGKILL)
    # Long before its lease would have ended by the default, which is 30 s.
    ended(*results, limit=25, worker=second)
    assert states() == {"SUCCESSFUL": 12}
    assert fsck.check(Ledger()) == []


def test_children_do_not_outlive_a_killed_worker(start_worker: Start) -> None:
    tasks.beat.enqueue(30)
    worker = start_worker().ready()
    wait_for(lambda: Ledgerline.objects.filter(label="beat").exists(), 30, worker.tell)
    worker.signal(signal.SIGKILL)
    worker.wait(5)
    time.sleep(1)
    last = Ledgerline.objects.filter(label="beat").count()
    time.sleep(0.5)
    assert Ledgerline.objects.filter(label="beat").count() == last


# On SQLite a stopped process that holds the file's only write lock stops everybody, not just itself.
@pytest.mark.postgres
def test_a_worker_stopped_past_its_lease_settles_nothing_and_begins_again(start_worker: Start) -> None:
    results = [tasks.write_atomically.enqueue(f"line {n}", n) for n in range(200)]
    slow = tasks.sleep.map([0.3] * 4)
    first = start_worker(LEASE_SECONDS=2).ready()
    wait_for(lambda: Run.objects.running().filter(worker__contains=f"-{first.pid}-").exists(), 30, first.tell)
    first.signal_group(signal.SIGSTOP)
    # Not before: on a busy machine the first would be done by the time that the second is there.
    second = start_worker(LEASE_SECONDS=2).ready()
    # A child that was stopped between its settlement and its COMMIT still holds that row: at most two.
    wait_for(lambda: Worker.objects.filter(pid=first.pid).exclude(lost_at=None).exists(), 30, second.tell)
    wait_for(lambda: Run.objects.finished().count() >= 202, 30, second.tell)
    os.killpg(first.pid, signal.SIGCONT)
    ended(*results, *slow, limit=30, worker=second)
    wait_for(lambda: "beginning again" in first.tell(), 20, first.tell)
    more = tasks.add.starmap([(1, 2)] * 20)
    ended(*more, worker=first)
    assert states() == {"SUCCESSFUL": 224}
    assert Ledgerline.objects.count() == 200
    assert Attempt.objects.filter(outcome="SUCCESSFUL").count() == 224
    assert fsck.check(Ledger()) == []
