"""Runs that wait for runs: what the state machine found, each on its own."""

from collections import Counter
from contextlib import AbstractContextManager
from json import dumps
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.tasks import default_task_backend

from django_manta.ids import new_run_id
from django_manta.ledger import Claimed, Ledger, PostgresSession, fsck, graph
from django_manta.states import Outcome, Role, State, When
from django_manta.worker import caretaker as caretaker_module
from tests.ledger.given import (
    HOUR,
    claimed,
    dependent,
    enqueue,
    run_in_state,
    settlement,
    sql,
    state_of,
    worker_record,
)


def caretaker(ledger: Ledger) -> None:
    """Arm what nobody armed, tell whom nobody told, until nothing is left."""
    while graph.tell_leftovers(ledger).seen or graph.arm_leftovers(ledger).seen:
        pass
    assert fsck.check(ledger) == []


def nobody_tells() -> AbstractContextManager[object]:
    """Whoever moves something dies before it can tell."""
    return patch.object(graph, "tell", lambda *args, **kwargs: graph.Passed())


def delegate(ledger: Ledger, claim: Claimed, *children: UUID) -> None:
    pointer = dumps([str(child) for child in children])
    ledger.settle([settlement(claim, Outcome.DELEGATED, State.WAITING, delegate=pointer)])


def test_delegating_to_what_is_gone_is_a_bad_end(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    delegate(ledger, claim, new_run_id())
    caretaker(ledger)
    assert state_of(ledger, claim.id) is State.UPSTREAM_FAILED


def test_who_was_told_of_a_failure_learns_of_a_success_even_if_nobody_told_of_the_retry(ledger: Ledger) -> None:
    """Whoever should have told died; the caretaker came when the second attempt was over."""
    [claim] = claimed(ledger)
    strict, later = dependent(ledger, claim.id), dependent(ledger, claim.id, run_after=HOUR)
    ledger.settle([settlement(claim, Outcome.FAILED, State.FAILED)])
    caretaker(ledger)
    assert [state_of(ledger, each) for each in (strict, later)] == [State.UPSTREAM_FAILED] * 2
    with nobody_tells():
        ledger.retry([claim.id])
        ledger.settle([settlement(again) for again in ledger.claim("worker", ["default"], 1)])
    caretaker(ledger)
    assert [state_of(ledger, each) for each in (strict, later)] == [State.READY, State.SCHEDULED]


def test_who_delegated_to_it_learns_so_too(ledger: Ledger) -> None:
    child, parent = claimed(ledger, 2)
    delegate(ledger, parent, child.id)
    ledger.settle([settlement(child, Outcome.FAILED, State.FAILED)])
    caretaker(ledger)
    assert state_of(ledger, parent.id) is State.FAILED
    with nobody_tells():
        ledger.retry([child.id])
        ledger.settle([settlement(again) for again in ledger.claim("worker", ["default"], 1)])
    caretaker(ledger)
    assert state_of(ledger, parent.id) is State.SUCCESSFUL


# -- any: called for each end once --------------------------------------------------------------------


def any_finished(ledger: Ledger) -> tuple[UUID, list[UUID]]:
    """A run that is ready because the first of three has ended, and the three."""
    three = [run_in_state(ledger, State.HELD) for _ in range(3)]
    run_id = dependent(ledger, *three, when=When.ANY_FINISHED, queue="other")
    ledger.cancel(three[:1])
    caretaker(ledger)
    assert state_of(ledger, run_id) is State.READY
    return run_id, three


def test_what_is_held_before_it_was_called_is_ready_when_it_is_released(ledger: Ledger) -> None:
    run_id, _ = any_finished(ledger)
    ledger.hold([run_id])
    ledger.release([run_id])
    caretaker(ledger)
    assert state_of(ledger, run_id) is State.READY


def test_what_waits_to_be_called_again_and_is_held_still_waits_when_it_is_released(ledger: Ledger) -> None:
    ledger.register(worker_record())
    run_id, _ = any_finished(ledger)
    [claim] = ledger.claim("worker", ["other"], 1)
    ledger.settle([settlement(claim, Outcome.DEFERRED, State.WAITING)])
    caretaker(ledger)
    ledger.hold([run_id])
    ledger.release([run_id])
    caretaker(ledger)
    assert state_of(ledger, run_id) is State.WAITING


def test_an_end_it_was_not_called_for_counts_though_another_was_reopened(ledger: Ledger) -> None:
    ledger.register(worker_record())
    run_id, (first, second, _) = any_finished(ledger)
    [claim] = ledger.claim("worker", ["other"], 1)
    ledger.cancel([second])
    ledger.retry([first])
    ledger.hold([first])
    caretaker(ledger)
    ledger.settle([settlement(claim, Outcome.DEFERRED, State.WAITING)])
    caretaker(ledger)
    assert state_of(ledger, run_id) is State.READY


# -- released, and whoever should have counted it did not ----------------------------------------------


def held_behind_a_success(ledger: Ledger) -> UUID:
    """A held run whose precondition has succeeded meanwhile, and its gate has counted that."""
    [claim] = claimed(ledger)
    run_id = dependent(ledger, claim.id)
    ledger.hold([run_id])
    ledger.settle([settlement(claim)])
    caretaker(ledger)
    assert state_of(ledger, run_id) is State.HELD
    return run_id


def test_a_released_run_goes_on_though_its_process_died_before_it_counted(ledger: Ledger, committed: None) -> None:
    run_id = held_behind_a_success(ledger)
    with patch.object(graph, "arm", side_effect=SystemExit), pytest.raises(SystemExit):
        ledger.release([run_id])
    assert state_of(ledger, run_id) is State.WAITING
    caretaker(ledger)
    assert state_of(ledger, run_id) is State.READY


@pytest.mark.postgres  # whose connections somebody else can end
def test_a_released_run_goes_on_though_the_connection_was_lost_before_it_counted(other_ledger: Ledger) -> None:
    ledger = other_ledger
    run_id = held_behind_a_success(ledger)
    arm = graph.arm

    def arm_without_connection(*args: Any, **kwargs: Any) -> graph.Passed:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [ledger.session.connection.info.backend_pid])
        return arm(*args, **kwargs)

    with patch.object(graph, "arm", arm_without_connection):
        assert ledger.release([run_id]) == {run_id: State.WAITING}
    caretaker(ledger)
    assert state_of(ledger, run_id) is State.READY


