"""Bad ends spread at once, and a retry undoes what they did."""

from uuid import UUID

import pytest

from django_manta import State, TaskResult
from django_manta.ledger import Ledger, graph
from django_manta.models import Gate, Herald
from django_manta.signals import run_settled
from django_manta.testing import run_all
from tests.app.tasks import leave
from tests.workflow.conftest import Script, state, states
from tests.workflow.tasks import BROKEN, fragile, same, scripted


def broken(name: str) -> TaskResult:
    BROKEN.add(name)
    return fragile.enqueue(name)


def test_a_failure_spreads_through_several_levels_and_a_retry_undoes_it() -> None:
    first = broken("first")
    chain: list[TaskResult] = [first]
    for _ in range(4):
        chain.append(same.enqueue(chain[-1]))
    beside = same.using(after=chain[2:4]).enqueue("beside")
    run_all()
    assert states(*chain, beside) == [State.FAILED] + [State.UPSTREAM_FAILED] * 5
    BROKEN.clear()
    first.retry()
    run_all(queues=["nobody"])
    assert states(*chain, beside) == [State.READY] + [State.WAITING] * 5
    assert [each.reason for each in chain] == [""] * 5
    run_all()
    assert states(*chain, beside) == [State.SUCCESSFUL] * 6
    assert [each.return_value for each in chain] == ["first"] * 5


def test_two_preconditions_fail_and_recover_in_one_batch() -> None:
    one, two = broken("one"), broken("two")
    result = same.enqueue([one, two])
    run_all()
    assert state(result) is State.UPSTREAM_FAILED
    BROKEN.clear()
    Ledger().retry([UUID(one.id), UUID(two.id)])
    run_all(queues=["nobody"])
    gate = Gate.objects.get(run_id=result.id)
    assert (gate.pending_values, gate.bad_values) == (2, 0)
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == ["one", "two"]


def test_two_preconditions_fail_and_one_recovers() -> None:
    one, two = broken("one"), broken("two")
    result = same.enqueue([one, two])
    run_all()
    BROKEN.discard("one")
    one.retry()
    run_all()
    assert states(one, two, result) == [State.SUCCESSFUL, State.FAILED, State.UPSTREAM_FAILED]
    BROKEN.clear()
    two.retry()
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_a_retry_that_fails_again_spreads_again() -> None:
    first = broken("first")
    result = same.enqueue(first)
    for _ in range(3):
        run_all()
        assert states(first, result) == [State.FAILED, State.UPSTREAM_FAILED]
        first.retry()
    run_all()
    assert len(first.refresh() or first.history) == 4


def test_proceeding_after_an_old_failure_waits_for_the_new_run() -> None:
    first = broken("first")
    run_all()
    first.retry()
    result = same.using(after=[first], when="all_finished").enqueue()
    run_all(queues=["nobody"])
    assert state(result) is State.WAITING
    run_all()
    assert states(first, result) == [State.FAILED, State.SUCCESSFUL]


def test_depending_on_something_that_has_already_failed() -> None:
    first = broken("first")
    run_all()
    late = same.enqueue(first)
    later = same.enqueue(late)
    run_all()
    assert states(late, later) == [State.UPSTREAM_FAILED] * 2
    BROKEN.clear()
    first.retry()
    run_all()
    assert states(late, later) == [State.SUCCESSFUL] * 2


def test_retrying_a_dependent_whose_precondition_is_still_bad_changes_nothing() -> None:
    first = broken("first")
    result = same.enqueue(first)
    run_all()
    state(result)
    result.retry()
    run_all()
    assert state(result) is State.UPSTREAM_FAILED


def test_a_retried_dependent_runs_again_if_its_preconditions_are_met(script: Script) -> None:
    first = same.enqueue("value")
    BROKEN.add("result")
    result = fragile.using(after=[first]).enqueue("result")
    last = same.enqueue(result)
    run_all()
    assert states(first, result, last) == [State.SUCCESSFUL, State.FAILED, State.UPSTREAM_FAILED]
    BROKEN.clear()
    result.retry()
    run_all()
    assert states(result, last) == [State.SUCCESSFUL] * 2


def test_a_retry_resets_the_budget_and_keeps_errors_and_tracebacks() -> None:
    BROKEN.add("result")
    result = fragile.using(max_attempts=2, backoff=0).enqueue("result")
    run_all()
    assert (state(result), len(result.history)) == (State.FAILED, 2)
    result.retry()
    run_all()
    assert (state(result), len(result.history)) == (State.FAILED, 4)
    assert all("result is broken" in attempt.error_message for attempt in result.history)
    assert all("fragile" in attempt.traceback for attempt in result.history)


