"""What stands around a run, on every kind of session."""

from uuid import UUID

from django_manta.ledger import Ledger, around, graph
from django_manta.states import Role, State, When
from tests.ledger.given import enqueue, sql, the


def waiting_for(ledger: Ledger, *ons: UUID, when: When = When.ALL_FINISHED) -> UUID:
    [run_id] = enqueue(ledger, waits=True)
    graph.add(ledger, [graph.NewGate(run_id, when)], [graph.Edge(run_id, on, Role.AFTER) for on in ons])
    return run_id


def test_what_a_run_waits_for_is_told_with_what_matters_first(ledger: Ledger) -> None:
    good, bad, ready = (enqueue(ledger)[0] for _ in range(3))
    run_id = waiting_for(ledger, good, bad, ready)
    ledger.cancel([bad])
    sql(ledger, "UPDATE manta_run SET state = 'SUCCESSFUL', finished_at = enqueued_at WHERE id = %s", [good.hex])
    found = around.preconditions(ledger, run_id, 10)
    assert [link.on for link in found] == [ready, bad, good]
    found = around.preconditions(ledger, run_id, 2, unfinished_first=False)
    assert [link.on for link in found] == [bad, ready]
    assert around.count_preconditions(ledger, run_id) == {
        (Role.AFTER, State.SUCCESSFUL): 1,
        (Role.AFTER, State.CANCELLED): 1,
        (Role.AFTER, State.READY): 1,
    }
    assert [link.run for link in around.dependents(ledger, good, 10)] == [run_id]


def test_a_stance_has_the_gate_of_its_run(ledger: Ledger) -> None:
    [first] = enqueue(ledger)
    run_id = waiting_for(ledger, first)
    found = around.stances(ledger, [run_id, first])
    assert list(found) == [run_id, first]
    gate = found[run_id].gate
    assert gate is not None
    assert (gate.mode, gate.armed, gate.laters) == (When.ALL_FINISHED, False, 0)
    assert found[first].gate is None


def test_surroundings_stop_at_their_limit(ledger: Ledger) -> None:
    many = enqueue(ledger, 20)
    run_id = waiting_for(ledger, *many)
    found = around.surroundings(ledger, [run_id], 5)
    assert (len(found.stances), len(found.links), found.cut) == (5, 4, True)
    found = around.surroundings(ledger, [many[0]], 30)
    assert (len(found.stances), len(found.links), found.cut) == (21, 20, False)


def test_who_is_claimed_before_a_run(ledger: Ledger) -> None:
    first, second = enqueue(ledger, 2)
    [urgent] = enqueue(ledger, priority=5)
    enqueue(ledger, queue="slow")
    before = {run_id: around.ahead(ledger, the(ledger, run_id), 10) for run_id in (urgent, first, second)}
    assert before == {urgent: 0, first: 1, second: 2}
    assert around.ahead(ledger, the(ledger, second), 1) == 1
