"""Executors that cannot reach the database before they call the task: nothing has begun, and nothing is charged."""

from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.db.models import F, QuerySet
from django.tasks import default_task_backend, task_backends

from django_manta import State
from django_manta.commands.explaining import explain
from django_manta.commands.looking import Cause
from django_manta.execution import policy
from django_manta.execution.executor import UNCHARGED_CONFLICTS, execute
from django_manta.execution.runners.inline import drain
from django_manta.ledger import Claimed, Ledger, PostgresSession, Settlement, fsck
from django_manta.models import Attempt, Run
from django_manta.states import Outcome
from django_manta.testing import run_all
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.ledger.given import worker_record
from tests.outages import unreachable

pytestmark = pytest.mark.django_db(transaction=True)


def claimed(ledger: Ledger) -> Claimed:
    [claim] = ledger.claim("w1", ["default"], 1)
    return claim


def executed_without_database(claim: Claimed) -> Settlement:
    with unreachable():
        execution = execute(claim)
    assert isinstance(execution.settlement, Settlement)
    assert not execution.settled
    return execution.settlement


@pytest.fixture
def ledger() -> Ledger:
    ledger: Ledger = default_task_backend.ledger
    ledger.register(worker_record())
    return ledger


def test_an_atomic_run_that_cannot_begin_its_transaction_is_given_back_uncharged(ledger: Ledger) -> None:
    result = tasks.write_atomically.using(max_losses=0).enqueue("once", 1)
    claim = claimed(ledger)
    given_back = executed_without_database(claim)
    assert (given_back.outcome, given_back.next_state) == (Outcome.RETURNED, State.SCHEDULED)
    ledger.settle([given_back], claim.worker)
    result.refresh()
    assert (result.state, result.attempts, result.errors) == (State.SCHEDULED, 0, [])
    assert "The database could not be reached before the task was called: " in result.reason
    told = explain(task_backends["default"], UUID(result.id))  # type: ignore[arg-type]
    assert told is not None
    assert told.cause is Cause.DATABASE_UNREACHABLE
    assert "could not be reached before the task was called" in told.sentence
    run_all(include_scheduled=True)
    result.refresh()
    assert (result.state, result.attempts) == (State.SUCCESSFUL, 1)
    assert Ledgerline.objects.filter(label="once").count() == 1
    assert not Run.objects.exclude(failures=0, crashes=0, losses=0).exists()
    assert fsck.check(ledger) == []


def test_the_delay_grows_with_the_time_that_the_database_could_not_be_reached(ledger: Ledger) -> None:
    tasks.write_atomically.enqueue("later", 1)
    claim = claimed(ledger)
    assert claim.refused_for is None
    ledger.settle([executed_without_database(claim)], claim.worker)
    ledger.promote(ahead=timedelta(hours=1))
    claim = claimed(ledger)
    assert claim.refused_for is not None
    delays = [executed_without_database(claim._replace(refused_for=so_far)).delay for so_far in (None, 0.5, 8, 10**6)]
    assert delays == [1, 1, 8, policy.LAST_REFUSAL_SECONDS]


def test_a_run_whose_values_cannot_be_read_is_given_back(ledger: Ledger) -> None:
    first = tasks.add.enqueue(1, 2)
    second = tasks.add.enqueue(first, 4)
    drain(max_runs=1)
    claim = claimed(ledger)._replace(values={})
    assert str(claim.id) == second.id
    given_back = executed_without_database(claim)
    assert (given_back.outcome, given_back.next_state) == (Outcome.RETURNED, State.SCHEDULED)
    ledger.settle([given_back], claim.worker)
    run_all(include_scheduled=True)
    second.refresh()
    assert (second.state, second.return_value, second.attempts) == (State.SUCCESSFUL, 7, 1)


