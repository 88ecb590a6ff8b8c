"""A result given as an argument is a dependency, and its value is filled in."""

from collections import UserList, deque
from datetime import timedelta
from json import dumps
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_manta import Group, State, gather, value_of
from django_manta.ledger import Ledger, graph, values
from django_manta.models import Dependency, Gate, Run
from django_manta.testing import run_all
from tests.app.tasks import add, echo, fail
from tests.ledger.given import sql
from tests.workflow.conftest import state, states
from tests.workflow.tasks import look_upstream, same, total


def test_a_result_as_an_argument_is_waited_for_and_filled_in() -> None:
    first = add.enqueue(1, 2)
    second = add.enqueue(value_of(first), 10)
    third = add.enqueue(value_of(first), value_of(second))
    assert [first.state, second.state, third.state] == [State.READY, State.WAITING, State.WAITING]
    assert run_all().runs == 3
    assert [each.refresh() or each.return_value for each in (first, second, third)] == [3, 13, 16]


def test_results_and_groups_stand_anywhere_in_the_structure() -> None:
    one, two = same.enqueue("one"), same.enqueue("two")
    group = same.map([1, 2, 3])
    given: Any = {"deep": [{"er": (one, [two])}], "group": group, "plain": 7}
    result = echo.enqueue(one, [group, gather(one, group)], key=given, again=one)
    run_all()
    result.refresh()
    assert result.return_value == [
        ["one", [[1, 2, 3], ["one", 1, 2, 3]]],
        {"key": {"deep": [{"er": ["one", ["two"]]}], "group": [1, 2, 3], "plain": 7}, "again": "one"},
    ]
    # Each precondition is one edge, however often its value is used.
    assert Dependency.objects.filter(run_id=result.id).count() == 5


@pytest.mark.parametrize("kind", [list, tuple, UserList, deque])
def test_every_sequence_that_can_be_an_argument_can_hold_results(kind: Any) -> None:
    result = same.enqueue(kind([1, same.enqueue(2)]))
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == [1, 2]


def test_an_empty_group_is_an_empty_list() -> None:
    result = total.enqueue(Group())
    run_all()
    result.refresh()
    assert result.return_value == 0


def test_a_result_of_none_is_filled_in_as_none() -> None:
    result = echo.enqueue(same.enqueue(None))
    run_all()
    result.refresh()
    assert result.return_value == [[None], {}]


def test_what_is_refused_in_arguments_is_refused_beside_a_result_too() -> None:
    result = same.enqueue(1)
    with pytest.raises(ValueError, match=r"NUL character \(at args\[1\]\[0\]\)"):
        echo.enqueue(result, ["\0"])
    inside_itself: list[Any] = [result]
    inside_itself.append(inside_itself)
    with pytest.raises(ValueError, match="nested more than 200 deep, or inside itself"):
        echo.enqueue(inside_itself)
    with pytest.raises(TypeError, match="JSON keys are strings"):
        echo.enqueue({1: result})


def test_a_value_argument_requires_success_whatever_when_says() -> None:
    failed = fail.enqueue()
    result = same.using(after=[same.enqueue()], when="any_finished").enqueue(failed)
    run_all()
    assert state(result) is State.UPSTREAM_FAILED
    assert result.reason == f"Run {failed.id}, which it waits for, ended FAILED."
    assert result.errors[-1].exception_class_path == "django_manta.exceptions.UpstreamFailed"


def test_the_same_run_as_a_value_and_in_after() -> None:
    first = same.enqueue("value")
    result = same.using(after=[first], when="all_finished").enqueue(first)
    run_all()
    result.refresh()
    assert result.return_value == "value"


def test_upstream_tells_what_was_waited_for_in_order_each_once() -> None:
    good, bad = same.enqueue(1), fail.enqueue()
    result = look_upstream.using(after=[bad, good, bad], when="all_finished").enqueue()
    lone = look_upstream.enqueue()
    run_all()
    result.refresh()
    lone.refresh()
    assert result.return_value == [["fail", "FAILED"], ["same", "SUCCESSFUL"]]
    assert lone.return_value == []


