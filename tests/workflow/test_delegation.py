"""A task that returns a result is WAITING for it, holds no worker, and ends as it does."""

from datetime import timedelta
from json import dumps
from typing import Any
from uuid import UUID

import pytest
from django.tasks.signals import task_finished

from django_manta import Group, Later, State, TaskResult, gather
from django_manta.ledger import Ledger, Settled, fsck, settling
from django_manta.models import Run
from django_manta.states import BAD_ENDS, Outcome
from django_manta.testing import TooManyRuns, run_all
from tests.app.tasks import add
from tests.ledger.given import settlement, sql
from tests.workflow.conftest import Script, state, states
from tests.workflow.tasks import (
    BROKEN,
    descend,
    fragile,
    hand_over,
    merge_sort,
    same,
    scripted,
    scripted_atomically,
    spread,
    total,
)


def children_of(result: TaskResult) -> list[TaskResult]:
    runs = Run.objects.filter(dependencies__run_id=result.id, dependencies__role="delegate").order_by("id")
    return [run.result for run in runs]


def test_merge_sort_runs_as_the_design_shows() -> None:
    result = merge_sort.enqueue([5, 3, 9, 1, 7, 2, 8])
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == [1, 2, 3, 5, 7, 8, 9]
    assert [attempt.outcome for attempt in result.history] == [Outcome.DELEGATED]


def test_delegation_goes_to_any_depth() -> None:
    result = descend.enqueue(30)
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == "the ground"
    assert result.attempts == 1


def test_a_value_that_was_delegated_can_be_an_argument() -> None:
    result = same.enqueue([descend.enqueue(3), spread.enqueue(["a", "b"])])
    run_all()
    result.refresh()
    assert result.return_value == ["the ground", ["a", "b"]]


def test_delegating_to_a_group_is_delegating_to_all_of_it() -> None:
    result = spread.enqueue(["a", "b", "c"])
    with pytest.raises(TooManyRuns):
        run_all(max_runs=2)
    assert state(result) is State.WAITING
    assert result.reason == "It waits for what it delegated to."
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == ["a", "b", "c"]


def test_delegating_to_nobody_is_an_empty_list() -> None:
    result = spread.enqueue([])
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == []


def test_delegating_to_what_has_ended_already(script: Script) -> None:
    done = same.enqueue("done")
    BROKEN.add("bad")
    bad = fragile.enqueue("bad")
    run_all()
    good = scripted.enqueue(script(lambda: done))
    spoiled = scripted.enqueue(script(lambda: bad))
    run_all()
    assert states(good, spoiled) == [State.SUCCESSFUL, State.FAILED]
    assert good.return_value == "done"


@pytest.mark.parametrize("task", [scripted, scripted_atomically])
def test_several_results_are_gathered_and_may_repeat(script: Script, task: Any) -> None:
    def step() -> Group[Any]:
        one = same.enqueue(1)
        return gather(one, same.enqueue(2), one)

    result = task.enqueue(script(step))
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == [1, 2, 1]


def test_a_result_inside_what_is_returned_is_refused(script: Script) -> None:
    result = scripted.enqueue(script(lambda: {"inside": same.enqueue(1)}))
    run_all()
    assert state(result) is State.FAILED
    assert "a result can be an argument, or be returned itself" in result.history[-1].error_message


def test_a_waiting_delegate_executes_once_and_its_signal_tells_the_value() -> None:
    told: dict[str, Any] = {}

    def receive(task_result: TaskResult, **kwargs: Any) -> None:
        told[task_result.id] = task_result.return_value

    task_finished.connect(receive)
    try:
        result = descend.enqueue(2)
        sums = total.enqueue(spread_numbers(result))
        run_all()
    finally:
        task_finished.disconnect(receive)
    assert told[result.id] == "the ground"
    assert told[sums.id] == 3


def spread_numbers(_: object) -> Any:
    return add.starmap([(0, 1), (1, 1)])


# -- bad ends --------------------------------------------------------------------------------------------


def test_the_childs_bad_end_is_its_end_and_retrying_the_child_revives_it() -> None:
    BROKEN.add("child")
    result = hand_over.enqueue("child")
    after_it = same.enqueue(result)
    run_all()
    assert states(result, after_it) == [State.FAILED, State.UPSTREAM_FAILED]
    assert result.reason.endswith(", which it delegated to, ended FAILED.")
    assert result.errors[-1].exception_class_path == "django_manta.exceptions.UpstreamFailed"
    BROKEN.clear()
    [child] = children_of(result)
    child.retry()
    run_all(queues=["nobody"])
    assert states(result, after_it) == [State.WAITING, State.WAITING]
    assert result.reason == "It waits for what it delegated to."
    run_all()
    assert states(result, after_it) == [State.SUCCESSFUL] * 2
    assert after_it.return_value == "child"
    assert len(result.history) == 1


