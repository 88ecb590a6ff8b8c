"""What an execution tells while it runs, what is read back, and the key of the cluster."""

import pytest
from django.test import override_settings

from django_manta.exceptions import WrongKey
from django_manta.ids import new_run_id
from django_manta.ledger import Ledger
from django_manta.payload import Seal
from django_manta.states import Outcome, State
from tests.ledger.given import claimed, enqueue, settlement, sql, the

# -- progress and metadata -----------------------------------------------------------------------


@pytest.mark.parametrize("note", ["progress", "metadata"])
def test_only_the_execution_that_holds_the_run_can_write_on_it(ledger: Ledger, note: str) -> None:
    save = getattr(ledger, f"save_{note}")
    [claim] = claimed(ledger)
    assert save(claim.id, claim.token, '{"done": 1}')
    assert getattr(the(ledger, claim.id), note) == '{"done": 1}'

    assert not save(claim.id, claim.token + 1, '{"done": 2}')
    assert not save(new_run_id(), claim.token, '{"done": 2}')
    ledger.settle([settlement(claim, Outcome.FAILED, State.READY)])
    assert not save(claim.id, claim.token, '{"done": 2}')
    [again] = ledger.claim("worker", ["default"], 1)
    assert not save(claim.id, claim.token, '{"done": 2}')
    assert getattr(the(ledger, claim.id), note) == '{"done": 1}'
    assert save(claim.id, again.token, '{"done": 3}')


@pytest.mark.parametrize("note", ["progress", "metadata"])
def test_an_execution_that_is_to_be_cancelled_still_writes(ledger: Ledger, note: str) -> None:
    [claim] = claimed(ledger)
    ledger.cancel([claim.id])
    assert getattr(ledger, f"save_{note}")(claim.id, claim.token, "{}")


def test_the_next_attempt_sees_the_metadata(ledger: Ledger) -> None:
    [claim] = claimed(ledger, metadata='{"step": 1}')
    assert claim.metadata == '{"step": 1}'
    ledger.save_metadata(claim.id, claim.token, '{"step": 2}')
    ledger.settle([settlement(claim, Outcome.FAILED, State.READY)])
    [again] = ledger.claim("worker", ["default"], 1)
    assert again.metadata == '{"step": 2}'


# -- reading -------------------------------------------------------------------------------------


def test_runs_are_fetched_in_the_order_asked_for(ledger: Ledger) -> None:
    ids = enqueue(ledger, 5)
    wanted = [ids[3], new_run_id(), ids[0], ids[4]]
    assert [run.id for run in ledger.fetch(wanted)] == [ids[3], ids[0], ids[4]]
    assert ledger.fetch([]) == []


def test_history_is_told_oldest_first_and_only_on_request(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    for outcome in (Outcome.FAILED, Outcome.INTERRUPTED, Outcome.RETURNED, Outcome.CRASHED):
        ledger.settle([settlement(claim, outcome, State.READY)])
        [claim] = ledger.claim("worker", ["default"], 1)
    told = [(attempt.number, attempt.outcome) for attempt in the(ledger, claim.id).history]
    assert told == [
        (1, Outcome.FAILED),
        (2, Outcome.INTERRUPTED),
        (3, Outcome.RETURNED),
        (3, Outcome.CRASHED),
    ]
    assert ledger.fetch([claim.id], history=False)[0].history == ()
    assert ledger.history([]) == {}


# -- the cluster's key ---------------------------------------------------------------------------

OLD, NEW, WRONG = "old-key" * 10, "new-key" * 10, "wrong-key" * 10


def remembered(ledger: Ledger) -> list[tuple[str, str]]:
    return [(name, key) for name, key in sql(ledger, "SELECT name, key_fingerprint FROM manta_cluster ORDER BY name")]


def seal(key: str, *fallbacks: str, cluster: str = "here") -> Seal:
    with override_settings(SECRET_KEY=key, SECRET_KEY_FALLBACKS=list(fallbacks)):
        return Seal(cluster)


def test_the_first_process_leaves_its_fingerprint(ledger: Ledger) -> None:
    ledger.check_key(seal(OLD))
    assert remembered(ledger) == [("here", seal(OLD).fingerprint)]
    assert OLD not in str(remembered(ledger))


def test_the_same_key_is_welcome(ledger: Ledger) -> None:
    for _ in range(3):
        ledger.check_key(seal(OLD))
    assert remembered(ledger) == [("here", seal(OLD).fingerprint)]


def test_a_wrong_key_is_turned_away(ledger: Ledger) -> None:
    ledger.check_key(seal(OLD))
    with pytest.raises(WrongKey, match=r"Cluster 'here' signs with key .* SECRET_KEY_FALLBACKS to rotate it"):
        ledger.check_key(seal(WRONG))
    assert remembered(ledger) == [("here", seal(OLD).fingerprint)]


def test_a_key_is_rotated_by_way_of_the_fallbacks(ledger: Ledger) -> None:
    ledger.check_key(seal(OLD))
    ledger.check_key(seal(NEW, OLD))
    assert remembered(ledger) == [("here", seal(NEW).fingerprint)]
    ledger.check_key(seal(NEW))
    with pytest.raises(WrongKey):
        ledger.check_key(seal(OLD))


def test_each_cluster_has_its_own_key(ledger: Ledger) -> None:
    ledger.check_key(seal(OLD))
    ledger.check_key(seal(NEW, cluster="there"))
    assert [name for name, _ in remembered(ledger)] == ["here", "there"]
    assert seal(OLD).fingerprint != seal(OLD, cluster="there").fingerprint
