"""What a foreman makes of what it is told, without a Ray."""

import json
from typing import Any

from django_manta.execution.runners.ray import foreman as foremen
from django_manta.execution.runners.ray import messages
from django_manta.execution.runners.ray.foreman import Foreman
from django_manta.execution.runners.ray.held import Chunk, Held, Kind

KIND = Kind({}, {}, True, [])


def tell(foreman: Foreman, verb: str, worker: str, **facts: Any) -> dict[str, Any]:
    return messages.hear(foreman._speak(messages.say(verb, worker=worker, **facts)))


def holding(foreman: Foreman, worker: str, number: int, *, ended: bool = False) -> Held:
    held = Held(messages.key_of("ab" * 16, number), "ab" * 16, "task", worker, "[]", None, KIND)
    held.end = messages.dump(["ended", held.key, False, None]) if ended else ""
    foreman.held[held.key] = held
    return held


def told(foreman: Foreman, worker: str) -> list[str]:
    return list(foreman.outboxes[worker].ends)


def test_a_fenced_worker_is_not_heard_whatever_it_says() -> None:
    foreman = Foreman("home")
    held = holding(foreman, "first", 1, ended=True)
    tell(foreman, "attach", "second")
    tell(foreman, "fence", "second", former="first", keys=[held.key])
    tell(foreman, "adopt", "second", keys=[held.key])
    for verb, facts in (
        ("settled", {"keys": [held.key]}),
        ("adopt", {"keys": [held.key]}),
        ("cancel", {"keys": [held.key], "doom": ["CANCELLED", ""]}),
        ("submit", {"incarnation": foreman.incarnation}),
        ("attach", {}),
        ("fence", {"former": "second", "keys": []}),
    ):
        assert tell(foreman, verb, "first", **facts)["refused"] == "fenced", verb
    assert foreman.held == {held.key: held}
    assert held.worker == "second"
    assert told(foreman, "second") == [held.key]


def test_what_an_adopter_does_not_ask_for_is_kept_and_named() -> None:
    foreman = Foreman("home")
    asked, other = holding(foreman, "first", 1, ended=True), holding(foreman, "first", 2, ended=True)
    holding(foreman, "first", 3)
    answer = tell(foreman, "fence", "second", former="first", keys=[asked.key, "unknown:4"])
    assert [known[0] for known in answer["known"]] == [asked.key]
    # It may be another adopter's, who has not said so yet.
    assert answer["left"] == [other.key]
    assert len(foreman.held) == 3


def test_a_worker_that_names_its_runs_is_told_what_it_missed_and_what_is_not_here() -> None:
    foreman = Foreman("home")
    ended, running = holding(foreman, "first", 1, ended=True), holding(foreman, "first", 2)
    tell(foreman, "attach", "second")
    answer = tell(foreman, "adopt", "second", keys=[ended.key, running.key, "unknown:3"])
    assert answer["missing"] == ["unknown:3"]
    assert {ended.worker, running.worker} == {"second"}
    assert told(foreman, "second") == [ended.key]


def test_a_roll_call_names_outcomes_of_workers_that_do_not_listen_each_once_before_any_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(foremen, "LEFT", 2)
    foreman = Foreman("home")
    tell(foreman, "attach", "living")
    holding(foreman, "living", 1, ended=True)
    holding(foreman, "dead", 2)
    left = [holding(foreman, "dead", number, ended=True).key for number in (3, 4, 5)]

    def named() -> Any:
        return tell(foreman, "adopt", "living", keys=[])["left"]

    assert [named(), named(), named()] == [left[:2], left[2:], left[:2]]
    tell(foreman, "settled", "living", keys=left)
    assert [named(), named()] == [[], []]


def test_an_outcome_that_the_ledger_has_is_dropped_when_nobody_listens(monkeypatch: Any) -> None:
    foreman = Foreman("home")
    kept, unkept = holding(foreman, "first", 1, ended=True), holding(foreman, "first", 2, ended=True)
    kept.is_kept = True
    tell(foreman, "attach", "first")
    foreman._clear_away()
    assert len(foreman.held) == 2
    monkeypatch.setattr(foremen, "LONELY_SECONDS", -1.0)
    foreman._clear_away()
    assert foreman.held == {unkept.key: unkept}
    assert not foreman.outboxes


def test_a_run_that_was_forgotten_as_settled_is_not_executed_again(monkeypatch: Any) -> None:
    foreman = Foreman("home")
    handed_out: list[list[Held]] = []
    monkeypatch.setattr(foreman, "_dispatch", handed_out.append)
    tell(foreman, "attach", "first")
    kept = holding(foreman, "first", 1, ended=True)
    kept.is_kept = True
    with monkeypatch.context() as patched:
        patched.setattr(foremen, "LONELY_SECONDS", -1.0)
        foreman._clear_away()
    assert not foreman.held
    # It was away for long, and does not know what became of either.
    tell(foreman, "attach", "first")
    facts = {"worker": "first", "incarnation": foreman.incarnation, "environment": {}, "fields": []}
    orders = [[0, None, kept.run, number, "task"] for number in (1, 2)]
    said = messages.say("submit", "[]", "[]", kinds=[{"options": {}, "alone": True}], orders=orders, **facts)
    assert "refused" not in messages.hear(foreman._speak(said))
    assert [[held.key for held in new] for new in handed_out] == [[messages.key_of(kept.run, 2)]]
    assert json.loads(foreman.held[kept.key].end) == ["ended", kept.key, True, None]
    assert told(foreman, "first") == [kept.key]
    tell(foreman, "settled", "first", keys=[kept.key])
    assert list(foreman.held) == [messages.key_of(kept.run, 2)]


def test_a_worker_that_speaks_is_there_though_it_does_not_listen(monkeypatch: Any) -> None:
    foreman = Foreman("home")
    for worker in ("speaks", "is silent"):
        tell(foreman, "attach", worker)
        foreman.outboxes[worker].listened_at -= foremen.LONELY_SECONDS + 1
    tell(foreman, "adopt", "speaks", keys=[])
    foreman._clear_away()
    assert list(foreman.outboxes) == ["speaks"]


def test_only_the_run_for_which_a_process_was_killed_is_charged_with_that() -> None:
    foreman = Foreman("home")
    slow, mate = holding(foreman, "first", 1), holding(foreman, "first", 2)
    slow.doomed = mate.doomed = ("TIMED_OUT", "It took too long.")
    chunk = Chunk("chunk", {slow.key: slow, mate.key: mate}, killed_for=slow)
    evidence = [foreman._evidence(chunk, each, None, presumed=False)["doomed"] for each in (slow, mate)]
    assert evidence == [("TIMED_OUT", "It took too long."), None]


def test_a_run_that_no_process_can_tell_of_is_refused_in_the_end() -> None:
    foreman = Foreman("home")
    foreman._host, foreman._port = "10.0.0.1", 4711
    held = holding(foreman, "first", 1)
    for _ in range(foremen.UNHEARD - 1):
        assert foreman._unheard([held], "TimeoutError: timed out") == [held]
    assert foreman._unheard([held], "TimeoutError: timed out") == []
    kind, _, words = json.loads(held.end)
    assert kind == "refused"
    assert "No process of Ray's could reach the foreman at 10.0.0.1:4711. TimeoutError" in words
