"""The four whens, with everything good, something bad, everything bad: before the enqueue, and after it."""

from datetime import timedelta

import pytest

from django_manta import State, TaskResult, When, promise, reject, resolve
from django_manta.models import Gate
from django_manta.testing import run_all
from tests.workflow.conftest import Script, state, states
from tests.workflow.tasks import BROKEN, fragile, same, scripted

GOOD, BAD, NEVER = "good", "bad", "never"
WHENS = ["all_successful", "all_finished", "any_successful", "any_finished"]

#: What becomes of a run that waits for such preconditions, in the order of WHENS.
FATES = {
    (GOOD, GOOD): ["SUCCESSFUL", "SUCCESSFUL", "SUCCESSFUL", "SUCCESSFUL"],
    (GOOD, BAD): ["UPSTREAM_FAILED", "SUCCESSFUL", "SUCCESSFUL", "SUCCESSFUL"],
    (BAD, BAD): ["UPSTREAM_FAILED", "SUCCESSFUL", "UPSTREAM_FAILED", "SUCCESSFUL"],
    (GOOD, NEVER): ["WAITING", "WAITING", "SUCCESSFUL", "SUCCESSFUL"],
    (BAD, NEVER): ["UPSTREAM_FAILED", "WAITING", "WAITING", "SUCCESSFUL"],
    (BAD, GOOD, NEVER): ["UPSTREAM_FAILED", "WAITING", "SUCCESSFUL", "SUCCESSFUL"],
    (NEVER, NEVER): ["WAITING", "WAITING", "WAITING", "WAITING"],
    (): ["SUCCESSFUL", "SUCCESSFUL", "SUCCESSFUL", "SUCCESSFUL"],
}


def preconditions(kinds: tuple[str, ...]) -> list[TaskResult]:
    BROKEN.add(BAD)
    return [promise() if kind == NEVER else fragile.enqueue(kind) for kind in kinds]


@pytest.mark.parametrize("kinds", FATES, ids="-".join)
@pytest.mark.parametrize("ended_before", [False, True], ids=["meanwhile", "before"])
def test_what_becomes_of_a_run(kinds: tuple[str, ...], ended_before: bool) -> None:
    on = preconditions(kinds)
    if ended_before:
        run_all()
    waiting = [same.using(after=on, when=when).enqueue() for when in WHENS]
    run_all()
    assert [each.value for each in states(*waiting)] == FATES[kinds]


def test_any_block_with_one_failed_and_one_achieved() -> None:
    bad, good = preconditions((BAD, GOOD))
    result = same.using(after=[bad, good], when=When.ANY_SUCCESSFUL).enqueue("value")
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_after_takes_results_groups_and_ids() -> None:
    group = same.map([1, 2])
    lone = same.enqueue(3)
    by_id = same.enqueue(4)
    result = same.using(after=[group, lone, by_id.id]).enqueue()
    direct = same.using(after=lone).enqueue()
    run_all()
    assert states(result, direct) == [State.SUCCESSFUL] * 2
    assert (result.finished_at or 0) >= max(each.refresh() or each.finished_at for each in [*group, lone, by_id])


def test_run_after_and_preconditions_are_both_waited_for() -> None:
    first = same.enqueue(1)
    result = same.using(after=[first], run_after=timedelta(hours=1)).enqueue()
    assert state(result) is State.WAITING
    run_all()
    assert states(first, result) == [State.SUCCESSFUL, State.SCHEDULED]
    run_all(include_scheduled=True)
    assert state(result) is State.SUCCESSFUL


def test_what_was_reopened_still_waits_for_its_date() -> None:
    BROKEN.add(BAD)
    first = fragile.enqueue(BAD)
    result = same.using(after=[first], run_after=timedelta(hours=1)).enqueue()
    run_all()
    assert state(result) is State.UPSTREAM_FAILED
    BROKEN.clear()
    first.retry()
    run_all()
    assert states(first, result) == [State.SUCCESSFUL, State.SCHEDULED]


