"""What went well has a statement of its own: it must leave what the statement for everything leaves."""

import threading
from collections.abc import Callable
from datetime import timedelta
from json import loads
from typing import Any

import pytest

from django_manta.ledger import Claimed, Ledger, Settleable, Settled, Settlement, Written, own_session, rows, session
from django_manta.states import Outcome, State
from tests.ledger import given
from tests.ledger.given import claimed, dependent, lose, settlement, sql, state_of, the

WELL = {**given.WELL, "result": '{"a":"ü\\t"}', "duration": 0.25}

#: Any number: who waits for it is the test.
LOCK = 5_871


def told(claim: Claimed, **changes: Any) -> Written:
    row = rows.written(settlement(claim, **{**WELL, **changes}))
    assert row.is_well
    return row


def row_of(ledger: Ledger, table: str, key: str, claim: Claimed) -> dict[str, Any]:
    """All that a table holds, but for what is each one's own."""
    [[text]] = sql(ledger, f"SELECT to_jsonb(one)::text FROM {table} AS one WHERE {key} = %s", [claim.id])
    row = loads(text)
    own = {"id", "run_id", "token", "arguments", "signature", "enqueued_at", "deadline"}
    moments = {"started_at", "finished_at", "last_attempted_at"}
    return {name: value is not None if name in moments else value for name, value in row.items() if name not in own}


@pytest.mark.postgres
@pytest.mark.parametrize("state", [State.RUNNING, State.CANCELLING])
@pytest.mark.parametrize("worker", ["worker", None])
def test_it_leaves_the_same_as_the_statement_for_everything(ledger: Ledger, state: State, worker: str | None) -> None:
    one, other = claimed(ledger, 2)
    sql(
        ledger,
        "UPDATE manta_run SET suspect = true, refused_at = now(), due_at = now(), delegate = '\"x\"', reason = 'so',"
        " failures = 2, crashes = 1, losses = 1, attempts = 5, dependents = false",
    )
    if state is State.CANCELLING:
        ledger.cancel([one.id, other.id], reason="Nobody wants it.")
    # A batch with one that did not go well goes the other way.
    assert ledger.settle([settlement(one, **WELL)], worker) == Settled({one.token: State.SUCCESSFUL})
    assert ledger.settle([told(other)], worker) == Settled({other.token: State.SUCCESSFUL})
    for table, key in (("manta_run", "id"), ("manta_attempt", "run_id")):
        assert row_of(ledger, table, key, one) == row_of(ledger, table, key, other)
    for claim in (one, other):
        [attempt] = the(ledger, claim.id).history
        assert attempt.finished_at - attempt.started_at == timedelta(seconds=0.25)


def test_in_company_of_a_failure_it_is_settled_as_well(ledger: Ledger) -> None:
    """And on a database that knows no other way."""
    good, bad = claimed(ledger, 2)
    failed = settlement(bad, Outcome.FAILED, State.FAILED, executor="host:1")
    settled = ledger.settle([told(good), rows.written(failed)], "worker")
    assert settled.moved == {good.token: State.SUCCESSFUL, bad.token: State.FAILED}
    run = the(ledger, good.id)
    assert (run.state, run.result, run.result_signature) == (State.SUCCESSFUL, WELL["result"], "signed")
    assert [attempt.outcome for attempt in run.history] == [Outcome.SUCCESSFUL]