@pytest.mark.postgres  # which locks rows
def test_a_released_run_goes_on_when_nobody_has_its_precondition_locked_any_more(
    ledger: Ledger, other_ledger: Ledger
) -> None:
    run_id = held_behind_a_success(ledger)
    with other_ledger.session.transaction():
        sql(other_ledger, "SELECT FROM manta_run WHERE id <> %s FOR UPDATE", [run_id])
        assert ledger.release([run_id]) == {run_id: State.WAITING}
    caretaker(ledger)
    assert state_of(ledger, run_id) is State.READY


# -- locked by somebody ---------------------------------------------------------------------------------


def unarmed(ledger: Ledger, on: UUID, count: int) -> list[UUID]:
    """Runs that wait for another one, and that nobody counted a minute ago."""
    ids = enqueue(ledger, count, waits=True)
    gates, edges = [graph.NewGate(run_id) for run_id in ids], [graph.Edge(run_id, on, Role.AFTER) for run_id in ids]
    graph.add(ledger, gates, edges)
    sql(ledger, "UPDATE manta_gate SET made_at = made_at - interval '1 minute'")
    return ids


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each statement was said on the ledger's own connections. To wait for a lock takes 250 ms."""
    said: Counter[str] = Counter()
    rows = PostgresSession.rows

    def counting(session: PostgresSession, name: str, params: Any) -> Any:
        said[name] += 1
        assert said["arm_lock"] < 30, "It waits for one gate after the other."
        return rows(session, name, params)

    monkeypatch.setattr(PostgresSession, "rows", counting)
    return said