def test_a_reopened_precondition_calls_back_what_waits_for_its_date() -> None:
    BROKEN.add(BAD)
    first = fragile.enqueue(BAD)
    result = same.using(after=[first], when="all_finished", run_after=timedelta(hours=1)).enqueue()
    run_all()
    assert state(result) is State.SCHEDULED
    first.retry()
    run_all(queues=["nobody"])
    assert state(result) is State.WAITING
    run_all()
    assert states(first, result) == [State.FAILED, State.SCHEDULED]


def test_expiry_ends_what_waits_and_what_waits_for_that() -> None:
    gate = promise()
    first = same.using(after=[gate], expires=timedelta(seconds=-1)).enqueue()
    second = same.enqueue(first)
    third = same.using(after=[first], when="all_finished").enqueue("third")
    run_all()
    assert states(first, second, third) == [State.EXPIRED, State.UPSTREAM_FAILED, State.SUCCESSFUL]


# -- counting -----------------------------------------------------------------------------------------


def test_counters_follow_the_preconditions() -> None:
    one, two, three = promise("one"), promise("two"), promise("three")
    result = same.using(after=[one, two, three], when="all_finished").enqueue()
    run_all()
    counted = [("one", resolve), ("two", reject)]
    seen = [Gate.objects.values_list("pending_after", "met_after", "bad_after").get(run_id=result.id)]
    for name, settle in counted:
        settle(name)
        run_all()
        seen.append(Gate.objects.values_list("pending_after", "met_after", "bad_after").get(run_id=result.id))
    assert seen == [(3, 0, 0), (2, 1, 0), (1, 1, 1)]
    assert state(result) is State.WAITING


def test_only_ready_runs_execute(script: Script) -> None:
    called: list[str] = []
    first = scripted.enqueue(script(lambda: called.append("first")))
    scripted.using(after=[first]).enqueue(script(lambda: called.append("second")))
    scripted.using(after=[promise()]).enqueue(script(lambda: called.append("never")))
    run_all()
    assert called == ["first", "second"]


# -- ready and not yet called ---------------------------------------------------------------------------


def test_an_any_that_is_ready_stays_so_when_another_precondition_is_reopened() -> None:
    bad, good, never = preconditions((BAD, GOOD, NEVER))
    result = same.using(after=[bad, good, never], when="any_successful", queue_name="slow").enqueue()
    run_all(queues=["default"])
    assert state(result) is State.READY
    bad.retry()
    run_all(queues=["nobody"])
    assert state(result) is State.READY
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_an_any_finished_stays_ready_while_one_of_two_ends_stands() -> None:
    bad, good, never = preconditions((BAD, GOOD, NEVER))
    result = same.using(after=[bad, good, never], when="any_finished", queue_name="slow").enqueue()
    run_all(queues=["default"])
    bad.retry()
    run_all(queues=["nobody"])
    assert state(result) is State.READY


def test_an_any_finished_goes_back_to_waiting_when_the_only_end_is_reopened() -> None:
    bad, never = preconditions((BAD, NEVER))
    result = same.using(after=[bad, never], when="any_finished", queue_name="slow").enqueue()
    run_all(queues=["default"])
    assert state(result) is State.READY
    bad.retry()
    run_all(queues=["nobody"])
    assert state(result) is State.WAITING
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_recovery_pulls_a_ready_all_run_back_to_waiting() -> None:
    bad, good = preconditions((BAD, GOOD))
    result = same.using(after=[bad, good], when="all_finished", queue_name="slow").enqueue()
    run_all(queues=["default"])
    assert state(result) is State.READY
    bad.retry()
    run_all(queues=["nobody"])
    assert state(result) is State.WAITING
    run_all()
    assert states(bad, result) == [State.FAILED, State.SUCCESSFUL]