def test_told_twice_it_is_settled_once(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    assert ledger.settle([told(claim), told(claim)], "worker").moved == {claim.token: State.SUCCESSFUL}
    assert ledger.settle([told(claim)], "worker") == Settled(not_mine=frozenset({claim.token}))
    assert len(the(ledger, claim.id).history) == 1


def test_who_lost_its_lease_settles_nothing(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    lose(ledger, "worker")
    assert ledger.settle([told(claim)], "worker") == Settled(not_mine=frozenset({claim.token}))
    assert ledger.settle([told(claim)], "somebody else") == Settled(not_mine=frozenset({claim.token}))
    assert state_of(ledger, claim.id) is State.RUNNING


def test_with_the_token_of_another_it_settles_nothing(ledger: Ledger) -> None:
    one, other = claimed(ledger, 2)
    crossed = rows.written(settlement(one._replace(token=other.token), **WELL))
    assert ledger.settle([crossed], "worker") == Settled(not_mine=frozenset({other.token}))
    assert {state_of(ledger, claim.id) for claim in (one, other)} == {State.RUNNING}


@pytest.mark.postgres
def test_a_row_that_somebody_holds_is_busy_and_its_neighbours_are_not(ledger: Ledger, other_ledger: Ledger) -> None:
    one, held, three = claimed(ledger, 3)
    batch = [told(claim) for claim in (one, held, three)]
    with other_ledger.session.transaction():
        sql(other_ledger, "SELECT 1 FROM manta_run WHERE id = %s FOR UPDATE", [held.id])
        moved = dict.fromkeys((one.token, three.token), State.SUCCESSFUL)
        assert ledger.settle(batch, "worker") == Settled(moved, busy=frozenset({held.token}))
    assert ledger.settle([told(held)], "worker") == Settled({held.token: State.SUCCESSFUL})


def failed(claim: Claimed) -> Settlement:
    return settlement(claim, outcome=Outcome.FAILED, next_state=State.FAILED)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("ended", "state", "end"),
    [(told, State.SUCCESSFUL, State.SUCCESSFUL), (failed, State.FAILED, State.CANCELLED)],
)
def test_what_moves_while_it_looks_is_settled_the_next_time(
    ledger: Ledger,
    other_ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    ended: Callable[[Claimed], Settleable],
    state: State,
    end: State,
) -> None:
    """The row is no longer where this statement could see it. No attempt may be written for a run that stays."""
    words = session.statement

    def slowly(dialect: str, name: str) -> str:
        """It has begun, and waits before it looks at the first row."""
        wait = f"json_to_recordset((SELECT %(settlements)s::json FROM pg_advisory_xact_lock({LOCK})))"
        return words(dialect, name).replace("json_to_recordset(%(settlements)s::json)", wait)

    one, moving = claimed(ledger, 2)
    found: list[Settled] = []
    own = own_session()

    def settle() -> None:
        found.append(Ledger(own).settle([ended(one), ended(moving)], "worker"))

    sql(other_ledger, "SELECT pg_advisory_lock(%s)", [LOCK])
    monkeypatch.setattr(session, "statement", slowly)
    settling = threading.Thread(target=settle)
    settling.start()
    try:
        # Of this database: others test beside us.
        waiting = (
            "SELECT count(*) FROM pg_locks JOIN pg_database AS here ON here.oid = pg_locks.database"
            " WHERE datname = current_database() AND locktype = 'advisory' AND objid = %s AND NOT granted"
        )
        while sql(other_ledger, waiting, [LOCK]) != [(1,)]:
            assert settling.is_alive()
        other_ledger.cancel([moving.id], reason="Nobody wants it.")
    finally:
        sql(other_ledger, "SELECT pg_advisory_unlock(%s)", [LOCK])
        settling.join()
        own.close()
    monkeypatch.undo()
    assert found == [Settled({one.token: state}, busy=frozenset({moving.token}))]
    assert (state_of(ledger, moving.id), the(ledger, moving.id).history) == (State.CANCELLING, ())
    assert ledger.settle([ended(moving)], "worker") == Settled({moving.token: end})
    assert [attempt.outcome for attempt in the(ledger, moving.id).history] == [Outcome(state)]


@pytest.mark.postgres
def test_who_waited_for_it_is_told(ledger: Ledger) -> None:
    one, other = claimed(ledger, 2)
    waiting = dependent(ledger, one.id)
    settled = ledger.settle([told(one), told(other)], "worker")
    if ledger.session.in_transaction():
        # By the caller, when it has committed.
        assert settled.heralds == (one.id,)
        assert sql(ledger, "SELECT run_id FROM manta_herald") == [(one.id,)]
    else:
        assert settled.ready == {"default"}
        assert state_of(ledger, waiting) is State.READY


@pytest.mark.parametrize(
    "more",
    [
        {"log_ref": "somewhere"},
        {"reason": "because"},
        {"output": "printed"},
        {"peak_memory": 1},
        {"suspect": True},
        {"refused": True},
        {"result": ""},
        {"executor": ""},
        {"executor": "a\0b"},
    ],
)
def test_of_what_there_is_more_to_say_all_is_said(ledger: Ledger, more: dict[str, Any]) -> None:
    [claim] = claimed(ledger)
    row = rows.written(settlement(claim, **{**WELL, **more}))
    assert not row.is_well
    assert '"outcome":"' in row.text
    assert ledger.settle([row], "worker").moved
