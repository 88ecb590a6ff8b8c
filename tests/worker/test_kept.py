"""What a child tells its worker of an end, and what it settles itself when there is nobody to tell."""

import threading
from typing import Any

import pytest

from django_manta.execution.runners import wire
from django_manta.execution.runners.kept import Kept
from django_manta.ids import new_run_id
from django_manta.ledger import Ledger, Settlement, rows
from django_manta.states import Outcome, State
from tests.ledger.given import WELL, claimed, settlement, sql, state_of

ENDS: dict[str, dict[str, Any]] = {
    "well": {"outcome": Outcome.SUCCESSFUL, "next_state": State.SUCCESSFUL, **WELL},
    "badly": {"outcome": Outcome.FAILED, "next_state": State.FAILED, "error_message": "No."},
    "later": {"outcome": Outcome.DEFERRED, "next_state": State.WAITING, "after": (new_run_id(), new_run_id())},
    "by others": {"outcome": Outcome.DELEGATED, "next_state": State.WAITING, "delegate": '"x"'},
}


@pytest.mark.parametrize("how", ENDS)
def test_an_end_comes_out_as_it_went_in(how: str) -> None:
    row = rows.written(Settlement(run_id=new_run_id(), token=7, duration=0.5, told=True, **ENDS[how]))
    assert row.is_well == (how == "well")
    told = wire.ended(row, settled=False)
    assert told[:2] == (7, False)
    assert wire.read_end(row.run_id, told) == row


def test_of_what_was_no_longer_wanted_there_is_nothing_to_settle() -> None:
    assert wire.read_end(new_run_id(), wire.gone(7)) is None


def test_an_end_of_another_length_makes_no_sense() -> None:
    row = rows.written(Settlement(run_id=new_run_id(), token=7, **ENDS["later"]))
    told = wire.ended(row, settled=False)
    for length in (0, 1, 2, 4, 8, 10, 11):
        with pytest.raises(ValueError, match="unpack"):
            wire.read_end(row.run_id, told[:length])
    with pytest.raises(KeyError):
        wire.read_end(row.run_id, (*told[:3], "SOMEHOW", *told[4:]))


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True, available_apps=["django_manta"])
def test_what_somebody_holds_when_the_worker_is_gone_is_tried_again(ledger: Ledger) -> None:
    """As the last statement of the worker does, until its server notices that nobody waits for it."""
    free, held = claimed(ledger, 2)
    kept = Kept()
    for claim in (free, held):
        kept.add(claim, rows.written(settlement(claim, **WELL)))
    with ledger.session.transaction():
        sql(ledger, "SELECT 1 FROM manta_run WHERE id = %s FOR UPDATE", [held.id])
        settling = threading.Thread(target=kept.settle)
        settling.start()
        while state_of(ledger, free.id) is State.RUNNING:
            assert settling.is_alive()
        assert state_of(ledger, held.id) is State.RUNNING
    settling.join()
    assert state_of(ledger, held.id) is State.SUCCESSFUL
