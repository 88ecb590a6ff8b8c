"""The flags of a worker, as they show in what it does. What they refuse is in tests/commands/test_worker.py."""

from datetime import timedelta

import pytest

from django_manta import State
from django_manta.ledger import Ledger, fsck
from django_manta.models import Attempt, Run, Worker
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.worker.conftest import Start, ended, marked, states

NEAR = timedelta(seconds=20)


def begun(label: str) -> int:
    return Ledgerline.objects.filter(label=label).count()


# -- reserved slots ----------------------------------------------------------------------------------


def test_reserved_slots_are_free_for_near_deadlines_while_all_others_are_busy(start_worker: Start) -> None:
    worker = start_worker("--processes", "3", "--reserve", "1:60s", "--reserve", "1:10m").ready()
    long = [tasks.stay.enqueue("far", "asleep") for _ in range(3)]
    long += [tasks.stay.using(deadline=timedelta(hours=1)).enqueue("far", "asleep") for _ in range(3)]
    marked("far", worker)
    long += [tasks.stay.using(deadline=timedelta(minutes=5)).enqueue("minutes", "asleep") for _ in range(3)]
    marked("minutes", worker)
    for _ in range(3):
        near = tasks.add.using(deadline=NEAR).starmap([(n, 1) for n in range(5)])
        ended(*near, limit=10, worker=worker)
    # Nothing else has got a slot that it must not have.
    assert (begun("far"), begun("minutes"), Run.objects.successful().count()) == (1, 1, 15)
    for run in long:
        run.cancel()
    ended(*long, worker=worker)


def test_a_slot_stays_reserved_when_its_process_is_replaced(start_worker: Start) -> None:
    worker = start_worker("--processes", "2", "--reserve", "1:60s", RECYCLE={"RUNS": 1}).ready()
    long = [tasks.stay.enqueue("long", "asleep") for _ in range(3)]
    marked("long", worker)
    # Each of them wears a process out, and the next has to find another one in its place.
    for n in range(4):
        ended(tasks.add.using(deadline=NEAR).enqueue(n, 1), limit=10, worker=worker)
    assert begun("long") == 1
    for run in long:
        run.cancel()
    ended(*long, worker=worker)


# -- when to leave -----------------------------------------------------------------------------------


def test_a_worker_leaves_after_so_many_executions(start_worker: Start) -> None:
    runs = tasks.add.starmap([(n, 1) for n in range(30)])
    worker = start_worker("--max-runs", "7", "--processes", "3")
    assert worker.wait(60) == 0, worker.tell()
    assert states() == {"SUCCESSFUL": 7, "READY": 23}
    assert Run.objects.filter(attempts=1).count() == 7
    assert Worker.objects.count() == 0
    # First in, first out.
    for run in runs:
        run.refresh()
    assert [run.state for run in runs] == [State.SUCCESSFUL] * 7 + [State.READY] * 23
    assert fsck.check(Ledger()) == []


def test_an_execution_that_fails_or_crashes_counts_as_one(start_worker: Start) -> None:
    failing, crashing = tasks.fail_first.enqueue(), tasks.exit_with.enqueue(1)
    tasks.add.starmap([(n, 1) for n in range(10)])
    worker = start_worker("--max-runs", "4", "--processes", "1")
    assert worker.wait(60) == 0, worker.tell()
    assert Attempt.objects.exclude(outcome="RETURNED").count() == 4
    for run in (failing, crashing):
        run.refresh()
        assert run.history
    assert fsck.check(Ledger()) == []


def test_a_burst_takes_what_its_own_runs_enqueue_and_leaves_what_is_not_due(start_worker: Start) -> None:
    parents = [tasks.enqueue_another.enqueue() for _ in range(20)]
    later = tasks.add.using(run_after=timedelta(hours=1)).enqueue(1, 2)
    held = tasks.add.using(hold=True).enqueue(1, 2)
    failing = tasks.fail_thrice.using(backoff=3600).enqueue()
    worker = start_worker("--burst")
    assert worker.wait(60) == 0, worker.tell()
    ended(*parents)
    for run in (later, held, failing):
        run.refresh()
    assert [run.state for run in (later, held, failing)] == [State.SCHEDULED, State.HELD, State.SCHEDULED]
    assert [attempt.outcome for attempt in failing.history] == ["FAILED"]
    assert states() == {"SUCCESSFUL": 40, "SCHEDULED": 2, "HELD": 1}
    assert Worker.objects.count() == 0


# -- queues and names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "claimed"),
    [
        (["--exclude-queues", "slow,urgent"], {"default"}),
        (["--queues", "slow,urgent", "--exclude-queues", "urgent"], {"slow"}),
    ],
)
def test_only_the_queues_asked_for_are_claimed_from(start_worker: Start, flags: list[str], claimed: set[str]) -> None:
    for queue in ("default", "slow", "urgent"):
        tasks.add.using(queue_name=queue).starmap([(n, 1) for n in range(10)])
    worker = start_worker("--burst", *flags)
    assert worker.wait(60) == 0, worker.tell()
    assert set(Run.objects.successful().values_list("queue", flat=True)) == claimed
    assert states() == {"SUCCESSFUL": 10 * len(claimed), "READY": 30 - 10 * len(claimed)}


def test_a_worker_bears_its_name_wherever_it_is_told_of(start_worker: Start) -> None:
    worker = start_worker("--name", "mail-1", "--queues", "urgent").ready()
    row = Worker.objects.get(pid=worker.pid)
    assert (row.name, row.queues) == ("mail-1", ["urgent"])
    assert row.pk.startswith(f"mail-1-{worker.pid}-")
    run = tasks.add.using(queue_name="urgent").enqueue(1, 2)
    ended(run, worker=worker)
    assert [attempt.worker for attempt in run.history] == [row.pk]
    assert run.worker_ids == [row.pk]
    assert row.pk in worker.tell()
