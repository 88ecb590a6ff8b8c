"""Keeping the house: what is due becomes ready, what is late expires."""

from datetime import timedelta

import pytest

from django_manta.ledger import Ledger
from django_manta.states import Outcome, State
from tests.ledger.given import HOUR, claimed, enqueue, run_in_state, settlement, sql, state_of, the

MINUTE = timedelta(minutes=1)


def overdue(ledger: Ledger, count: int = 1) -> list:
    """Scheduled runs whose date has passed, and that no caretaker has seen yet."""
    ids = enqueue(ledger, count, run_after=HOUR)
    marks = ", ".join(["%s"] * count)
    sql(ledger, f"UPDATE manta_run SET due_at = enqueued_at WHERE id IN ({marks})", [run_id.hex for run_id in ids])
    return ids


# -- promote -------------------------------------------------------------------------------------


def test_what_is_due_becomes_ready(ledger: Ledger) -> None:
    [due] = overdue(ledger)
    [early] = enqueue(ledger, run_after=HOUR)
    assert ledger.promote() == 1
    run = the(ledger, due)
    assert (run.state, run.due_at) == (State.READY, None)
    assert run.run_after is not None
    assert state_of(ledger, early) is State.SCHEDULED
    assert ledger.promote() == 0


def test_a_caretaker_may_look_ahead(ledger: Ledger) -> None:
    enqueue(ledger, 2, run_after=HOUR)
    assert ledger.promote(ahead=HOUR - MINUTE) == 0
    assert ledger.promote(ahead=HOUR + MINUTE) == 2


def test_promotion_is_bounded_and_takes_the_earliest_first(ledger: Ledger) -> None:
    later = enqueue(ledger, 2, run_after=-HOUR + 3 * HOUR)
    sooner = enqueue(ledger, 3, run_after=HOUR)
    assert ledger.promote(3, ahead=5 * HOUR) == 3
    assert {run.state for run in ledger.fetch(sooner)} == {State.READY}
    assert {run.state for run in ledger.fetch(later)} == {State.SCHEDULED}


@pytest.mark.parametrize("state", [state for state in State if state is not State.SCHEDULED])
def test_only_scheduled_runs_are_promoted(ledger: Ledger, state: State) -> None:
    run_id = run_in_state(ledger, state)
    sql(ledger, "UPDATE manta_run SET due_at = enqueued_at WHERE id = %s", [run_id.hex])
    assert ledger.promote() == 0
    assert state_of(ledger, run_id) is state


def test_a_retry_that_must_wait_is_promoted_when_it_is_due(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim, Outcome.FAILED, State.SCHEDULED, delay=-1.0)])
    assert ledger.promote() == 1
    assert state_of(ledger, claim.id) is State.READY


@pytest.mark.postgres
def test_promotion_waits_for_nobody(ledger: Ledger, other_ledger: Ledger) -> None:
    held, free = overdue(ledger, 2)
    with other_ledger.session.transaction():
        sql(other_ledger, "SELECT 1 FROM manta_run WHERE id = %s FOR UPDATE", [held])
        assert ledger.promote() == 1
        assert state_of(ledger, free) is State.READY
    assert ledger.promote() == 1


# -- next_due ------------------------------------------------------------------------------------


def test_the_next_due_date_is_told_as_a_span_of_time(ledger: Ledger) -> None:
    assert ledger.next_due() is None
    enqueue(ledger)
    enqueue(ledger, hold=True, run_after=MINUTE)
    assert ledger.next_due() is None
    enqueue(ledger, run_after=2 * HOUR)
    enqueue(ledger, run_after=HOUR)
    span = ledger.next_due()
    assert span is not None
    # SQLite counts in days, as floating-point numbers: a few microseconds come and go.
    assert HOUR - MINUTE < span <= HOUR + timedelta(milliseconds=1)
    overdue(ledger)
    span = ledger.next_due()
    assert span is not None
    assert -MINUTE < span <= timedelta(milliseconds=1)  # SQLite counts in fractions of a day


# -- expire --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.HELD, State.SCHEDULED, State.WAITING, State.READY])
def test_what_did_not_start_in_time_expires(ledger: Ledger, state: State) -> None:
    run_id = run_in_state(ledger, state)
    sql(ledger, "UPDATE manta_run SET expires_at = enqueued_at WHERE id = %s", [run_id.hex])
    assert ledger.expire() == [run_id]
    run = the(ledger, run_id)
    assert (run.state, run.due_at, run.attempts, run.history) == (State.EXPIRED, None, 0, ())
    assert run.finished_at is not None
    assert run.reason == "It did not start before it expired."
    assert ledger.expire() == []


@pytest.mark.parametrize(
    "state", [state for state in State if state not in (State.HELD, State.SCHEDULED, State.WAITING, State.READY)]
)
def test_what_started_or_ended_does_not_expire(ledger: Ledger, state: State) -> None:
    run_id = run_in_state(ledger, state)
    sql(ledger, "UPDATE manta_run SET expires_at = enqueued_at WHERE id = %s", [run_id.hex])
    assert ledger.expire() == []
    assert state_of(ledger, run_id) is state


def test_what_still_has_time_does_not_expire(ledger: Ledger) -> None:
    enqueue(ledger, 3, expires=HOUR)
    enqueue(ledger, 3)
    assert ledger.expire() == []


def test_expiry_is_bounded(ledger: Ledger) -> None:
    late = enqueue(ledger, 5, expires=-HOUR)
    first = ledger.expire(3)
    second = ledger.expire(3)
    assert (len(first), len(second)) == (3, 2)
    assert {*first, *second} == set(late)


@pytest.mark.postgres
def test_expiry_waits_for_nobody(ledger: Ledger, other_ledger: Ledger) -> None:
    held, free = enqueue(ledger, 2, expires=-HOUR)
    with other_ledger.session.transaction():
        sql(other_ledger, "SELECT 1 FROM manta_run WHERE id = %s FOR UPDATE", [held])
        assert ledger.expire() == [free]
    assert ledger.expire() == [held]


# -- which queues have work ----------------------------------------------------------------------


def test_the_queues_with_ready_runs_are_found(ledger: Ledger) -> None:
    assert ledger.ready_queues() == []
    for queue in ("b", "a", "c", "a"):
        enqueue(ledger, 3, queue=queue)
    enqueue(ledger, queue="scheduled", run_after=HOUR)
    enqueue(ledger, queue="held", hold=True)
    assert ledger.ready_queues() == ["a", "b", "c"]
    ledger.claim("worker", ["b"], 10)
    assert ledger.ready_queues() == ["a", "c"]