def test_reviving_goes_through_every_level(script: Script) -> None:
    BROKEN.add("ground")
    middle = script(lambda: hand_over.enqueue("ground"))
    top = scripted.enqueue(script(lambda: scripted.enqueue(middle)))
    run_all()
    assert state(top) is State.FAILED
    [second] = children_of(top)
    [third] = children_of(second)
    [ground] = children_of(third)
    BROKEN.clear()
    ground.retry()
    run_all()
    assert states(top, second, third, ground) == [State.SUCCESSFUL] * 4
    assert top.return_value == "ground"


def test_one_bad_child_of_a_group_is_the_end_and_two_must_recover() -> None:
    BROKEN.update({"a", "c"})
    result = spread.enqueue(["a", "b", "c"])
    run_all()
    assert state(result) is State.FAILED
    BROKEN.clear()
    one, _, three = children_of(result)
    one.retry()
    run_all()
    assert states(one, result) == [State.SUCCESSFUL, State.FAILED]
    three.retry()
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == ["a", "b", "c"]


def test_retrying_the_parent_calls_it_again_and_forgets_the_former_child() -> None:
    BROKEN.add("child")
    result = hand_over.enqueue("child")
    run_all()
    assert state(result) is State.FAILED
    [former] = children_of(result)
    BROKEN.clear()
    result.retry()
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == "child"
    assert [attempt.outcome for attempt in result.history] == [Outcome.DELEGATED] * 2
    assert state(former) is State.FAILED
    former.retry()
    run_all()
    assert states(former, result) == [State.SUCCESSFUL] * 2


def test_an_atomic_failure_after_enqueueing_children_leaves_none(script: Script) -> None:
    def step() -> None:
        same.enqueue(1)
        raise ValueError

    result = scripted_atomically.enqueue(script(step))
    run_all()
    assert state(result) is State.FAILED
    assert Run.objects.count() == 1


def test_a_forged_pointer_is_not_followed() -> None:
    result = hand_over.enqueue("child")
    run_all()
    secret = same.enqueue("secret")
    run_all()
    sql(Ledger(), "UPDATE manta_run SET delegate = %s WHERE id = %s", [f'"{secret.id}"', UUID(result.id).hex])
    reader = same.enqueue(result)
    run_all()
    assert state(reader) is State.FAILED
    assert reader.errors[-1].exception_class_path == "django_manta.exceptions.BadTaskSignature"


# -- cancel ----------------------------------------------------------------------------------------------


def test_cancelling_what_has_delegated_cancels_the_children_to_any_depth(script: Script) -> None:
    bottom = script(lambda: gather(same.using(hold=True).enqueue(1), same.using(hold=True).enqueue(2)))
    top = scripted.enqueue(script(lambda: scripted.enqueue(bottom)))
    run_all()
    [second] = children_of(top)
    children = children_of(second)
    assert states(top, second, *children) == [State.WAITING] * 2 + [State.HELD] * 2
    top.cancel("Nobody wants it.")
    run_all()
    assert states(top, second, *children) == [State.CANCELLED] * 4
    assert children[0].reason == "Nobody wants it."


def test_what_is_cancelled_while_it_runs_takes_what_it_delegates_to_along(script: Script) -> None:
    made: list[TaskResult] = []

    def step() -> TaskResult:
        Ledger().cancel([UUID(result.id)], "Too late.")
        made.append(same.enqueue(1))
        return made[0]

    result = scripted.enqueue(script(step))
    run_all(max_runs=1)
    run_all()
    assert states(result, made[0]) == [State.CANCELLED] * 2
    assert result.reason == "Too late."
    assert made[0].reason == "What had delegated to it was cancelled."


def test_who_dies_after_settling_a_cancelled_run_leaves_no_child_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    result, child = same.enqueue(1), same.using(queue_name="slow").enqueue(2)
    [claim] = ledger.claim("worker", ["default"], 1)
    ledger.cancel([claim.id])
    monkeypatch.setattr(settling, "_spread", lambda ledger, done: Settled(done.moved))
    delegated = settlement(claim, outcome=Outcome.DELEGATED, next_state=State.WAITING, delegate=dumps(child.id))
    ledger.settle([delegated])
    assert states(result, child) == [State.CANCELLED] * 2