def aged(claim: Claimed, seconds: float) -> None:
    """What the run and its attempts say happened so many seconds earlier."""
    ago = timedelta(seconds=seconds)
    QuerySet(Run).filter(id=claim.id).update(refused_at=F("refused_at") - ago)
    QuerySet(Attempt).filter(run_id=claim.id).update(finished_at=F("finished_at") - ago)


def refused_by_old_code(claim: Claimed) -> Settlement:
    settlement = execute(claim._replace(signature="of a newer release")).settlement
    assert isinstance(settlement, Settlement)
    return settlement


def test_the_time_of_an_outage_is_not_taken_from_the_time_for_a_newer_release(ledger: Ledger) -> None:
    result = tasks.write_atomically.enqueue("kept", 1)
    skew = default_task_backend.config.skew_seconds  # type: ignore[attr-defined]

    def again(settlement: Settlement, seconds: float) -> Claimed:
        ledger.settle([settlement], claim.worker)
        aged(claim, seconds)
        ledger.promote(ahead=timedelta(hours=1))
        return claimed(ledger)

    claim = claimed(ledger)
    claim = again(executed_without_database(claim), skew + 100)
    for seconds in (skew / 2, skew / 2 + 1):
        refused = refused_by_old_code(claim)
        assert (refused.outcome, refused.next_state) == (Outcome.RETURNED, State.SCHEDULED)
        claim = again(refused, seconds)
    # It has had all of that time by now, and no more.
    refused = refused_by_old_code(claim)
    assert (refused.outcome, refused.next_state) == (Outcome.FAILED, State.FAILED)
    ledger.settle([executed_without_database(claim)], claim.worker)
    result.refresh()
    assert result.state is State.SCHEDULED


@pytest.mark.postgres
def test_a_run_whose_values_take_longer_to_read_than_a_statement_may_has_failed(ledger: Ledger) -> None:
    tasks.add.enqueue(tasks.add.enqueue(1, 2), 4)
    drain(max_runs=1)
    claim = claimed(ledger)._replace(values={})
    with closing(PostgresSession()) as other, other.transaction():
        other.connection.execute("LOCK TABLE manta_run IN ACCESS EXCLUSIVE MODE")
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '200ms'")
        try:
            settlement = execute(claim).settlement
        finally:
            connection.close()
    assert isinstance(settlement, Settlement)
    assert (settlement.outcome, settlement.refused) == (Outcome.FAILED, False)
    assert "statement timeout" in settlement.error_message


def test_a_plain_task_that_cannot_reach_the_database_itself_has_failed(ledger: Ledger) -> None:
    tasks.write_line.enqueue("line", 1)
    assert executed_without_database(claimed(ledger)).outcome is Outcome.FAILED


def interrupted_by_a_lost_connection(ledger: Ledger, **options: Any) -> list[Outcome]:
    """How the attempts of an atomic task end that loses its connection each time."""
    tasks.lose_its_connection.using(**options).enqueue()
    seen = []
    while Run.objects.filter(state="READY").exists() and len(seen) < UNCHARGED_CONFLICTS + 3:
        claim = claimed(ledger)
        settlement = execute(claim).settlement
        assert settlement is not None
        seen.append(settlement.outcome)
        ledger.settle([settlement], claim.worker)
        ledger.promote(ahead=timedelta(hours=1))
    return seen


@pytest.mark.postgres
def test_an_atomic_run_that_loses_its_connection_is_interrupted_but_not_for_ever(ledger: Ledger) -> None:
    seen = interrupted_by_a_lost_connection(ledger)
    assert seen == [Outcome.INTERRUPTED] * UNCHARGED_CONFLICTS + [Outcome.FAILED]
    assert Ledgerline.objects.count() == 0


@pytest.mark.postgres
def test_an_atomic_run_that_may_start_once_fails_if_it_loses_its_connection(ledger: Ledger) -> None:
    assert interrupted_by_a_lost_connection(ledger, max_losses=0) == [Outcome.FAILED]
