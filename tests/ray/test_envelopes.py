"""What a Ray job is given and what it tells, without a Ray."""

import json
from typing import Any

import pytest

from django_manta import resources
from django_manta.exceptions import BadTaskSignature
from django_manta.execution import envelope
from django_manta.execution.runners.ray import dashboard, messages
from django_manta.ledger import Written
from django_manta.states import Outcome, State
from tests.ray.test_messages import claim


def test_an_envelope_is_opened_only_if_it_was_sealed_here() -> None:
    given = claim()
    sealed = envelope.seal(given, 2.5)
    assert envelope.unseal(sealed) == (given, 2.5)
    # Nothing in it that a shell, or a URL, would take for something else.
    assert set(sealed) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:")
    assert not sealed.startswith("-")
    with pytest.raises(BadTaskSignature, match="SECRET_KEY"):
        envelope.unseal(f"{sealed[:-2]}AA")


def test_a_job_executes_its_own_protocol_only_and_a_worker_takes_over_any(monkeypatch: pytest.MonkeyPatch) -> None:
    given = claim()
    monkeypatch.setattr(messages, "PROTOCOL", messages.PROTOCOL + 1)
    newer = envelope.seal(given, 2.5)
    monkeypatch.setattr(messages, "write_claim", lambda claim: "{}")
    strange = envelope.seal(given, 2.5)
    monkeypatch.undo()
    with pytest.raises(messages.UnknownProtocol, match="an envelope in protocol"):
        envelope.unseal(newer)
    assert envelope.unseal_any(newer) == (given, 2.5)
    with pytest.raises(messages.UnknownProtocol, match="an envelope in protocol"):
        envelope.unseal_any(strange)


def test_what_is_too_large_for_a_command_line_is_refused() -> None:
    noise = "".join(chr(0x4E00 + (n * 7919) % 20_000) for n in range(100_000))
    with pytest.raises(envelope.TooLarge, match="takes 120 KiB; these are"):
        envelope.seal(claim()._replace(arguments=json.dumps([[noise], {}])), None)


def told(given: Any, log: str) -> envelope.Told:
    return envelope.read(log, given)


def test_a_log_tells_what_became_of_its_run_and_of_no_other() -> None:
    given = claim()
    key = messages.key_of(given.id.hex, given.token)
    row = Written(given.id, given.token, Outcome.FAILED, State.FAILED, 0.5, True, '{"a": "ü"}')
    begun, ended = envelope.begun(key), envelope.ended(key, row, settled=True)
    forged = f"{envelope.ENDED}{'x' * 40}\n"
    another = envelope.ended(messages.key_of(given.id.hex, given.token + 1), row, settled=True)
    assert told(given, "Ray's words\n") == (False, False, False, None)
    assert told(given, f"Ray's words\n{begun}half a li") == (True, False, False, None)
    assert told(given, f"{begun}printed\n{ended}{forged}{another}more") == (True, True, True, row)
    assert told(given, envelope.ended(key, None, settled=False)) == (True, True, False, None)


def test_what_another_release_told_is_as_if_nothing_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given = claim()
    key = messages.key_of(given.id.hex, given.token)
    row = Written(given.id, given.token, Outcome.FAILED, State.FAILED, 0.5, True, "{}")
    monkeypatch.setattr(messages, "outcome_to_json", lambda row: ["SOMEHOW", 1])
    strange = envelope.ended(key, row, settled=False)
    assert told(given, f"{envelope.begun(key)}{strange}") == (True, False, False, None)


def test_what_a_task_printed_is_told_from_what_we_did() -> None:
    given = claim()
    key = messages.key_of(given.id.hex, given.token)
    begun, ended = envelope.begun(key), envelope.ended(key, None, settled=False)
    log = f"Running entrypoint for job x: secret\n\n{begun}a\x1eb\nc\n{ended}"
    assert envelope.printed(log) == "a\x1eb\nc\n"
    assert "secret" not in envelope.without_marks(log)


def test_of_a_long_log_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"logs": "a" * 30 + "\nüb\n\\nc\n"}).encode()
    assert dashboard._logs(body) == ("a" * 30 + "\nüb\n\\nc\n", True)
    monkeypatch.setattr(dashboard, "TAIL_BYTES", 30)
    assert dashboard._logs(body[-30:]) == ("üb\n\\nc\n", False)


def test_what_a_task_asks_for_is_asked_for_its_job() -> None:
    asked = {
        "num_gpus": 1,
        "memory": 5,
        "resources": {"disk": 2},
        "accelerator_type": "A100",
        "label_selector": {"a": "b"},
    }
    assert resources.job_options(resources.ray_options(asked, {}, None)) == {
        "entrypoint_num_cpus": 1,
        "entrypoint_num_gpus": 1,
        "entrypoint_memory": 5,
        "entrypoint_resources": {"disk": 2, "accelerator_type:A100": 0.001},
        "entrypoint_label_selector": {"a": "b"},
    }
    # Without any, Ray executes it on the head node.
    assert resources.job_options(resources.ray_options({"num_cpus": 0}, {}, None)) == {}
