"""A cancel ends what runs: by raising inside it, and by killing its process if that does not help."""

from collections.abc import Callable
from typing import Any

from django_manta import State
from django_manta.execution.runners.flights import GRACE_SECONDS
from django_manta.ledger import Ledger, fsck, house
from tests.app import tasks
from tests.worker.conftest import Start, WorkerProcess, ended, marked, outcomes

#: So long a cancel may take, or so long after the grace.
SECONDS = 1.0

#: A busy machine may be late once; that it is late each time is our fault.
TRIES = 3


def quickest_cancel(worker: WorkerProcess, name: str, enqueue: Callable[[str], Any], budget: float) -> float:
    """How long it takes until nothing runs any more, by the database's clock; the best of a few tries."""
    found = []
    for number in range(TRIES):
        result = enqueue(f"{name} {number}")
        marked(f"{name} {number}", worker)
        asked = house.clock(Ledger())
        assert result.cancel("enough") == State.CANCELLING
        ended(result, limit=20, worker=worker)
        assert (result.state, result.reason, outcomes(result)) == (State.CANCELLED, "enough", ["CANCELLED"])
        found.append((result.finished_at - asked).total_seconds())
        if found[-1] < budget:
            break
    return min(found)


def test_what_sleeps_computes_or_awaits_is_cancelled_within_a_second(start_worker: Start) -> None:
    worker = start_worker("--processes", "2").ready()
    for how in ("asleep", "busy"):
        took = quickest_cancel(worker, how, lambda label, how=how: tasks.stay.enqueue(label, how), SECONDS)
        assert took < SECONDS, how
    beside = [tasks.stay_async.enqueue(f"beside {n}") for n in range(4)]
    for n in range(4):
        marked(f"beside {n}", worker)
    assert quickest_cancel(worker, "async", tasks.stay_async.enqueue, SECONDS) < SECONDS
    for run in beside:
        run.refresh()
    assert {(run.state, run.attempts) for run in beside} == {(State.RUNNING, 1)}
    # Each of them ended by itself: the processes are the same, and well.
    assert "died" not in worker.tell()
    after = tasks.add.starmap([(n, 1) for n in range(10)])
    ended(*after, worker=worker)
    assert {run.state for run in after} == {State.SUCCESSFUL}
    assert fsck.check(Ledger()) == []


def test_what_resists_is_killed_after_its_grace(start_worker: Start) -> None:
    worker = start_worker("--processes", "2").ready()
    budget = GRACE_SECONDS + SECONDS
    beside = tasks.stay.enqueue("beside", "asleep")
    marked("beside", worker)
    for how in ("stubborn", "in C"):
        took = quickest_cancel(worker, how, lambda label, how=how: tasks.stay.enqueue(label, how), budget)
        assert took < budget, how
    beside.refresh()
    assert (beside.state, beside.attempts) == (State.RUNNING, 1)
    after = tasks.add.enqueue(1, 2)
    ended(after, worker=worker)
    assert after.state == State.SUCCESSFUL
    assert fsck.check(Ledger()) == []


def test_what_has_not_started_is_cancelled_at_once_also_while_all_processes_are_busy(start_worker: Start) -> None:
    worker = start_worker("--processes", "1").ready()
    busy = tasks.stay.enqueue("busy", "busy")
    marked("busy", worker)
    waiting = tasks.add.starmap([(n, 1) for n in range(5)])
    # A claimed one is given back first; from the caller's side it is one or the other, and soon over.
    assert {run.cancel() for run in waiting} <= {State.CANCELLED, State.CANCELLING}
    ended(*waiting, limit=15, worker=worker)
    assert {(run.state, tuple(outcomes(run))) for run in waiting} <= {
        (State.CANCELLED, ()),
        (State.CANCELLED, ("CANCELLED",)),
    }
    busy.refresh()
    assert busy.state == State.RUNNING
