"""What is said between workers, foremen and chunks, without any of them."""

import json
from datetime import UTC, datetime
from types import MappingProxyType

import pytest

from django_manta import resources
from django_manta.execution.runners.ray import messages
from django_manta.ids import new_run_id
from django_manta.ledger import AttemptRecord, Claimed, Value, Written
from django_manta.moments import to_microseconds
from django_manta.states import Outcome, State

NOW = datetime(2026, 11, 16, 4, 0, 0, 123456, tzinfo=UTC)
MOMENT = to_microseconds(NOW)


def claim() -> Claimed:
    attempt = AttemptRecord(
        token=1,
        number=1,
        outcome=Outcome.FAILED,
        worker="w",
        executor="h:1",
        started_at=NOW,
        finished_at=NOW,
        error_class="builtins.ValueError",
        error_message="ü\n",
        traceback="",
        output="",
        log_ref="",
        peak_memory=None,
    )
    return Claimed(
        id=new_run_id(),
        token=2**60,
        task="tests.app.tasks.add",
        backend="default",
        queue="default",
        priority=-3,
        arguments='[[1e16,"\\ud83d"],{}]',
        overrides="",
        signature="s",
        metadata="{}",
        enqueued_at=MOMENT,
        run_after=None,
        deadline=MOMENT,
        expires_at=MOMENT,
        started_at=MOMENT,
        last_attempted_at=MOMENT,
        attempts=2,
        failures=1,
        crashes=0,
        losses=0,
        worker="w",
        refused_for=3.5,
        suspect=True,
        references="[]",
        workflow=new_run_id().hex,
        history=(attempt,),
        values=MappingProxyType({"a": Value("1", "s", None)}),
        laters=4,
    )


def test_a_claim_comes_out_as_it_went_in() -> None:
    given = claim()
    [received] = messages.Inbox().feed(messages.line("claim", messages.write_claim(given)))
    assert messages.read_claim(received.split("\t")[1]) == given


def test_a_claim_of_a_release_with_other_fields_is_understood() -> None:
    given = claim()
    plain = json.loads(messages.write_claim(given))
    newer = messages.dump(["a field of the next release", *plain])
    assert messages.read_claim(newer, ["new", *messages.FIELDS]) == given
    without = messages.FIELDS.index("laters")
    older = messages.dump(plain[:without] + plain[without + 1 :])
    assert messages.read_claim(older, [name for name in messages.FIELDS if name != "laters"]) == given._replace(
        laters=0
    )


def test_an_outcome_comes_out_as_it_went_in() -> None:
    run_id, other = new_run_id(), new_run_id()
    for row in (
        Written(run_id, 7, Outcome.SUCCESSFUL, State.SUCCESSFUL, 0.5, True, '{"a": "ü"}'),
        Written(run_id, 7, Outcome.SUCCESSFUL, State.SUCCESSFUL, 0.5, True, "{}", is_well=True),
        Written(run_id, 7, Outcome.DEFERRED, State.WAITING, 0.5, False, "{}", False, None, (other,), True),
    ):
        assert messages.outcome_from_json(run_id, 7, messages.outcome_to_json(row)) == row


def test_lines_are_put_together_from_any_pieces() -> None:
    words = messages.dump({"b": "ü\t\n" * 1000})
    data = messages.line("a", "1") + messages.line("b", words)
    inbox = messages.Inbox()
    found = [line.split("\t") for byte in data for line in inbox.feed(bytes([byte]))]
    assert found == [["a", "1"], ["b", words]]
    assert inbox.is_empty
    assert list(messages.Inbox().feed(data)) == ["a\t1", f"b\t{words}"]


def test_what_is_to_be_passed_on_arrives_beside_the_message() -> None:
    heard = messages.hear(messages.say("submit", '["a"]', '["b\\t"]', worker="w"))
    assert (heard["verb"], heard["worker"], heard["parts"]) == ("submit", "w", ['["a"]', '["b\\t"]'])
    assert messages.hear(messages.say("attach"))["parts"] == []


def test_what_is_to_be_executed_is_refused_in_another_version_and_all_else_is_read() -> None:
    other = messages.dump({"protocol": 1, "verb": "fence", "a fact of another release": 1})
    assert messages.hear(other)["verb"] == "fence"
    with pytest.raises(messages.UnknownProtocol, match="protocol 1"):
        messages.hear_order(other)
    with pytest.raises(ValueError, match="is no message"):
        messages.hear("[]")


def test_a_profile_inherits_what_it_does_not_say_itself() -> None:
    profiles = resources.environments(
        {
            "base": {"env_vars": {"A": "1", "B": "1"}, "pip": ["x"]},
            "more": {"EXTENDS": "base", "env_vars": {"B": "2"}},
            "most": {"EXTENDS": "more", "pip": ["y"]},
        }
    )
    assert profiles["most"] == {"env_vars": {"A": "1", "B": "2"}, "pip": ["y"]}
    assert resources.ray_options({"num_gpus": 1, "runtime_env": "more"}, profiles, None) == {
        "num_gpus": 1,
        "num_cpus": 1,
        "runtime_env": {"env_vars": {"A": "1", "B": "2"}, "pip": ["x"]},
    }
    assert resources.ray_options({}, profiles, "base")["runtime_env"] == profiles["base"]
    with pytest.raises(LookupError, match="no profile 'gone'"):
        resources.ray_options({"runtime_env": "gone"}, profiles, None)
