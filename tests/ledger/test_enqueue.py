"""Enqueue: what was asked becomes a row, in the caller's transaction, on the database's clock."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.db import IntegrityError, transaction

from django_manta.ids import new_run_id
from django_manta.ledger import Ledger, book
from django_manta.moments import to_datetime
from django_manta.states import State
from tests.ledger.given import HOUR, enqueue, new_run, sql, state_of, the

SECOND = timedelta(seconds=1)

COLUMNS = {
    "postgres": "SELECT column_name FROM information_schema.columns WHERE table_name = 'manta_run'",
    "sqlite": "SELECT name FROM pragma_table_info('manta_run')",
}


def test_a_new_run_is_ready(ledger: Ledger) -> None:
    asked = new_run(
        "urgent",
        priority=7,
        arguments='[["é",1e16],{"b":1,"a":2}]',
        overrides='{"timeout":3}',
        metadata='{"who": "me"}',
    )
    [enqueued] = ledger.enqueue([asked])
    run = the(ledger, asked.id)
    assert enqueued.id == run.id == asked.id
    assert enqueued.state is run.state is State.READY
    assert (run.task, run.backend, run.queue, run.priority) == (asked.task, "default", "urgent", 7)
    assert (run.arguments, run.overrides, run.metadata) == (asked.arguments, asked.overrides, asked.metadata)
    assert (run.worker, run.token, run.reason, run.result, run.progress) == ("", None, "", None, None)
    assert (run.attempts, run.failures, run.crashes, run.losses, run.history) == (0, 0, 0, 0, ())
    assert run.started_at is run.last_attempted_at is run.finished_at is run.due_at is run.run_after is None
    assert [signature for (signature,) in sql(ledger, "SELECT signature FROM manta_run")] == ["signed"]


def test_the_answer_is_what_was_stored(ledger: Ledger) -> None:
    [enqueued] = ledger.enqueue([new_run(run_after=HOUR, expires=2 * HOUR)])
    run = the(ledger, enqueued.id)
    assert enqueued.enqueued_at == run.enqueued_at
    assert enqueued.run_after == run.run_after == run.due_at
    assert enqueued.deadline == run.deadline
    assert enqueued.expires_at == run.expires_at


def test_many_are_answered_in_the_order_they_were_given(ledger: Ledger) -> None:
    asked = [new_run() for _ in range(50)]
    asked.reverse()
    assert [one.id for one in ledger.enqueue(asked)] == [one.id for one in asked]
    assert [one.id for one in ledger.fetch([run.id for run in asked])] == [run.id for run in asked]


@pytest.mark.parametrize("deadline", [2 * HOUR, datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)])
@pytest.mark.parametrize("workflow", [None, new_run_id()])
def test_one_alone_is_stored_as_one_of_many(
    ledger: Ledger, deadline: timedelta | datetime, workflow: UUID | None
) -> None:
    """On PostgreSQL there is a shorter statement for a single run that may start at once."""
    same = {
        "priority": -3,
        "arguments": '[["é\\u0001",1e16],{}]',
        "overrides": '{"timeout":3}',
        "metadata": '{"a": [1]}',
    }
    alone, *many = (new_run("urgent", deadline=deadline, workflow=workflow, **same) for _ in range(3))
    with ledger.session.transaction():
        answers = [*ledger.enqueue([alone]), *ledger.enqueue(many)]
        columns = [row[0] for row in sql(ledger, COLUMNS[ledger.dialect.name])]
        stored = [
            dict(zip(columns, row, strict=True))
            for row in sql(ledger, f"SELECT {', '.join(columns)} FROM manta_run ORDER BY id")
        ]
    asked = deadline if isinstance(deadline, timedelta) else None
    for row, answer in zip(stored, answers, strict=True):
        for own in ("id", "enqueued_at", *(["deadline"] if asked else [])):
            del row[own]
        assert (answer.state, answer.run_after, answer.expires_at) == (State.READY, None, None)
        assert answer.deadline == (answer.enqueued_at + asked if asked else deadline)
    assert stored[0] == stored[1] == stored[2]


def test_nothing_is_enqueued_by_an_empty_list(ledger: Ledger) -> None:
    assert ledger.enqueue([]) == []


def test_more_than_one_statement_takes_is_still_one_enqueue(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "ENQUEUE_BATCH", 10)
    asked = [new_run() for _ in range(35)]
    assert [one.id for one in ledger.enqueue(asked)] == [one.id for one in asked]

    broken = [*(new_run() for _ in range(15)), new_run(task=None)]
    with pytest.raises(IntegrityError):
        ledger.enqueue(broken)
    assert ledger.fetch([one.id for one in broken]) == []


def test_a_run_exists_if_and_only_if_the_caller_commits(ledger: Ledger, other_ledger: Ledger) -> None:
    with ledger.session.transaction():
        [kept] = enqueue(ledger)
        assert other_ledger.fetch([kept]) == []
    assert state_of(other_ledger, kept) is State.READY

    dropped = new_run()

    def enqueue_and_fail() -> None:
        with ledger.session.transaction():
            ledger.enqueue([dropped])
            ledger.enqueue([new_run(task=None)])

    with pytest.raises(IntegrityError):
        enqueue_and_fail()
    assert other_ledger.fetch([dropped.id]) == []


def test_an_enqueue_joins_the_transaction_that_the_caller_opened(committed: None, other_ledger: Ledger) -> None:
    with transaction.atomic():
        [dropped] = enqueue(Ledger())
        transaction.set_rollback(True)
    assert other_ledger.fetch([dropped]) == []


@pytest.mark.parametrize(
    ("run_after", "state"), [(HOUR, State.SCHEDULED), (-HOUR, State.READY), (timedelta(0), State.READY)]
)
def test_what_lies_ahead_is_scheduled(ledger: Ledger, run_after: timedelta, state: State) -> None:
    [enqueued] = ledger.enqueue([new_run(run_after=run_after)])
    run = the(ledger, enqueued.id)
    assert enqueued.state is run.state is state
    assert run.run_after == run.enqueued_at + run_after
    assert run.due_at == (run.run_after if state is State.SCHEDULED else None)


@pytest.mark.parametrize(("ahead", "state"), [(HOUR, State.SCHEDULED), (-HOUR, State.READY)])
def test_a_moment_can_be_absolute(ledger: Ledger, ahead: timedelta, state: State) -> None:
    moment = datetime.now(UTC) + ahead
    [enqueued] = ledger.enqueue([new_run(run_after=moment, deadline=moment, expires=moment)])
    assert enqueued.state is state
    assert enqueued.run_after == enqueued.deadline == enqueued.expires_at == moment


def test_a_moment_keeps_its_instant_whatever_its_zone(ledger: Ledger) -> None:
    moment = datetime.fromisoformat("2099-06-01T12:00:00.123456+05:45")
    [enqueued] = ledger.enqueue([new_run(run_after=moment)])
    assert enqueued.run_after == moment
    assert the(ledger, enqueued.id).due_at == moment


def test_relative_moments_count_from_the_enqueue(ledger: Ledger) -> None:
    [enqueued] = ledger.enqueue([new_run(deadline=3 * HOUR, expires=2 * HOUR)])
    assert enqueued.deadline - enqueued.enqueued_at == 3 * HOUR
    assert enqueued.expires_at is not None
    assert enqueued.expires_at - enqueued.enqueued_at == 2 * HOUR


def test_the_database_clock_says_when(ledger: Ledger) -> None:
    [enqueued] = ledger.enqueue([new_run()])
    assert abs(enqueued.enqueued_at - datetime.now(UTC)) < 60 * SECOND


def test_fractions_of_a_second_are_kept(ledger: Ledger) -> None:
    [enqueued] = ledger.enqueue([new_run(run_after=timedelta(seconds=90, milliseconds=250))])
    assert enqueued.run_after is not None
    assert enqueued.run_after - enqueued.enqueued_at == timedelta(seconds=90, milliseconds=250)


@pytest.mark.parametrize("moment", ["run_after", "deadline", "expires"])
def test_a_moment_beyond_the_calendar_is_refused(ledger: Ledger, moment: str) -> None:
    for far in (timedelta(days=3_000_000), -timedelta(days=3_000_000)):
        with pytest.raises(ValueError, match=f"{moment} is .* more than a thousand years away"):
            ledger.enqueue([new_run(**{moment: far})])


def test_the_last_moment_of_the_calendar_can_be_read_back(ledger: Ledger) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    [run_id] = enqueue(ledger, deadline=last)
    [claim] = ledger.claim("worker", ["default"], 1)
    assert to_datetime(claim.deadline) == the(ledger, run_id).deadline == last


def test_a_held_run_stays_held(ledger: Ledger) -> None:
    now, later = ledger.enqueue([new_run(hold=True), new_run(hold=True, run_after=HOUR)])
    assert now.state is later.state is State.HELD
    assert the(ledger, now.id).due_at is None
    assert the(ledger, later.id).due_at == later.run_after
    assert ledger.claim("worker", ["default"], 10) == []
    assert ledger.promote(ahead=2 * HOUR) == 0


def test_text_comes_back_exactly(ledger: Ledger) -> None:
    arguments = '[["\\ud83d\\ude00 \U0001f600 \\u0041 \\"quoted\\" %s %(x)s {} \\\\ é", 1.10, 1e16], {}]'
    [run_id] = enqueue(ledger, arguments=arguments, task="ß.%(id)s", queue="q'\"; --")
    run = the(ledger, run_id)
    assert (run.arguments, run.task, run.queue) == (arguments, "ß.%(id)s", "q'\"; --")
    [claim] = ledger.claim("worker", ["q'\"; --"], 1)
    assert claim.arguments == arguments


def test_an_id_is_taken_once(ledger: Ledger) -> None:
    [run_id] = enqueue(ledger)
    with pytest.raises(IntegrityError, match=r"(?i)unique"), ledger.session.transaction():
        ledger.enqueue([new_run(id=run_id)])
    assert ledger.fetch([run_id, new_run_id()]) == [the(ledger, run_id)]