def test_what_is_cancelled_while_it_runs_is_not_called_again(script: Script) -> None:
    def step() -> Later:
        Ledger().cancel([UUID(result.id)], "Too late.")
        return Later(after=[same.enqueue(1)])

    result = scripted.enqueue(script(step))
    run_all()
    assert state(result) is State.CANCELLED


def test_cancelling_a_child_cancels_the_parent() -> None:
    result = hand_over.enqueue("child", hold=True)
    run_all()
    [child] = children_of(result)
    child.cancel()
    run_all()
    assert states(child, result) == [State.CANCELLED] * 2
    child.retry()
    run_all()
    assert states(child, result) == [State.SUCCESSFUL] * 2


def test_what_has_delegated_cannot_be_held() -> None:
    result = hand_over.enqueue("child", hold=True)
    run_all()
    assert Ledger().hold([UUID(result.id)]) == {}
    [child] = children_of(result)
    Ledger().release([UUID(child.id)])
    run_all()
    assert state(result) is State.SUCCESSFUL


# -- retention -------------------------------------------------------------------------------------------


def prune() -> int:
    ledger = Ledger()
    return sum(ledger.prune(end, timedelta(seconds=-1)).deleted for end in (State.SUCCESSFUL, *sorted(BAD_ENDS)))


def test_retention_keeps_what_a_delegating_run_refers_to() -> None:
    result = descend.enqueue(2)
    run_all()
    ledger = Ledger()
    [[top]] = sql(ledger, "SELECT count(*) FROM manta_run")
    assert top == 3
    # Only the one that nobody refers to goes; then the next.
    assert [ledger.prune(State.SUCCESSFUL, timedelta(seconds=-1)).deleted for _ in range(4)] == [1, 1, 1, 0]
    with pytest.raises(Exception, match=result.id):
        result.refresh()


def test_retention_keeps_what_is_waited_for_or_failed_for(script: Script) -> None:
    done = same.enqueue(1)
    BROKEN.add("bad")
    bad = fragile.enqueue("bad")
    waiting = same.using(hold=True).enqueue(done)
    spoiled = same.enqueue(bad)
    run_all()
    ledger = Ledger()
    assert ledger.prune(State.SUCCESSFUL, timedelta(seconds=-1)).deleted == 0
    assert ledger.prune(State.FAILED, timedelta(seconds=-1)).deleted == 0
    assert ledger.prune(State.UPSTREAM_FAILED, timedelta(seconds=-1)).deleted == 1
    assert ledger.prune(State.FAILED, timedelta(seconds=-1)).deleted == 1
    ledger.release([UUID(waiting.id)])
    run_all()
    assert states(waiting) == [State.SUCCESSFUL]
    assert not Run.objects.filter(id__in=[spoiled.id, bad.id]).exists()


def test_edges_and_gates_go_with_their_runs() -> None:
    from django_manta.models import Dependency, Gate

    result = same.enqueue([same.enqueue(1), same.enqueue(2)])
    run_all()
    assert state(result) is State.SUCCESSFUL
    prune()
    prune()
    assert (Run.objects.count(), Dependency.objects.count(), Gate.objects.count()) == (0, 0, 0)


def test_what_is_over_does_not_keep_its_preconditions() -> None:
    first = same.enqueue(1)
    BROKEN.add("result")
    result = fragile.using(after=[first]).enqueue("result")
    run_all()
    assert Ledger().prune(State.SUCCESSFUL, timedelta(seconds=-1)).deleted == 1
    # And can still be retried.
    BROKEN.clear()
    result.retry()
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_a_retry_whose_value_is_gone_says_so() -> None:
    first = same.enqueue(1)
    result = total.enqueue(first)
    run_all()
    assert state(result) is State.FAILED
    Run.objects.filter(pk=first.id).delete()
    result.retry()
    run_all()
    assert state(result) is State.UPSTREAM_FAILED
    assert result.reason == f"Run {first.id}, which it waits for, is gone."
    assert {finding.check for finding in fsck.repair(Ledger())} == {"attempt-without-run"}


def test_a_lost_execution_delegates_nothing() -> None:
    ledger = Ledger()
    result = hand_over.enqueue("child")
    [claim] = ledger.claim("worker", ["default"], 1)
    ledger.settle([settlement(claim, Outcome.RETURNED, State.READY)])
    late = settlement(claim, Outcome.DELEGATED, State.WAITING, delegate=f'"{result.id}"')
    assert ledger.settle([late]).not_mine == {claim.token}
    run_all()
    assert state(result) is State.SUCCESSFUL