@pytest.mark.postgres  # which locks rows
@pytest.mark.parametrize("held", [30, 1_000])
def test_a_caretaker_does_not_wait_for_each_gate_whose_precondition_is_locked(
    other_ledger: Ledger, counted: Counter[str], held: int
) -> None:
    """And it arms those behind them."""
    [claim] = claimed(other_ledger)
    waiting = unarmed(other_ledger, claim.id, held)
    [free] = unarmed(other_ledger, run_in_state(other_ledger, State.CANCELLED), 1)
    with transaction.atomic():
        sql(Ledger(), "SELECT FROM manta_run WHERE id = %s FOR UPDATE", [claim.id])
        assert caretaker_module.spread_the_word(default_task_backend, other_ledger) == 1
        assert state_of(other_ledger, free) is State.UPSTREAM_FAILED
        assert counted["arm_lock"] <= 2 * (1 + held // 1_000)
    assert caretaker_module.spread_the_word(default_task_backend, other_ledger) == 0
    other_ledger.settle([settlement(claim)])
    assert {run.state for run in other_ledger.fetch(waiting)} == {State.READY}


@pytest.mark.postgres  # which locks rows
def test_of_many_that_are_released_only_those_wait_whose_precondition_is_locked(
    other_ledger: Ledger, counted: Counter[str]
) -> None:
    first, second = claimed(other_ledger, 2)
    held = [dependent(other_ledger, first.id) for _ in range(10)]
    free = [dependent(other_ledger, second.id) for _ in range(10)]
    other_ledger.hold([*held, *free])
    other_ledger.settle([settlement(first), settlement(second)])
    counted.clear()
    with transaction.atomic():
        sql(Ledger(), "SELECT FROM manta_run WHERE id = %s FOR UPDATE", [first.id])
        reached = other_ledger.release([*held, *free])
        assert reached == dict.fromkeys(held, State.WAITING) | dict.fromkeys(free, State.READY)
    assert counted["arm_lock"] == 1
    caretaker(other_ledger)
    assert {run.state for run in other_ledger.fetch(held)} == {State.READY}


# -- circles ------------------------------------------------------------------------------------------


def test_a_circle_that_a_retry_would_close_is_refused(ledger: Ledger) -> None:
    """The first asked to wait for the second when that was over, and it no longer is."""
    ledger.register(worker_record())
    [first] = claimed(ledger)
    second = dependent(ledger, first.id, when=When.ALL_FINISHED)
    ledger.settle([settlement(first, Outcome.FAILED, State.FAILED)])
    caretaker(ledger)
    ledger.cancel([second])
    ledger.retry([first.id])
    caretaker(ledger)
    [again] = ledger.claim("worker", ["default"], 1)
    ledger.settle([settlement(again, Outcome.DEFERRED, State.WAITING, after=(second,))])
    caretaker(ledger)
    assert [state_of(ledger, each) for each in (first.id, second)] == [State.UPSTREAM_FAILED, State.CANCELLED]
    ledger.retry([second])
    caretaker(ledger)
    states = [state_of(ledger, each) for each in (first.id, second)]
    assert State.FAILED in states
    assert State.WAITING not in states


def test_an_operators_retry_waits_though_it_had_asked_to_be_called_at_once(ledger: Ledger) -> None:
    ledger.register(worker_record())
    first = run_in_state(ledger, State.CANCELLED)
    run_id = dependent(ledger, first, when=When.ALL_FINISHED)
    [claim] = ledger.claim("worker", ["default"], 1)
    ledger.settle([settlement(claim, Outcome.DEFERRED, State.READY, at_once=True)])
    caretaker(ledger)
    ledger.cancel([run_id])
    ledger.retry([first])
    ledger.hold([first])
    ledger.retry([run_id])
    caretaker(ledger)
    assert state_of(ledger, run_id) is State.WAITING


def test_a_herald_of_a_run_that_is_gone_is_heard_by_nobody(ledger: Ledger) -> None:
    run_id = run_in_state(ledger, State.READY)
    sql(ledger, "INSERT INTO manta_herald (run_id) VALUES (%s)", [run_id.hex])
    sql(ledger, "DELETE FROM manta_run WHERE id = %s", [run_id.hex])
    assert graph.tell_leftovers(ledger).seen == 1
    assert graph.tell_leftovers(ledger).seen == 0
