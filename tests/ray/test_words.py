"""What a foreman says that a worker cannot read: half a message, or the words of another release."""

import asyncio
import json
import selectors
import socket
from typing import Any

import pytest
from django.tasks import task_backends

from django_manta.execution.runners.flights import Flight
from django_manta.execution.runners.ray import envoy as envoys
from django_manta.execution.runners.ray import messages
from django_manta.ledger import Settleable, Written, rows
from django_manta.states import Outcome
from django_manta.task import load_tasks
from django_manta.worker.afar import UNSETTLED_CHARACTERS, Abroad, OnRay
from tests.ledger.given import WELL, settlement
from tests.ray.test_envelopes import claim


class Listener:
    """Hears what a runner tells."""

    id = "worker"
    in_hand = 0
    aside: set[int] = set()

    def is_put_aside(self, token: int) -> bool:
        return token in self.aside

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
    load_tasks()
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
    # The foreman keeps it until it hears that the run is settled.
    assert (token in runner.abroad, token in runner.unsettled) == (False, True)


def test_an_outcome_that_makes_sense_is_told_once_and_kept_until_it_is_settled() -> None:
    listener = Listener()
    runner, key, token = abroad(listener)
    row = rows.written(settlement(runner.abroad[token].flight.claim, **WELL))
    for _ in range(2):
        runner._heed_or_refuse("foreman", ["ended", key, False, messages.outcome_to_json(row)])
    assert listener.heard == [("started", None), ("ended", row)]
    assert runner.unsettled == {token: ("foreman", key)}


def hear(runner: OnRay, events: list[str]) -> None:
    runner._worker = runner.host.id
    runner._hear(["heard", "foreman", 2.0, "worker"], messages.write_events(events))


def another(runner: OnRay) -> tuple[str, int]:
    given = claim()._replace(token=2**60 + len(runner.abroad))
    key = messages.key_of(given.id.hex, given.token)
    runner.abroad[given.token] = Abroad(Flight(given, None), key, "foreman", "1", False)
    return key, given.token


def test_half_an_event_is_the_trouble_of_its_run_alone() -> None:
    listener = Listener()
    runner, key, token = abroad(listener)
    good, good_token = another(runner)
    row = rows.written(settlement(runner.abroad[good_token].flight.claim, **WELL))
    end = messages.dump(["ended", good, False, messages.outcome_to_json(row)])
    half = f'["ended","{key}",false,[0.1,true,"xxxFatal Python error: Segmentation fault'
    hear(runner, [half, end])
    assert listener.heard == [("settle", Outcome.RETURNED), ("started", None), ("ended", row)]
    assert not runner.abroad
    assert set(runner.unsettled) == {token, good_token}


