"""With ``max_losses=0`` a run whose execution began and did not end by itself ends: it is never started again."""

import sys
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.tasks import task_backends

from django_manta import State
from django_manta.ledger import Ledger, fsck, own_session
from django_manta.models import Run
from django_manta.states import AFTER_OUTCOME, MOVES, Outcome, may_start_again
from django_manta.testing import run_all
from django_manta.worker import caretaker
from tests.app import tasks
from tests.ledger.given import enqueue, sql, worker_record
from tests.test_executor import with_options

UNKNOWN = "elsewhere.tasks.unknown"


def lost_with(worker: str, *ids: UUID) -> None:
    """These are claimed by a worker that is marked lost a moment later."""
    ledger = Ledger()
    seen_at = ledger.register(worker_record(worker))
    assert {claim.id for claim in ledger.claim(worker, ["default", "theirs"], 10)} == set(ids)
    assert ledger.mark_lost(worker, seen_at)


def recover() -> int:
    backend: Any = task_backends["default"]
    return caretaker.recover(backend, Ledger())


def state_of(run_id: UUID) -> State:
    return State(Run.objects.get(pk=run_id).state)


@pytest.fixture
def not_loaded() -> Iterator[None]:
    sys.modules.pop("tests.unwanted", None)
    yield
    sys.modules.pop("tests.unwanted", None)


def test_one_rule_says_what_may_be_started_again() -> None:
    assert [may_start_again(0), may_start_again(0, 1), may_start_again(1, 2)] == [False] * 3
    assert [may_start_again(1), may_start_again(1, 1), may_start_again(3, 3)] == [True] * 3
    for outcome in (Outcome.CRASHED, Outcome.INTERRUPTED, Outcome.LOST):
        assert State.LOST in AFTER_OUTCOME[outcome] & MOVES[State.RUNNING]


@pytest.mark.django_db(transaction=True)
def test_a_drain_that_a_person_stops_does_not_start_it_again() -> None:
    once, ordinary = tasks.interrupt.using(max_losses=0).enqueue(), tasks.interrupt.enqueue()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_all()
    once.refresh(), ordinary.refresh()
    assert (once.state, [each.outcome for each in once.history]) == (State.LOST, ["INTERRUPTED"])
    assert once.reason == "It is not started again: max_losses is 0."
    assert ordinary.state is State.READY


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_conflict_at_the_commit_of_an_atomic_run_fails_it() -> None:
    with connection.cursor() as cursor:
        cursor.execute("""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'could not serialize' USING ERRCODE = '40001'; END $$;
            CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON testapp_ledgerline
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()
        """)
    try:
        once, ordinary = (
            tasks.write_atomically.using(max_losses=0).enqueue("a", 1),
            tasks.write_atomically.enqueue("b", 1),
        )
        run_all(max_runs=2)
        once.refresh(), ordinary.refresh()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER refuse ON testapp_ledgerline; DROP FUNCTION refuse()")
    assert (once.state, [each.outcome for each in once.history]) == (State.FAILED, ["FAILED"])
    assert (ordinary.state, [each.outcome for each in ordinary.history]) == (State.SCHEDULED, ["INTERRUPTED"])


@pytest.mark.django_db
def test_how_often_a_run_may_be_lost_is_what_its_row_says_where_its_task_is_unknown() -> None:
    never, thrice = (enqueue(Ledger(), task=UNKNOWN, overrides=f'{{"max_losses":{n}}}')[0] for n in (0, 3))
    lost_with("gone", never, thrice)
    assert recover() == 2
    assert (state_of(never), state_of(thrice)) == (State.LOST, State.READY)


@pytest.mark.django_db
def test_a_lost_run_of_an_unknown_task_is_left_to_who_knows_it_and_then_given_up() -> None:
    [unknown] = enqueue(Ledger(), task=UNKNOWN)
    [theirs] = enqueue(Ledger(), task=UNKNOWN, queue="theirs")
    lost_with("gone", unknown, theirs)
    assert recover() == 0
    assert {state_of(unknown), state_of(theirs)} == {State.RUNNING}
    with with_options(SKEW_SECONDS=0):
        assert recover() == 1
    # What is in another project's queue is nobody's here.
    assert (state_of(unknown), state_of(theirs)) == (State.LOST, State.RUNNING)
    assert [(found.check, found.run_id) for found in fsck.check(Ledger())] == [("orphaned", theirs)]


@pytest.mark.django_db
def test_a_lost_run_whose_module_is_not_loaded_has_the_budget_of_its_task(not_loaded: None) -> None:
    backend: Any = task_backends["default"]
    path, arguments = "tests.unwanted.once", "[[1],{}]"
    signed, forged = enqueue(Ledger(), 2, task=path, arguments=arguments)
    pk = str(signed) if connection.vendor == "postgresql" else signed.hex
    signature = backend.seal.sign_run(str(signed), path, arguments, "")
    sql(Ledger(), "UPDATE manta_run SET signature = %s WHERE id = %s", [signature, pk])
    lost_with("gone", signed, forged)
    assert recover() >= 1
    assert state_of(signed) is State.LOST


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_orphans_that_somebody_holds_do_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caretaker, "BATCH", 2)
    first = enqueue(Ledger(), 3)
    lost_with("a", *first)
    [last] = enqueue(Ledger())
    lost_with("b", last)
    session = own_session()
    try:
        with session.transaction():
            session.connection.execute("SELECT FROM manta_run WHERE worker = 'a' FOR UPDATE")  # type: ignore[union-attr]
            assert recover() == 1
            assert state_of(last) is State.READY
    finally:
        session.close()
    assert recover() == 3
