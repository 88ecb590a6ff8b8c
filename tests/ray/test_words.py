"""What a foreman of another release says, and nobody here understands."""

import selectors
from typing import Any

import pytest
from django.tasks import task_backends

from django_manta.execution.runners.flights import Flight
from django_manta.execution.runners.ray import messages
from django_manta.ledger import Settleable, Written, rows
from django_manta.states import Outcome
from django_manta.worker.afar import Abroad, OnRay
from tests.ledger.given import WELL, settlement
from tests.ray.test_envelopes import claim


class Listener:
    """Hears what a runner tells."""

    id = "worker"
    in_hand = 0

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def started(self, flight: Flight) -> None:
        self.heard.append(("started", None))

    def ended(self, flight: Flight, row: Written | None, settled: bool) -> None:
        self.heard.append(("ended", row))

    def settle(self, flight: Flight, row: Settleable) -> None:
        self.heard.append(("settle", row.outcome))


def abroad(listener: Any) -> tuple[OnRay, str, int]:
    """A runner that has not been started, with a run in the hands of a foreman."""
    runner = OnRay(listener, selectors.DefaultSelector(), task_backends["default"], "tests.settings")
    given = claim()
    key = messages.key_of(given.id.hex, given.token)
    runner.abroad[given.token] = Abroad(Flight(given, None), key, "foreman", "1", False)
    return runner, key, given.token


@pytest.mark.parametrize("outcome", [[1, 2], ["SOMEHOW", "SUCCESSFUL", 0.5, True, "{}"], "words", [1, 2, 3, 4]])
def test_an_outcome_that_makes_no_sense_is_refused_and_its_run_given_back(outcome: Any) -> None:
    listener = Listener()
    runner, key, token = abroad(listener)
    runner._heed_or_refuse("foreman", ["ended", key, False, outcome])
    assert listener.heard == [("settle", Outcome.RETURNED)]
    assert (token in runner.abroad, token in runner.unsettled) == (False, False)


def test_an_outcome_that_makes_sense_is_told_once_and_kept_until_it_is_settled() -> None:
    listener = Listener()
    runner, key, token = abroad(listener)
    row = rows.written(settlement(runner.abroad[token].flight.claim, **WELL))
    for _ in range(2):
        runner._heed_or_refuse("foreman", ["ended", key, False, messages.outcome_to_json(row)])
    assert listener.heard == [("started", None), ("ended", row)]
    assert runner.unsettled == {token: ("foreman", key)}