@pytest.mark.parametrize("garbage", ["", "{", "17", '["ended"]', '{"a": 1}', '["ended",null,1]', '["started","x:y"]'])
def test_an_event_that_tells_of_no_run_is_dropped_and_said_once(garbage: str, caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener()
    runner, key, token = abroad(listener)
    row = rows.written(settlement(runner.abroad[token].flight.claim, **WELL))
    hear(runner, [garbage])
    hear(runner, [garbage, messages.dump(["ended", key, False, messages.outcome_to_json(row)])])
    assert listener.heard == [("started", None), ("ended", row)]
    assert sum("cannot be read, and is dropped" in record.message for record in caplog.records) <= 1


def test_the_events_of_a_foreman_of_an_older_release_are_read() -> None:
    assert messages.read_events('[["a",1],["b",2]]') == [["a", 1], ["b", 2]]
    assert messages.read_events("[]") == []
    assert json.loads(messages.write_events(['["a",1]', '["b",2]'])) == [["a", 1], ["b", 2]]


def test_a_worker_takes_no_more_events_until_what_it_took_is_settled() -> None:
    listener = Listener()
    runner, key, token = abroad(listener)
    sent: list[Any] = []
    runner.envoy.send = lambda message, *parts: sent.append(message)  # type: ignore[method-assign]
    row = rows.written(settlement(runner.abroad[token].flight.claim, **WELL))
    row.text = "x" * UNSETTLED_CHARACTERS
    hear(runner, [messages.dump(["ended", key, False, messages.outcome_to_json(row)])])
    assert sent == []
    # What the database refuses holds nothing up.
    listener.aside = {token}
    runner._take_more()
    [[kind, characters]] = sent
    assert kind == "dealt"
    assert characters > UNSETTLED_CHARACTERS
    sent.clear()
    listener.aside = set()
    key, other = another(runner)
    hear(runner, [messages.dump(["ended", key, False, messages.outcome_to_json(row)])])
    assert sent == []
    runner.settled([token, other])
    runner._take_more()
    assert [message[0] for message in sent] == ["dealt"]


def test_what_the_driver_process_says_wrongly_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    runner, *_ = abroad(Listener())
    for line in ("", "{", "[]", '["heard"]\t[]', '["answer",1,2', '["foreman","x"]', '["gone"]', "17\t[]"):
        runner.envoy._take(line)
    assert "Could not read what the Ray driver process said" in caplog.text


def test_a_foreman_that_is_not_well_says_so_through_its_worker(caplog: pytest.LogCaptureFixture) -> None:
    runner, *_ = abroad(Listener())
    runner._hear(["unwell", "foreman", "Ray does not say how large the cluster is."], "")
    assert "The foreman foreman says: Ray does not say how large the cluster is." in caplog.text


@pytest.mark.parametrize("answer", ["{", "[]", "{}", '{"incarnation":7}'])
def test_a_foreman_whose_answer_cannot_be_read_is_left_and_found_again(answer: str) -> None:
    runner, *_ = abroad(Listener())
    sent: list[Any] = []
    runner.envoy.send = lambda message, *parts: sent.append(message)  # type: ignore[method-assign]
    runner._found(runner.home, "1", 1.0, messages.PROTOCOL)
    number = runner.questions.add(runner.home, lambda told: None)
    runner._hear(["answer", number], answer)
    assert not runner.answers(runner.home)
    # The driver process says that it found a foreman when it opens a line to it, and not of one that is open.
    assert sent[-1] == ["close", runner.home]
    assert runner._open_at is not None
    runner._found(runner.home, "1", 1.0, messages.PROTOCOL)
    assert runner.answers(runner.home)


def test_a_mistake_in_what_a_worker_makes_of_an_answer_is_not_taken_for_the_foremans(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner, *_ = abroad(Listener())
    runner._found(runner.home, "1", 1.0, messages.PROTOCOL)
    number = runner.questions.add(runner.home, lambda told: told["what is not there"])
    runner.envoy._take(f'["answer",{number}]\t{{"incarnation":"1"}}')
    assert "what is not there" in caplog.text
    assert runner.answers(runner.home)


class _Line(envoys.Line):
    """A line to a foreman that cannot do what it is told first, and then does it."""

    failures = 1

    async def _attach(self) -> None:
        pass

    async def _call(self, method: str, text: str, seconds: float = 0.0) -> str | None:
        if method == "listen":
            await asyncio.Event().wait()
        if self.failures:
            self.failures -= 1
            raise RuntimeError("It cannot do that.")
        return "{}"


def test_a_line_that_was_closed_while_its_foreman_failed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envoys, "TROUBLED_SECONDS", 0.01)

    async def close_it() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            envoy = envoys.Envoy(ours, {}, messages.Inbox(), [])
            envoy.tell = lambda message, *parts: None  # type: ignore[method-assign]
            line = _Line(envoy, "foreman", False)
            line.say(1, messages.say("settled", worker="worker", keys=[]))
            line.finish()
            async with asyncio.timeout(10):
                await line._life

    asyncio.run(close_it())
