"""Later: call me again, then. It is no failure."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from django_manta import Later, State, TaskResult, promise, resolve
from django_manta.ledger import Ledger, graph
from django_manta.models import Dependency, Run
from django_manta.states import Outcome
from django_manta.testing import TooManyRuns, run_all
from tests.app.models import Ledgerline
from tests.ledger.given import settlement
from tests.workflow.conftest import Script, state, states
from tests.workflow.tasks import BROKEN, fragile, raising, same, scripted, scripted_atomically

HOUR = timedelta(hours=1)


def given_back(later: Later) -> Any:
    return lambda: later


@pytest.mark.parametrize("how", [given_back, raising])
@pytest.mark.parametrize("task", [scripted, scripted_atomically])
def test_later_is_returned_or_raised_and_is_no_failure(script: Script, task: Any, how: Any) -> None:
    result = task.enqueue(script(how(Later(message="not yet")), how(Later()), lambda: "done"))
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == "done"
    assert [each.outcome for each in result.history] == [Outcome.DEFERRED, Outcome.DEFERRED, Outcome.SUCCESSFUL]
    assert [each.error_message for each in result.history] == ["not yet", "", ""]
    assert result.errors == []


@pytest.mark.parametrize("until", [HOUR, "moment"])
@pytest.mark.parametrize("after", [(), None])
def test_until_is_when_at_the_earliest(script: Script, until: Any, after: Any) -> None:
    moment = timezone.now() + HOUR if until == "moment" else until
    result = scripted.enqueue(script(lambda: Later(moment, after, "in an hour"), lambda: "done"))
    run_all()
    assert (state(result), result.reason) == (State.SCHEDULED, "in an hour")
    due = Run.objects.get(id=result.id).due_at
    assert due is not None
    assert abs(due - timezone.now() - HOUR) < timedelta(minutes=1)
    run_all(include_scheduled=True)
    assert state(result) is State.SUCCESSFUL


def test_a_date_that_has_passed_is_now(script: Script) -> None:
    result = scripted.enqueue(script(lambda: Later(timezone.now() - HOUR), lambda: "done"))
    run_all()
    assert state(result) is State.SUCCESSFUL


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"until": 60}, "aware datetime or a timedelta, not 60"),
        ({"until": timezone.now().replace(tzinfo=None)}, "aware datetime or a timedelta"),
        ({"after": [1]}, "results, groups of results, or ids of runs"),
    ],
)
def test_nonsense_is_refused_where_it_is_said(given: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        Later(**given)


def test_new_preconditions_are_waited_for_beside_the_date(script: Script) -> None:
    approval = promise("approval")
    result = scripted.enqueue(script(lambda: Later(HOUR, [approval], "approve it"), lambda: "done"))
    run_all(include_scheduled=True)
    assert (state(result), result.reason) == (State.WAITING, "approve it")
    resolve("approval")
    run_all()
    assert (state(result), result.reason) == (State.SCHEDULED, "approve it")
    run_all(include_scheduled=True)
    assert state(result) is State.SUCCESSFUL


def test_preconditions_are_only_ever_added_and_an_achieved_one_adds_nothing(script: Script) -> None:
    done, open_ = same.enqueue(1), promise("open")
    steps = script(lambda: Later(after=[done]), lambda: Later(after=[done, open_]), lambda: "done")
    result = scripted.using(after=[done]).enqueue(steps)
    run_all()
    assert state(result) is State.WAITING
    assert len(result.history) == 2
    assert Dependency.objects.filter(run_id=result.id).count() == 2
    resolve("open")
    run_all()
    assert (state(result), len(result.history)) == (State.SUCCESSFUL, 3)


def test_a_child_enqueued_inside_is_waited_for(script: Script) -> None:
    order: list[str] = []
    child = script(lambda: order.append("child"))
    result = scripted.enqueue(
        script(lambda: Later(after=[scripted.enqueue(child)]), lambda: order.append("parent again"))
    )
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert order == ["child", "parent again"]


def test_a_bad_end_of_what_it_asked_to_wait_for_is_the_end(script: Script) -> None:
    BROKEN.add("child")
    result = scripted.enqueue(script(lambda: Later(after=[fragile.enqueue("child")])))
    run_all()
    assert state(result) is State.UPSTREAM_FAILED


def test_when_holds_for_later_also_without_preconditions_before(script: Script) -> None:
    BROKEN.add("child")

    def ask() -> Later:
        return Later(after=[fragile.enqueue("child")])

    lenient = scripted.using(when="all_finished").enqueue(script(ask, lambda: "done"))
    any_ = scripted.using(when="any_successful").enqueue(
        script(lambda: Later(after=[promise(), same.enqueue(1)]), lambda: "done")
    )
    assert [lenient.state, any_.state] == [State.READY, State.READY]
    run_all()
    assert states(lenient, any_) == [State.SUCCESSFUL] * 2


# -- any -------------------------------------------------------------------------------------------------


def test_any_with_an_empty_list_waits_for_any_that_has_not_been_met(script: Script) -> None:
    promises = [promise(name) for name in ("one", "two", "three")]
    seen: list[int] = []

    def look() -> Later | str:
        seen.append(sum(each.refresh() or each.state is State.SUCCESSFUL for each in promises))
        return "done" if len(seen) == 3 else Later(after=[])

    result = scripted.using(after=promises, when="any_successful").enqueue(script(look, look, look))
    for name in ("two", "one", "three"):
        run_all()
        assert state(result) is State.WAITING
        resolve(name)
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert seen == [1, 2, 3]


def test_any_with_an_empty_list_and_nothing_left_is_called_at_once(script: Script) -> None:
    result = scripted.using(after=[same.enqueue()], when="any_finished").enqueue(script(Later, lambda: "done"))
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_after_none_is_called_at_once_whatever_the_others_do(script: Script) -> None:
    one, never = same.enqueue(1), promise()
    steps = script(lambda: Later(after=None), lambda: Later(after=None), lambda: "done")
    result = scripted.using(after=[one, never], when="any_successful").enqueue(steps)
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_after_none_does_not_end_the_waiting_for_good(script: Script) -> None:
    one, never = same.enqueue(1), promise("never")
    steps = script(lambda: Later(after=None), lambda: Later(), lambda: "done")
    result = scripted.using(after=[one, never], when="any_successful").enqueue(steps)
    run_all()
    assert (state(result), len(result.history)) == (State.WAITING, 2)
    resolve("never")
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_finishing_with_unmet_preconditions_is_fine(script: Script) -> None:
    never = promise("never")
    result = scripted.using(after=[same.enqueue(), never], when="any_successful").enqueue(script(lambda: "done"))
    run_all()
    assert state(result) is State.SUCCESSFUL
    resolve("never")
    run_all()
    assert (state(result), len(result.history)) == (State.SUCCESSFUL, 1)


def test_what_is_met_during_the_call_wakes_it_at_once(script: Script) -> None:
    promise("one")
    promise("two")

    def meanwhile() -> Later:
        resolve("two")
        return Later(after=[])

    from django_manta import get_promise

    on: list[TaskResult] = [get_promise("one"), get_promise("two"), promise()]
    result = scripted.using(after=on, when="any_successful").enqueue(script(meanwhile, lambda: "done"))
    resolve("one")
    run_all()
    assert (state(result), len(result.history)) == (State.SUCCESSFUL, 2)


def test_an_any_finished_that_ended_badly_counts_again_when_it_ends_anew(script: Script) -> None:
    BROKEN.add("first")
    first, never = fragile.enqueue("first"), promise()
    result = scripted.using(after=[first, never], when="any_finished").enqueue(script(Later, lambda: "done"))
    run_all()
    assert (state(result), len(result.history)) == (State.WAITING, 1)
    first.retry()
    run_all()
    assert (state(result), len(result.history)) == (State.SUCCESSFUL, 2)


def test_what_waited_for_its_date_is_not_called_twice_for_one_precondition(script: Script) -> None:
    result = scripted.using(after=[same.enqueue(), promise()], when="any_successful", run_after=HOUR).enqueue(
        script(Later, lambda: "called twice")
    )
    run_all()
    assert state(result) is State.SCHEDULED
    run_all(include_scheduled=True)
    assert (state(result), len(result.history)) == (State.WAITING, 1)


# -- how often -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [scripted, scripted_atomically])
def test_who_asks_too_often_fails_and_dependents_learn_of_it(script: Script, task: Any) -> None:
    result = task.using(max_laters=3).enqueue(script(*[Later] * 9))
    after_it = same.enqueue(result)
    run_all()
    assert states(result, after_it) == [State.FAILED, State.UPSTREAM_FAILED]
    assert result.reason == "It asked to be called again more than 3 times: max_laters."
    assert result.errors[-1].exception_class_path == "django_manta.exceptions.TooManyLaters"
    assert len(result.history) == 4


def test_the_bound_is_exact_and_a_retry_gives_a_fresh_one(script: Script) -> None:
    result = scripted.using(max_laters=2).enqueue(script(Later, Later, Later, Later, Later, lambda: "done"))
    run_all()
    assert state(result) is State.FAILED
    result.retry()
    run_all()
    assert (state(result), result.return_value) == (State.SUCCESSFUL, "done")
    assert len(result.history) == 6


def test_a_hundred_is_the_default(script: Script) -> None:
    result = scripted.enqueue(script(*[Later] * 200))
    run_all()
    assert (state(result), len(result.history)) == (State.FAILED, 101)


def test_run_all_still_notices_what_never_ends(script: Script) -> None:
    scripted.using(max_laters=10_000).enqueue(script(*[Later] * 50))
    with pytest.raises(TooManyRuns):
        run_all(max_runs=20)


def test_asking_for_later_uses_up_no_attempts(script: Script) -> None:
    result = scripted.using(max_attempts=2, backoff=0).enqueue(
        script(Later, raising(ValueError("once")), Later, lambda: "done")
    )
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_a_message_of_any_length_and_content_is_kept(script: Script) -> None:
    long = "long " * 100_000 + "\0\ud800 end"
    result = scripted.enqueue(script(lambda: Later(HOUR, message=long)))
    run_all()
    assert state(result) is State.SCHEDULED
    assert result.reason.startswith("long long")
    assert result.reason.endswith(" end")


# -- what it wrote ---------------------------------------------------------------------------------------


def lines(name: str) -> int:
    return Ledgerline.objects.filter(label=name).count()


def test_a_return_keeps_what_an_atomic_task_wrote_and_enqueued(script: Script) -> None:
    name = script(lambda: Later(HOUR, after=[same.enqueue("child")]))
    result = scripted_atomically.enqueue(name)
    run_all()
    assert (state(result), lines(name), Run.objects.count()) == (State.SCHEDULED, 1, 2)


def test_a_raise_takes_back_what_an_atomic_task_wrote_and_enqueued(script: Script) -> None:
    def step() -> None:
        same.enqueue("child")
        raise Later(HOUR)

    name = script(step)
    result = scripted_atomically.enqueue(name)
    run_all()
    assert (state(result), lines(name), Run.objects.count()) == (State.SCHEDULED, 0, 1)
    assert [each.outcome for each in result.history] == [Outcome.DEFERRED]


def test_a_raise_through_a_block_of_the_tasks_own_takes_back_that_block_only(script: Script) -> None:
    def step() -> None:
        Ledgerline.objects.create(label=name, amount=1)
        with transaction.atomic():
            Ledgerline.objects.create(label=name, amount=2)
            raise Later(HOUR)

    name = script(step)
    result = scripted.enqueue(name)
    run_all()
    assert (state(result), lines(name)) == (State.SCHEDULED, 1)


def test_a_raise_that_undoes_what_it_asks_to_wait_for_says_so(script: Script) -> None:
    def step() -> None:
        raise Later(after=[same.enqueue(1)])

    result = scripted_atomically.enqueue(script(step))
    dependent = same.enqueue(result)
    run_all()
    assert states(result, dependent) == [State.FAILED, State.UPSTREAM_FAILED]
    assert "Return the Later instead" in result.reason
    assert result.errors[-1].exception_class_path == "builtins.ValueError"


def test_an_integrity_error_inside_still_records_the_attempt(script: Script) -> None:
    def step() -> None:
        line = Ledgerline.objects.create(label=name, amount=1)
        same.enqueue("child")
        with transaction.atomic():
            Ledgerline(pk=line.pk, label=name, amount=2).save(force_insert=True)

    name = script(step, lambda: "done")
    result = scripted_atomically.using(max_attempts=2, backoff=3600).enqueue(name)
    run_all()
    assert state(result) is State.SCHEDULED
    assert [each.error_class.rpartition(".")[2] for each in result.history] == [IntegrityError.__name__]
    assert (lines(name), Run.objects.count()) == (0, 1)
    run_all(include_scheduled=True)
    assert (state(result), lines(name)) == (State.SUCCESSFUL, 1)


# -- circles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [scripted, scripted_atomically])
@pytest.mark.parametrize("way", ["itself", "a dependent", "far away", "delegation", "delegation to itself"])
def test_whoever_would_wait_for_itself_is_refused(script: Script, task: Any, way: str) -> None:
    waiting: dict[str, TaskResult] = {}

    def step() -> Any:
        return {
            "itself": lambda: Later(after=[waiting["first"].id]),
            "a dependent": lambda: Later(after=[same.enqueue(1), waiting["second"]]),
            "far away": lambda: Later(after=[waiting["fourth"]]),
            "delegation": lambda: waiting["third"],
            "delegation to itself": lambda: waiting["first"],
        }[way]()

    waiting["first"] = task.enqueue(script(step, lambda: "done"))
    waiting["second"] = same.enqueue(waiting["first"])
    waiting["third"] = same.using(after=[waiting["second"]], when="all_finished").enqueue("third")
    waiting["fourth"] = same.using(after=[waiting["third"], promise()], when="any_finished").enqueue("fourth")
    run_all()
    first, second, third, fourth = waiting.values()
    assert states(first, second, third, fourth) == [
        State.FAILED,
        State.UPSTREAM_FAILED,
        State.SUCCESSFUL,
        State.SUCCESSFUL,
    ]
    assert "wait for itself" in first.reason or "which waits for it" in first.reason
    assert first.errors[-1].exception_class_path == "django_manta.exceptions.CircularWait"
    # An operator's retry calls it again.
    first.retry()
    run_all()
    assert states(first, second) == [State.SUCCESSFUL] * 2


def test_two_that_ask_to_wait_for_each_other_both_end(script: Script) -> None:
    made: dict[str, TaskResult] = {}
    made["one"] = scripted.enqueue(script(lambda: Later(after=[made["two"]]), lambda: "done"))
    made["two"] = scripted.enqueue(script(lambda: Later(after=[made["one"]]), lambda: "done"))
    run_all()
    assert not {State.WAITING, State.READY} & set(states(*made.values()))
    assert State.FAILED in states(*made.values())


def test_waiting_for_what_no_longer_waits_is_no_circle(script: Script) -> None:
    """The dependent was let go by another precondition: it will end, and then it is the first one's turn."""
    made: dict[str, TaskResult] = {}
    made["first"] = scripted.using(priority=-1).enqueue(script(lambda: Later(after=[made["any"]]), lambda: "done"))
    made["any"] = same.using(after=[made["first"], same.enqueue(1)], when="any_successful", queue_name="slow").enqueue()
    run_all(queues=["default"])
    assert states(made["first"], made["any"]) == [State.WAITING, State.READY]
    run_all()
    assert states(*made.values()) == [State.SUCCESSFUL] * 2


def test_waiting_for_what_has_not_been_told_that_it_may_go_on_is_no_circle(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, TaskResult] = {}
    made["first"] = scripted.using(priority=-1).enqueue(script(lambda: Later(after=[made["any"]]), lambda: "done"))
    opens = promise()
    made["any"] = same.using(after=[made["first"], opens], when="any_successful", queue_name="slow").enqueue()
    run_all(queues=["nobody"])
    # Whoever kept the promise died before it could tell.
    monkeypatch.setattr(graph, "tell", lambda *args, **kwargs: graph.Passed())
    resolve(opens.id)
    assert state(made["any"]) is State.WAITING
    monkeypatch.undo()
    ledger = Ledger()
    [claim] = ledger.claim("worker", ["default"], 1)
    later = settlement(
        claim, outcome=Outcome.DEFERRED, next_state=State.WAITING, after=(UUID(made["any"].id),), at_once=False
    )
    assert ledger.settle([later]).moved
    run_all(queues=["nobody"])
    assert states(made["first"], made["any"]) == [State.WAITING, State.READY]
    run_all()
    assert state(made["any"]) is State.SUCCESSFUL
