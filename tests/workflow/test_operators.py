"""What people decide about runs that wait: hold, release, retry; and how soon: deadlines."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_manta import State, TaskResult, promise, resolve
from django_manta.ledger import Ledger, graph
from django_manta.models import Gate, Run
from django_manta.moments import to_datetime
from django_manta.states import BAD_ENDS
from django_manta.testing import run_all
from tests.commands.conftest import manta_json
from tests.ledger.given import claimed, settlement
from tests.workflow.conftest import state, states
from tests.workflow.tasks import BROKEN, enqueue_inside, fragile, same

HOUR = timedelta(hours=1)


def hold(*results: TaskResult) -> dict[UUID, State]:
    return Ledger().hold([UUID(each.id) for each in results])


def release(*results: TaskResult) -> dict[UUID, State]:
    return Ledger().release([UUID(each.id) for each in results])


# -- hold and release -----------------------------------------------------------------------------------


def test_a_held_run_with_edges_waits_for_both() -> None:
    first = same.enqueue(1)
    result = same.using(after=[first], hold=True).enqueue()
    assert result.state is State.HELD
    run_all()
    assert states(first, result) == [State.SUCCESSFUL, State.HELD]
    release(result)
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_a_released_run_goes_on_waiting() -> None:
    gate = promise("gate")
    result = same.using(after=[gate], hold=True).enqueue()
    assert release(result) == {UUID(result.id): State.WAITING}
    run_all()
    assert state(result) is State.WAITING
    resolve("gate")
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_a_waiting_run_is_held_while_its_precondition_ends() -> None:
    promise("gate")
    from django_manta import get_promise

    result = same.using(after=[get_promise("gate")]).enqueue()
    run_all()
    hold(result)
    resolve("gate")
    run_all()
    assert state(result) is State.HELD
    release(result)
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_a_held_run_whose_precondition_fails_learns_of_it_when_released() -> None:
    BROKEN.add("first")
    first = fragile.enqueue("first")
    result = same.using(hold=True).enqueue(first)
    run_all()
    assert state(result) is State.HELD
    release(result)
    run_all()
    assert state(result) is State.UPSTREAM_FAILED


def test_a_held_precondition_is_waited_for() -> None:
    first = same.using(hold=True).enqueue(1)
    result = same.enqueue(first)
    run_all()
    assert states(first, result) == [State.HELD, State.WAITING]
    release(first)
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_releasing_keeps_the_date() -> None:
    result = same.using(after=[same.enqueue()], hold=True, run_after=HOUR).enqueue()
    run_all()
    release(result)
    run_all()
    assert state(result) is State.SCHEDULED


@pytest.mark.parametrize("end", sorted(BAD_ENDS - {State.UPSTREAM_FAILED}))
def test_a_dependent_is_retried_from_each_bad_end(end: State) -> None:
    from tests.ledger.given import sql

    first = same.enqueue("value")
    result = same.enqueue(first)
    ledger = Ledger()
    run_all(queues=["nobody"])
    sql(
        ledger,
        "UPDATE manta_run SET state = %s, finished_at = enqueued_at WHERE id = %s",
        [end.value, UUID(result.id).hex],
    )
    run_all()
    assert state(result) is end
    result.retry()
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == "value"


def test_a_retry_in_a_transaction_locks_nobodys_preconditions() -> None:
    first = same.enqueue(1)
    BROKEN.add("result")
    result = fragile.using(after=[first]).enqueue("result")
    run_all()
    BROKEN.clear()
    state(result)
    with transaction.atomic():
        assert result.retry() is State.WAITING
        assert not Gate.objects.get(run_id=result.id).armed
    run_all()
    assert state(result) is State.SUCCESSFUL


# -- an open transaction ---------------------------------------------------------------------------------


def test_what_waits_in_a_transaction_is_counted_by_run_all() -> None:
    with transaction.atomic():
        first = same.enqueue(1)
        result = same.enqueue(first)
        run_all()
        assert states(first, result) == [State.SUCCESSFUL] * 2


def test_retrying_what_fails_again_at_once_says_that_nothing_moved() -> None:
    first = same.enqueue(1)
    result = same.enqueue(first)
    run_all(queues=["nobody"])
    first.cancel()
    run_all(queues=["nobody"])
    assert states(first, result) == [State.CANCELLED, State.UPSTREAM_FAILED]
    assert manta_json("retry", result.id, "--dry-run")["moved"] == {"WAITING": 1}
    told = manta_json("retry", result.id)
    if not connection.in_atomic_block:
        assert (told["moved"], told["left"]) == ({}, {"UPSTREAM_FAILED": 1})
        assert state(result) is State.UPSTREAM_FAILED
    run_all()
    assert states(first, result) == [State.CANCELLED, State.UPSTREAM_FAILED]
    assert manta_json("retry", first.id, "--dry-run")["moved"] == {"READY": 1}


def test_a_dry_release_knows_who_waits() -> None:
    first = same.enqueue(1)
    result = same.using(after=[first], hold=True).enqueue()
    assert manta_json("release", result.id, "--dry-run")["moved"] == {"WAITING": 1}
    assert manta_json("release", result.id)["moved"] == {"WAITING": 1}
    assert state(result) is State.WAITING


def test_what_nobody_counted_is_counted_by_the_caretaker(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.tasks import default_task_backend

    from django_manta.worker.caretaker import spread_the_word

    first = same.enqueue(1)
    run_all()
    # Whoever enqueued it died before it could count.
    monkeypatch.setattr(graph, "arm", lambda *args, **kwargs: graph.Passed())
    result = same.enqueue(first)
    monkeypatch.undo()
    assert not Gate.objects.get(run_id=result.id).armed
    Gate.objects.update(made_at=timezone.now() - HOUR)
    assert spread_the_word(default_task_backend, Ledger()) == 1
    assert state(result) is State.READY


def test_what_nobody_told_is_told_by_the_caretaker(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.tasks import default_task_backend

    from django_manta.worker.caretaker import spread_the_word

    first = same.enqueue(1)
    strict, lenient = same.enqueue(first), same.using(after=[first], when="all_finished").enqueue()
    run_all(queues=["nobody"])
    monkeypatch.setattr(graph, "tell", lambda *args, **kwargs: graph.Passed())
    Ledger().cancel([UUID(first.id)])
    monkeypatch.undo()
    assert states(strict, lenient) == [State.WAITING] * 2
    assert spread_the_word(default_task_backend, Ledger()) == 2
    assert states(strict, lenient) == [State.UPSTREAM_FAILED, State.READY]


def test_telling_twice_counts_once() -> None:
    first, other = same.enqueue(1), promise()
    result = same.using(after=[first, other]).enqueue()
    run_all()
    ledger = Ledger()
    for _ in range(3):
        graph.tell(ledger, [UUID(first.id)])
        graph.arm(ledger, [UUID(result.id)])
    gate = Gate.objects.get(run_id=result.id)
    assert (gate.pending_after, gate.met_after) == (1, 1)


# -- deadlines -------------------------------------------------------------------------------------------


def deadline(result: TaskResult) -> datetime:
    return Run.objects.get(id=result.id).deadline


def test_a_run_enqueued_inside_a_run_inherits_its_deadline() -> None:
    result = enqueue_inside.using(deadline=HOUR).enqueue()
    run_all()
    result.refresh()
    inside, own = result.return_value
    assert inside == own


def test_a_near_deadline_is_passed_on_to_what_it_waits_for_and_not_to_what_is_over() -> None:
    done = same.enqueue(0)
    run_all()
    kept = deadline(done)
    first = same.using(hold=True).enqueue(1)
    second = same.enqueue(first)
    nearer = same.using(hold=True, deadline=timedelta(minutes=1)).enqueue(2)
    soon = timezone.now() + HOUR
    last = same.using(deadline=soon, after=[done, nearer]).enqueue(second)
    graph.bring_forward(Ledger(), [UUID(last.id)])
    assert [deadline(each) for each in (first, second, last)] == [soon] * 3
    assert deadline(done) == kept
    assert deadline(nearer) < soon


def test_a_running_precondition_keeps_its_deadline() -> None:
    ledger = Ledger()
    [claim] = claimed(ledger)
    result = same.using(after=[claim.id], deadline=HOUR).enqueue()
    graph.bring_forward(ledger, [UUID(result.id)])
    assert Run.objects.get(id=claim.id).deadline == to_datetime(claim.deadline)
    ledger.settle([settlement(claim)])
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_deadlines_order_the_claims_and_a_horizon_reserves() -> None:
    ledger = Ledger()
    far, near, soon = (same.using(deadline=each).enqueue() for each in (timedelta(days=3), timedelta(seconds=30), HOUR))
    assert ledger.claim("worker", ["default"], 9, horizon=0) == []
    [first] = ledger.claim("worker", ["default"], 9, horizon=60)
    assert str(first.id) == near.id
    [second] = ledger.claim("worker", ["default"], 9, horizon=2 * 86_400)
    assert str(second.id) == soon.id
    [third] = ledger.claim("worker", ["default"], 9)
    assert str(third.id) == far.id
    ledger.settle([settlement(each) for each in (first, second, third)])


def test_a_task_with_a_very_long_path_can_be_waited_for() -> None:
    from tests.ledger.given import enqueue

    ledger = Ledger()
    [run_id] = enqueue(ledger, task="package." + "very_long_name." * 200 + "task")
    result = same.using(after=[run_id], when="all_finished").enqueue()
    ledger.cancel([run_id])
    run_all()
    assert state(result) is State.SUCCESSFUL