def test_an_upstream_cancel_is_a_bad_end(script: Script) -> None:
    first = same.enqueue(1)
    strict = same.enqueue(first)
    lenient = same.using(after=[first], when="all_finished").enqueue()
    first.cancel("Nobody wants it.")
    run_all()
    assert states(first, strict, lenient) == [State.CANCELLED, State.UPSTREAM_FAILED, State.SUCCESSFUL]
    first.retry()
    run_all()
    assert states(first, strict) == [State.SUCCESSFUL] * 2


def test_leaving_with_sys_exit_is_a_failure_that_spreads() -> None:
    first = leave.enqueue()
    result = same.enqueue(first)
    run_all()
    assert states(first, result) == [State.FAILED, State.UPSTREAM_FAILED]


def test_a_cascading_cancel_takes_everything_that_waits() -> None:
    first = same.enqueue(1)
    second = same.enqueue(first)
    third = same.using(after=[second], when="all_finished").enqueue()
    beside = same.enqueue(2)
    assert first.cancel("Away with it.", cascade=True) is State.CANCELLED
    run_all()
    assert states(second, third, beside) == [State.CANCELLED, State.CANCELLED, State.SUCCESSFUL]
    assert third.reason == "Away with it."


def test_a_cancel_without_cascade_lets_dependents_learn_of_it() -> None:
    first = same.enqueue(1)
    second = same.enqueue(first)
    first.cancel()
    run_all()
    assert states(first, second) == [State.CANCELLED, State.UPSTREAM_FAILED]


def test_every_end_is_told_to_receivers_once() -> None:
    told: list[tuple[str, State]] = []

    def receive(run_id: str, state: State, **kwargs: object) -> None:
        told.append((run_id, state))

    run_settled.connect(receive)
    try:
        first = broken("first")
        second = same.enqueue(first)
        third = same.enqueue(second)
        run_all()
        cancelled = same.enqueue(1)
        after_it = same.enqueue(cancelled)
        run_all(queues=["nobody"])
        cancelled.cancel()
        run_all()
    finally:
        run_settled.disconnect(receive)
    expected = {
        (first.id, State.FAILED),
        (second.id, State.UPSTREAM_FAILED),
        (third.id, State.UPSTREAM_FAILED),
        (after_it.id, State.UPSTREAM_FAILED),
    }
    # What is cancelled in a transaction is told when that commits, which a test's never does.
    assert set(told) - {(cancelled.id, State.CANCELLED)} == expected
    assert len(told) == len(set(told))


# -- many -----------------------------------------------------------------------------------------------


def test_a_thousand_and_more_dependents_learn_of_a_failure_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    first = broken("first")
    dependents = same.using(after=[first]).map(range(1_203))
    run_all(queues=["nobody"])
    steps: list[int] = []
    untold = graph._tell

    def counting(*args: object) -> object:
        told = untold(*args)  # type: ignore[arg-type]
        steps.append(told[2])
        return told

    monkeypatch.setattr(graph, "_tell", counting)
    ledger = Ledger()
    [claim] = ledger.claim("worker", ["default"], 1)
    from django_manta.states import Outcome
    from tests.ledger.given import settlement

    settled = ledger.settle([settlement(claim, Outcome.FAILED, State.FAILED)])
    at_once = sum(steps)
    assert at_once <= graph.TELL_AT_ONCE
    # The rest is left to the heralds.
    assert Herald.objects.filter(run_id=first.id).exists()
    run_all()
    assert len(settled.ended) == at_once
    assert sum(steps) == 1_203
    assert max(steps) <= graph.TELL_BATCH
    assert dependents.progress == {State.UPSTREAM_FAILED: 1_203}
    assert not Herald.objects.exists()
    BROKEN.clear()
    first.retry()
    run_all(max_runs=2_000)
    assert dependents.progress == {State.SUCCESSFUL: 1_203}


def test_nobody_is_forgotten_when_many_are_told_and_none_moves() -> None:
    """More heralds than are heard at a time, none of which moves anything."""
    never = same.using(hold=True).enqueue()
    group = same.map(range(150))
    result = same.using(after=[never]).enqueue(group)
    run_all(queues=["nobody"])
    Ledger().cancel([UUID(each.id) for each in group])
    run_all(queues=["nobody"])
    assert not Herald.objects.exists()
    assert state(result) is State.UPSTREAM_FAILED


def test_nobody_is_forgotten_when_many_are_counted_and_none_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    never = same.using(hold=True).enqueue()
    same.using(after=[never]).map(range(1_010))
    done = same.enqueue(1)
    result = same.enqueue(done)
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_a_scripted_failure_of_any_exception_spreads(script: Script) -> None:
    def step() -> None:
        raise MemoryError

    first = scripted.enqueue(script(step))
    result = same.enqueue(first)
    run_all()
    assert states(first, result) == [State.FAILED, State.UPSTREAM_FAILED]
