"""Promises: runs that nobody executes, settled from outside."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.db import transaction
from django.tasks.exceptions import TaskResultDoesNotExist

from django_manta import State, get_promise, promise, reject, resolve
from django_manta.exceptions import PromiseExists
from django_manta.ledger import Ledger
from django_manta.models import Run
from django_manta.testing import run_all
from tests.workflow.conftest import state, states
from tests.workflow.tasks import same

PAST = timedelta(seconds=-1)


def test_a_promise_is_an_ordinary_dependency() -> None:
    approval = promise("approval", metadata={"order": 7})
    value = same.enqueue(approval)
    after = same.using(after=[approval]).enqueue("after")
    run_all()
    assert states(approval, value, after) == [State.WAITING] * 3
    settled = resolve("approval", {"by": "Ada"})
    assert (settled.state, settled.return_value, settled.metadata) == (State.SUCCESSFUL, {"by": "Ada"}, {"order": 7})
    run_all()
    assert states(value, after) == [State.SUCCESSFUL] * 2
    assert value.return_value == {"by": "Ada"}


@pytest.mark.parametrize("kind", [str, UUID])
def test_a_promise_is_settled_by_id(kind: type) -> None:
    nameless = promise()
    result = same.enqueue(nameless)
    assert get_promise(kind(nameless.id)).id == nameless.id
    resolve(kind(nameless.id), 5)
    run_all()
    result.refresh()
    assert result.return_value == 5


def test_a_name_that_is_the_id_of_another_promise_does_not_stand_in_for_it() -> None:
    victim = promise()
    thief = promise(victim.id)
    assert get_promise(victim.id).id == victim.id
    reject(victim.id, "no money")
    assert states(victim, thief) == [State.FAILED, State.WAITING]
    with pytest.raises(ValueError, match="is FAILED: it can be settled only once"):
        resolve(victim.id, 5)
    resolve(thief.id, 5)
    assert states(victim, thief) == [State.FAILED, State.SUCCESSFUL]


def test_a_name_may_look_like_an_id() -> None:
    order = str(uuid4())
    approval = promise(order)
    assert resolve(order).id == approval.id


def test_a_rejected_promise_is_a_bad_end_with_its_reason() -> None:
    approval = promise("approval")
    strict = same.enqueue(approval)
    lenient = same.using(after=[approval], when="all_finished").enqueue()
    rejected = reject("approval", "no money")
    assert (rejected.state, rejected.reason) == (State.FAILED, "no money")
    assert [each.exception_class_path for each in rejected.errors] == ["django_manta.exceptions.PromiseRejected"]
    run_all()
    assert states(strict, lenient) == [State.UPSTREAM_FAILED, State.SUCCESSFUL]


def test_a_promise_is_settled_once() -> None:
    approval = promise("approval")
    resolve("approval", 1)
    for settle in (resolve, reject):
        with pytest.raises(ValueError, match="is SUCCESSFUL: it can be settled only once"):
            settle(approval.id)
        with pytest.raises(TaskResultDoesNotExist, match="no open promise named 'approval'"):
            settle("approval")
    approval.refresh()
    assert approval.return_value == 1


def test_a_name_is_unique_while_the_promise_is_open() -> None:
    promise("approval")
    with pytest.raises(PromiseExists, match="open promise named 'approval'"):
        promise("approval")
    assert Run.objects.count() == 1
    resolve("approval")
    second = promise("approval")
    assert get_promise("approval").id == second.id


def test_expiry_ends_the_promise_and_frees_its_name() -> None:
    first = promise("approval", expires=PAST)
    result = same.enqueue(first)
    run_all()
    assert states(first, result) == [State.EXPIRED, State.UPSTREAM_FAILED]
    with pytest.raises(TaskResultDoesNotExist, match="the last one is EXPIRED"):
        resolve("approval")
    with pytest.raises(ValueError, match="is EXPIRED"):
        resolve(first.id)
    second = promise("approval")
    assert get_promise("approval").id == second.id


def test_a_cancel_ends_the_promise_and_frees_its_name() -> None:
    first = promise("approval")
    result = same.enqueue(first)
    run_all()
    first.cancel("changed our minds")
    run_all()
    assert states(first, result) == [State.CANCELLED, State.UPSTREAM_FAILED]
    promise("approval")


def test_a_retried_promise_can_be_kept_after_all() -> None:
    approval = promise("approval")
    result = same.enqueue(approval)
    reject("approval")
    run_all()
    approval.refresh()
    assert approval.retry() is State.WAITING
    run_all()
    assert states(approval, result) == [State.WAITING] * 2
    resolve("approval", "after all")
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_a_retried_promise_bears_its_name_again_unless_another_does() -> None:
    first, second = promise("approval"), None
    first.cancel()
    second = promise("approval")
    second.cancel()
    assert set(Ledger().retry([UUID(first.id), UUID(second.id)]).values()) == {State.WAITING}
    assert get_promise("approval").id == second.id
    resolve("approval")
    assert Ledger().retry([UUID(first.id)]) == {}
    third = promise("approval")
    first.cancel()
    first.retry()
    assert get_promise("approval").id == third.id
    assert state(first) is State.WAITING


def test_a_held_promise_can_be_released_and_is_never_executed() -> None:
    approval = promise("approval")
    ledger = Ledger()
    ledger.hold([UUID(approval.id)])
    assert ledger.release([UUID(approval.id)]) == {UUID(approval.id): State.WAITING}
    assert run_all().runs == 0
    assert state(approval) is State.WAITING


def test_settling_in_a_transaction_counts_when_it_commits() -> None:
    approval = promise("approval")
    result = same.enqueue(approval)
    run_all()
    with pytest.raises(RuntimeError), transaction.atomic():
        resolve("approval", "no")
        raise RuntimeError
    run_all()
    assert states(approval, result) == [State.WAITING] * 2
    with transaction.atomic():
        resolve("approval", "yes")
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == "yes"


def test_a_promise_made_in_a_transaction_that_rolls_back_leaves_no_name() -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        promise("approval")
        raise RuntimeError
    promise("approval")


def test_what_is_no_promise_is_not_settled() -> None:
    run = same.enqueue(1)
    for settle in (resolve, reject, get_promise):
        with pytest.raises(TaskResultDoesNotExist, match="is not a promise"):
            settle(run.id)
        with pytest.raises(TaskResultDoesNotExist):
            settle("nobody")
        with pytest.raises(TaskResultDoesNotExist):
            settle(uuid4())
    assert state(run) is State.READY


def test_a_value_that_cannot_be_kept_is_refused_and_the_promise_stays_open() -> None:
    promise("approval")
    with pytest.raises(ValueError, match="no place in JSON"):
        resolve("approval", float("nan"))
    assert get_promise("approval").state is State.WAITING


def test_a_promise_with_a_long_odd_name() -> None:
    name = "Ωμέγα / 'quoted' \"twice\" %s " * 50
    promise(name)
    assert resolve(name).state is State.SUCCESSFUL