def test_altered_references_are_refused() -> None:
    secret, harmless = same.enqueue("secret"), same.enqueue("harmless")
    result = same.enqueue(harmless)
    [references] = sql(Ledger(), "SELECT refs FROM manta_run WHERE id = %s", [UUID(result.id).hex])
    forged = references[0].replace(harmless.id, secret.id)
    assert forged != references[0]
    sql(Ledger(), "UPDATE manta_run SET refs = %s WHERE id = %s", [forged, UUID(result.id).hex])
    run_all()
    assert state(result) is State.SCHEDULED
    assert [attempt.outcome.value for attempt in result.history] == ["RETURNED"]
    assert "signature" in result.history[-1].error_message or "BadTaskSignature" in result.history[-1].error_class


def test_references_taken_away_are_refused() -> None:
    result = same.enqueue(same.enqueue("value"))
    sql(Ledger(), "UPDATE manta_run SET refs = NULL WHERE id = %s", [UUID(result.id).hex])
    run_all()
    assert state(result) is State.SCHEDULED


@pytest.mark.parametrize("forged", ['"forged"', None])
def test_a_stored_result_that_nobody_signed_is_not_filled_in(forged: str | None) -> None:
    first = same.enqueue("genuine")
    run_all()
    result = same.enqueue(first)
    sql(Ledger(), "UPDATE manta_run SET result = %s WHERE id = %s", [forged, UUID(first.id).hex])
    run_all()
    assert state(result) is State.FAILED
    assert result.errors[-1].exception_class_path == "django_manta.exceptions.BadTaskSignature"


def test_the_signed_result_of_another_run_is_not_filled_in() -> None:
    first, other = same.enqueue("genuine"), same.enqueue("other")
    run_all()
    result = same.enqueue(first)
    sql(
        Ledger(),
        "UPDATE manta_run SET result = (SELECT theirs.result FROM manta_run AS theirs WHERE theirs.id = %s),"
        " result_signature = (SELECT theirs.result_signature FROM manta_run AS theirs WHERE theirs.id = %s)"
        " WHERE id = %s",
        [UUID(other.id).hex, UUID(other.id).hex, UUID(first.id).hex],
    )
    run_all()
    assert state(result) is State.FAILED


def test_values_too_heavy_to_be_carried_along_are_fetched_by_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values.fetch, "__kwdefaults__", {"limit": 100})
    heavy, light = same.enqueue("x" * 200), same.enqueue("y")
    result = echo.enqueue(heavy, light)
    run_all()
    result.refresh()
    assert result.return_value == [["x" * 200, "y"], {}]


@pytest.mark.parametrize("value", ["little", "x" * 10_000])
def test_the_values_of_a_batch_are_fetched_together(value: str) -> None:
    group = same.map([value] * 10)
    run_all()
    for first in group:
        same.enqueue(first)
    ledger = Ledger()
    graph.arm_leftovers(ledger)
    with CaptureQueriesContext(connection) as captured:
        claims = ledger.claim("worker", ["default"], 10)
    assert len(claims) == 10
    # The claim and the values; on PostgreSQL what is little comes with the claim.
    along = value == "little" and connection.vendor == "postgresql"
    assert len([query for query in captured if "manta" in query["sql"]]) == (1 if along else 2)
    assert {each.result for claim in claims for each in claim.values.values()} == {dumps(value)}
    ledger.settle([settlement_of(claim) for claim in claims])


def settlement_of(claim: Any) -> Any:
    from django_manta.states import Outcome
    from tests.ledger.given import settlement

    return settlement(claim, Outcome.RETURNED, State.READY)


def test_a_run_without_edges_has_no_gate() -> None:
    same.enqueue(1)
    assert not Gate.objects.exists()


def test_a_precondition_that_is_gone_cannot_be_met() -> None:
    first = same.enqueue(1)
    run_all()
    assert Ledger().prune(State.SUCCESSFUL, timedelta(seconds=-1)).deleted == 1
    late = same.using(after=[first.id]).enqueue()
    whatever = same.using(after=[first.id], when="all_finished").enqueue()
    run_all()
    assert states(late, whatever) == [State.UPSTREAM_FAILED, State.SUCCESSFUL]


def test_a_dependent_whose_transaction_rolls_back_never_was() -> None:
    first = same.enqueue(1)
    with pytest.raises(RuntimeError), transaction.atomic():
        add.enqueue(first, 1)
        raise RuntimeError
    assert (Dependency.objects.count(), Gate.objects.count(), Run.objects.count()) == (0, 0, 1)
    run_all()
    assert state(first) is State.SUCCESSFUL
