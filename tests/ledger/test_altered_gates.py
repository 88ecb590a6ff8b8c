"""Gates and dependents that somebody altered by hand: nobody else waits for their sake."""

from contextlib import closing

import pytest

from django_manta.ledger import Ledger, graph, own_session
from django_manta.states import State, When
from tests.ledger.given import dependent, enqueue, sql, state_of

COUNTS = ["pending_values", "bad_values", "pending_after", "met_after", "bad_after", "consumed"]


@pytest.mark.parametrize("count", [2**31 - 1, -(2**31)])
@pytest.mark.parametrize(
    "column", ["pending_values", "bad_values", "pending_after", "met_after", "bad_after", "consumed"]
)
@pytest.mark.parametrize("when", [When.ALL_FINISHED, When.ANY_FINISHED])
def test_a_count_at_the_end_of_its_range_keeps_nobody_from_being_told(
    ledger: Ledger, column: str, count: int, when: When
) -> None:
    [before] = enqueue(ledger, hold=True)
    altered, other = dependent(ledger, before, when=when), dependent(ledger, before, when=when)
    sql(ledger, f"UPDATE manta_gate SET {column} = %s WHERE run_id = %s", [count, altered.hex])
    ledger.cancel([before])
    graph.tell_leftovers(ledger)
    assert state_of(ledger, other) is State.READY
    ledger.hold([altered])
    ledger.release([altered])
    graph.arm(ledger, [altered])
    assert state_of(ledger, altered) is State.READY


@pytest.mark.postgres("a trigger that raises is written in PL/pgSQL")
@pytest.mark.django_db(transaction=True)
def test_a_dependent_that_the_database_lets_nobody_move_keeps_no_other_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(own_session()) as session:
        ledger = Ledger(session)
        befores = enqueue(ledger, 3, hold=True)
        stuck, *others = [dependent(ledger, before, when=When.ALL_FINISHED) for before in befores]
        sql(
            ledger,
            "CREATE OR REPLACE FUNCTION manta_test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF NEW.id = '{stuck}' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$",
        )
        sql(
            ledger,
            "CREATE TRIGGER manta_test BEFORE UPDATE ON manta_run FOR EACH ROW EXECUTE FUNCTION manta_test_refuse()",
        )
        try:
            ledger.cancel(befores)
            graph.tell_leftovers(ledger)
            assert {state_of(ledger, run_id) for run_id in others} == {State.READY}
            assert state_of(ledger, stuck) is State.WAITING
            assert str(befores[0]) in caplog.text
        finally:
            sql(ledger, "DROP TRIGGER manta_test ON manta_run")
        graph.tell_leftovers(ledger)
        assert state_of(ledger, stuck) is State.READY
