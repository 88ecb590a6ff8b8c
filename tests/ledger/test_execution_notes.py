"""What an execution tells while it runs, what is read back, and the key of the cluster."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.test import override_settings

from django_manta.exceptions import WrongCluster, WrongKey
from django_manta.ids import new_run_id
from django_manta.ledger import Ledger, clusters, own_session
from django_manta.payload import Seal
from django_manta.states import Outcome, State
from tests.ledger.given import claimed, enqueue, settlement, sql, the, worker_record

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


def test_a_database_belongs_to_the_cluster_that_came_first(ledger: Ledger) -> None:
    ledger.check_key(seal(OLD))
    refusal = r"belongs to the cluster 'here', and CLUSTER is 'there'.*manta cluster --rename there"
    with pytest.raises(WrongCluster, match=refusal):
        ledger.check_key(seal(OLD, cluster="there"))
    assert [name for name, _ in remembered(ledger)] == ["here"]
    assert seal(OLD).fingerprint != seal(OLD, cluster="there").fingerprint


def test_a_cluster_is_renamed_when_none_of_its_workers_lives(ledger: Ledger) -> None:
    ledger.check_key(seal(OLD))
    seen_at = ledger.register(worker_record("alive", cluster="here"))
    with override_settings(SECRET_KEY=OLD):
        with pytest.raises(WrongCluster, match="Workers of the former name live: alive. Stop them first."):
            clusters.rename(ledger, Seal("there"))
        ledger.mark_lost("alive", seen_at)
        # One that is silent, and that nobody was left to declare lost.
        ledger.register(worker_record("silent", cluster="here", lease_seconds=0.0))
        assert clusters.rename(ledger, Seal("there")) == ["here"]
    assert remembered(ledger) == [("there", seal(OLD, cluster="there").fingerprint)]
    ledger.check_key(seal(OLD, cluster="there"))
    with pytest.raises(WrongCluster):
        ledger.check_key(seal(OLD))
    # Only who has the key.
    with override_settings(SECRET_KEY=WRONG), pytest.raises(WrongKey, match="which this process does not have"):
        clusters.rename(ledger, Seal("mine"))


def test_what_is_left_of_another_cluster_is_forgotten_unless_its_workers_live(ledger: Ledger) -> None:
    """Before there was this rule a database could hold several."""
    ledger.check_key(seal(OLD))
    sql(ledger, "INSERT INTO manta_cluster (name, key_fingerprint, leader, term) VALUES ('there', 'x', '', 0)")
    seen_at = ledger.register(worker_record("alive", cluster="there"))
    with pytest.raises(WrongCluster, match="belongs to the cluster 'there', and .* Workers of it live: alive."):
        ledger.check_key(seal(OLD))
    ledger.mark_lost("alive", seen_at)
    ledger.check_key(seal(OLD))
    assert [name for name, _ in remembered(ledger)] == ["here"]


@pytest.mark.postgres
def test_of_two_first_workers_with_different_names_one_is_refused(committed: None) -> None:
    barrier = threading.Barrier(8)

    def join(number: int) -> bool:
        session = own_session()
        try:
            session.rows("clock", {})
            barrier.wait(10)
            Ledger(session).check_key(seals[number])
        except WrongCluster:
            return False
        else:
            return True
        finally:
            session.close()

    seals = [seal(OLD, cluster=f"cluster {number}") for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(join, range(8))) == 1
