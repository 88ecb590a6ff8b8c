"""Runs that wait for runs: what the state machine found, each on its own."""

from json import dumps
from uuid import UUID

from django_manta.ids import new_run_id
from django_manta.ledger import Claimed, Ledger, fsck, graph
from django_manta.states import Outcome, State
from tests.ledger.given import claimed, settlement, state_of


def caretaker(ledger: Ledger) -> None:
    """Arm what nobody armed, tell whom nobody told, until nothing is left."""
    while graph.tell_leftovers(ledger).seen or graph.arm_leftovers(ledger).seen:
        pass
    assert fsck.check(ledger) == []


def delegate(ledger: Ledger, claim: Claimed, *children: UUID) -> None:
    pointer = dumps([str(child) for child in children])
    ledger.settle([settlement(claim, Outcome.DELEGATED, State.WAITING, delegate=pointer)])


def test_delegating_to_what_is_gone_is_a_bad_end(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    delegate(ledger, claim, new_run_id())
    caretaker(ledger)
    assert state_of(ledger, claim.id) is State.UPSTREAM_FAILED
