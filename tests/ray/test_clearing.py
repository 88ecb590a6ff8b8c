"""What foremen keep of workers that do not listen is compared with the ledger: a real ledger, no Ray."""

import selectors
from typing import Any

import pytest
from django.db import DatabaseError
from django.tasks import task_backends

from django_manta.execution.runners.ray import messages
from django_manta.ids import new_run_id
from django_manta.ledger import Claimed, DjangoSession, Ledger
from django_manta.worker.afar import OnRay
from tests.ledger.given import WELL, claimed, settlement
from tests.ray.test_words import Listener

pytestmark = pytest.mark.django_db


class Recorded:
    """What a runner says to foremen."""

    def __init__(self) -> None:
        self.runner = OnRay(Listener(), selectors.DefaultSelector(), task_backends["default"], "tests.settings")  # type: ignore[arg-type]
        self.said: list[tuple[str, list[str]]] = []
        self.runner.envoy.send = self._note  # type: ignore[method-assign]

    def _note(self, message: Any, *parts: str) -> None:
        told = messages.hear("\t".join(parts))
        self.said.append((told["verb"], told.get("keys", [])))


def key_of(claim: Claimed) -> str:
    return messages.key_of(claim.id.hex, claim.token)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(DjangoSession())


def test_a_foreman_forgets_what_a_dead_worker_settled_and_keeps_what_is_running_or_not_known(ledger: Ledger) -> None:
    settled, running = claimed(ledger, 2, "dead")
    ledger.settle([settlement(settled, **WELL)], "dead")
    unknown = messages.key_of(new_run_id().hex, 1)
    here = Recorded()
    told = {"incarnation": "1", "left": [key_of(settled), key_of(running), unknown]}
    here.runner._told_of_ours("home", "1", told)
    here.runner.adoption.talk(ledger, 0.0)
    assert here.said == [("settled", [key_of(settled)])]


def test_a_foreman_is_asked_again_until_a_fenced_worker_has_left_nothing(ledger: Ledger) -> None:
    first, second, running = claimed(ledger, 3, "dead")
    ledger.settle([settlement(first, **WELL), settlement(second, **WELL)], "dead")
    here = Recorded()
    for left in ([first], [second, running], [running]):
        here.runner.adoption.note_left("home", "dead", {"left": [key_of(each) for each in left]})
        here.runner.adoption.talk(ledger, 0.0)
    assert here.said == [("settled", [key_of(first)]), ("fence", []), ("settled", [key_of(second)]), ("fence", [])]


def test_what_was_left_is_looked_at_again_after_the_database_was_away(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    [run] = claimed(ledger, 1, "dead")
    ledger.settle([settlement(run, **WELL)], "dead")
    here = Recorded()
    here.runner.adoption.note_left("home", "dead", {"left": [key_of(run)]})

    def is_away(ids: Any) -> Any:
        raise DatabaseError("away")

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "states", is_away)
        patched.setattr(ledger, "fetch", lambda ids, history: is_away(ids))
        with pytest.raises(DatabaseError):
            here.runner.adoption.talk(ledger, 0.0)
    here.runner.adoption.talk(ledger, 0.0)
    assert here.said[0] == ("settled", [key_of(run)])


def test_a_key_that_makes_no_sense_does_not_end_the_worker(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    here = Recorded()
    here.runner.adoption.note_left("home", "dead", {"left": ["no key"]})
    for _ in range(2):
        here.runner.adoption.talk(ledger, 0.0)
    assert here.said == []
    assert caplog.text.count("cannot be compared with the ledger") == 1


def test_a_foreman_whose_answer_about_a_lost_worker_makes_no_sense_is_told_of_and_asked_again() -> None:
    here = Recorded()
    run_id, foreman = new_run_id(), ("old", "1")
    here.runner.known = [foreman]
    here.runner.adoption.ask_about_our_own([(run_id, 7)])
    [case] = here.runner.adoption.cases
    here.runner.adoption._answered(case, foreman, {"incarnation": "1", "known": 7})
    assert "cannot be read" in case.refused[foreman]
    assert case.unanswered == [foreman]
    assert not case.has_news
