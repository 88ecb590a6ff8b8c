"""Leases: who is alive, who was lost, and what becomes of what they held."""

from datetime import timedelta
from uuid import UUID

import pytest

from django_manta.exceptions import TaskLost
from django_manta.ledger import Ledger, RayPlace, Settled, house
from django_manta.states import Outcome, State
from tests.ledger.given import claimed, enqueue, lose, settlement, sql, state_of, the, worker_record


def forever(orphan: object) -> int:
    return 1_000


# -- register, beat, mark lost, leave ------------------------------------------------------------


def test_a_worker_registers_with_all_it_is(ledger: Ledger) -> None:
    seen_at = ledger.register(worker_record("worker", queues=("a", "é"), pid=17))
    [row] = sql(
        ledger, "SELECT id, name, host, pid, version, cluster, runner, stopping, lost_at IS NULL FROM manta_worker"
    )
    assert row == ("worker", "somebody", "here", 17, "0.1.0", "default", "inline", False, True)
    assert ledger.beat("worker") is not None
    assert seen_at.tzinfo is not None


def test_a_beat_renews_the_lease(ledger: Ledger) -> None:
    first = ledger.register(worker_record())
    renewed = ledger.beat("worker")
    assert renewed is not None
    assert first <= renewed < first + timedelta(minutes=1)


def test_a_beat_tells_that_a_worker_is_stopping(ledger: Ledger) -> None:
    ledger.register(worker_record())
    for stopping in (False, True):
        assert ledger.beat("worker", stopping)
        assert sql(ledger, "SELECT stopping FROM manta_worker") == [(stopping,)]


def test_a_stranger_has_no_lease(ledger: Ledger) -> None:
    assert ledger.beat("nobody") is None
    assert not ledger.mark_lost("nobody", ledger.register(worker_record()))
    assert not ledger.leave("nobody")


def test_an_unchanged_lease_can_be_marked_lost_once(ledger: Ledger) -> None:
    seen_at = ledger.register(worker_record())
    assert ledger.mark_lost("worker", seen_at)
    assert not ledger.mark_lost("worker", seen_at)
    assert ledger.beat("worker") is None


def test_a_lease_that_was_renewed_meanwhile_is_not_lost(ledger: Ledger) -> None:
    seen_at = ledger.register(worker_record())
    sql(ledger, "UPDATE manta_worker SET seen_at = %s", ["2001-01-01 00:00:00.000000"])
    renewed = ledger.beat("worker")
    assert renewed is not None
    assert not ledger.mark_lost("worker", renewed - timedelta(milliseconds=1))
    assert renewed == seen_at or not ledger.mark_lost("worker", seen_at)
    assert ledger.mark_lost("worker", renewed)


def test_an_old_lease_that_nobody_marked_can_be_renewed(ledger: Ledger) -> None:
    ledger.register(worker_record())
    sql(ledger, "UPDATE manta_worker SET seen_at = %s", ["2001-01-01 00:00:00.000000"])
    assert ledger.beat("worker") is not None


def test_a_worker_that_holds_nothing_leaves(ledger: Ledger) -> None:
    ledger.register(worker_record())
    assert ledger.leave("worker")
    assert not ledger.leave("worker")
    assert sql(ledger, "SELECT id FROM manta_worker") == []


@pytest.mark.parametrize("cancelling", [False, True])
def test_a_worker_that_holds_something_stays(ledger: Ledger, cancelling: bool) -> None:
    ledger.register(worker_record())
    [claim] = claimed(ledger)
    if cancelling:
        ledger.cancel([claim.id])
    assert not ledger.leave("worker")
    ledger.settle([settlement(claim)])
    assert ledger.leave("worker")


def test_leaving_is_nobody_else_s_business(ledger: Ledger) -> None:
    ledger.register(worker_record("leaving"))
    ledger.register(worker_record("staying"))
    claimed(ledger, worker="staying")
    assert ledger.leave("leaving")
    assert sql(ledger, "SELECT id FROM manta_worker") == [("staying",)]


# -- orphans and their recovery ------------------------------------------------------------------


def test_what_a_live_worker_holds_is_no_orphan(ledger: Ledger) -> None:
    ledger.register(worker_record())
    claimed(ledger)
    assert ledger.orphans() == []
    assert ledger.recover(forever) == Settled()


def test_what_lost_and_vanished_workers_hold_are_orphans(ledger: Ledger) -> None:
    ledger.register(worker_record("alive"))
    claimed(ledger, worker="alive")
    [one] = claimed(ledger, worker="lost", overrides='{"max_losses":1}', queue="q")
    [other] = claimed(ledger, worker="vanished")
    ledger.cancel([other.id])
    lose(ledger, "lost")
    first, second = ledger.orphans()
    assert (first.id, first.token, first.worker, first.losses) == (one.id, one.token, "lost", 0)
    assert (first.task, first.backend, first.queue, first.overrides) == (
        one.task,
        "default",
        "q",
        '{"max_losses":1}',
    )
    assert (second.id, second.token, second.worker) == (other.id, other.token, "vanished")
    assert [orphan.id for orphan in ledger.orphans("vanished")] == [other.id]
    assert ledger.orphans("alive") == []
    assert len(ledger.orphans(limit=1)) == 1


# -- which Ray -----------------------------------------------------------------------------------

HERE, THERE = RayPlace("session_1/manta", "here:6379/manta"), RayPlace("session_2/manta", "there:6379/manta")


def on_ray(ledger: Ledger, worker: str, place: RayPlace | None, *, is_lost: bool = True) -> set[UUID]:
    """A run that a worker of that Ray holds; whether or not the worker's lease is lost."""
    seen_at = ledger.register(worker_record(worker, runner="ray"))
    if place is not None:
        ledger.know_foremen(worker, [("foreman", worker)], place)
    [claim] = claimed(ledger, worker=worker)
    if is_lost:
        assert ledger.mark_lost(worker, seen_at)
    return {claim.id}


def found(ledger: Ledger, place: RayPlace, runner: str = "ray") -> set[UUID]:
    return {orphan.id for orphan in ledger.orphans(runner=runner, place=place)}


def test_only_a_worker_of_the_same_ray_finds_what_a_lost_worker_had_there(ledger: Ledger) -> None:
    here, there = on_ray(ledger, "one", HERE), on_ray(ledger, "two", THERE)
    assert found(ledger, HERE) == here
    assert found(ledger, THERE) == there
    # Whatever it is called there.
    assert found(ledger, HERE._replace(address="127.0.0.1:6379/manta")) == here
    # The foremen of another namespace are others.
    assert found(ledger, RayPlace("session_1/other", "here:6379/other")) == set()
    # A Ray of one kind of worker is not asked by the other kind.
    assert found(ledger, HERE, "ray_job") == set()
    # Who has not reached its Ray yet knows where it is.
    assert found(ledger, RayPlace("", HERE.address)) == here
    assert house.stranded(ledger) == [
        house.Stranded("one", "ray", HERE.address, HERE.ray, 1),
        house.Stranded("two", "ray", THERE.address, THERE.ray, 1),
    ]


def test_what_was_on_a_ray_before_it_was_started_anew_is_found_unless_that_one_lives(ledger: Ledger) -> None:
    before = on_ray(ledger, "before", HERE)
    anew = RayPlace("session_3/manta", HERE.address)
    assert found(ledger, anew) == before
    # A worker speaks to it: this address has two meanings.
    on_ray(ledger, "living", RayPlace(HERE.ray, "elsewhere:6379/manta"), is_lost=False)
    assert found(ledger, anew) == set()
    assert house.stranded(ledger) == []


def test_what_never_reached_any_ray_is_found_by_workers_of_all(ledger: Ledger) -> None:
    never = on_ray(ledger, "never", None)
    assert found(ledger, HERE) == found(ledger, THERE) == never
    assert house.stranded(ledger) == []


def test_what_was_on_a_ray_of_a_worker_s_own_went_with_it(ledger: Ledger) -> None:
    gone = on_ray(ledger, "own", RayPlace("session_9/manta", "local"))
    assert found(ledger, HERE) == set()
    assert {orphan.id for orphan in ledger.orphans(runner="")} == gone
    assert house.stranded(ledger) == []


@pytest.mark.parametrize("recovered", [False, True])
def test_a_lost_worker_settles_nothing_and_knows_it(ledger: Ledger, recovered: bool) -> None:
    good, bad = claimed(ledger, 2, worker="late")
    lose(ledger, "late")
    if recovered:
        ledger.recover(forever)
    batch = [settlement(good), settlement(bad, Outcome.FAILED, State.FAILED, output="\0")]
    # Not busy: it would try again for ever.
    assert ledger.settle(batch, "late") == Settled(not_mine=frozenset({good.token, bad.token}))
    assert all(attempt.outcome is Outcome.LOST for run in ledger.fetch([good.id, bad.id]) for attempt in run.history)


def test_an_executor_of_a_lost_worker_may_still_settle_itself(ledger: Ledger) -> None:
    [claim] = claimed(ledger, worker="late")
    lose(ledger, "late")
    assert ledger.settle([settlement(claim)]).moved == {claim.token: State.SUCCESSFUL}


def test_what_a_lost_worker_held_is_ready_again(ledger: Ledger) -> None:
    [claim] = claimed(ledger, worker="late")
    lose(ledger, "late")
    assert ledger.recover(forever) == Settled({claim.token: State.READY})
    run = the(ledger, claim.id)
    assert (run.state, run.attempts, run.worker, run.token) == (State.READY, 1, "", None)
    [attempt] = run.history
    assert (attempt.outcome, attempt.worker) == (Outcome.LOST, "late")
    assert attempt.error_class == f"{TaskLost.__module__}.{TaskLost.__qualname__}"
    assert attempt.error_message == "Worker late was lost while it held the run."
    assert ledger.orphans() == []
    assert ledger.recover(forever) == Settled()
    assert ledger.leave("late")


@pytest.mark.parametrize("max_losses", [1, 3])
def test_a_run_that_vanishes_too_often_is_lost(ledger: Ledger, max_losses: int) -> None:
    [run_id] = enqueue(ledger)
    # The first time nobody knows whose fault it was: it is not charged, but watched.
    for charged in range(max_losses + 2):
        [claim] = ledger.claim(f"worker-{charged}", ["default"], 1)
        assert claim.suspect == (charged > 0)
        assert claim.losses == max(charged - 1, 0)
        for_good = charged == max_losses + 1
        assert ledger.recover(lambda orphan: max_losses).moved == {claim.token: State.LOST if for_good else State.READY}
    run = the(ledger, run_id)
    assert (run.state, run.losses, len(run.history)) == (State.LOST, max_losses + 1, max_losses + 2)
    assert f"Worker worker-{charged} was lost while it held the run." in run.reason


def test_what_must_never_start_twice_is_lost_at_once(ledger: Ledger) -> None:
    [claim] = claimed(ledger, worker="gone")
    assert ledger.recover(lambda orphan: 0).moved == {claim.token: State.LOST}


def test_a_suspect_that_comes_through_is_no_longer_one(ledger: Ledger) -> None:
    claimed(ledger, worker="gone")
    ledger.recover(forever)
    [suspect] = ledger.claim("worker", ["default"], 1)
    assert suspect.suspect
    ledger.settle([settlement(suspect, Outcome.RETURNED, State.READY)])
    [still] = ledger.claim("worker", ["default"], 1)
    assert still.suspect
    ledger.settle([settlement(still, Outcome.FAILED, State.READY)])
    [cleared] = ledger.claim("worker", ["default"], 1)
    assert not cleared.suspect


def test_a_run_that_was_to_be_cancelled_is_when_its_worker_is_lost(ledger: Ledger) -> None:
    [claim] = claimed(ledger, worker="late")
    ledger.cancel([claim.id], reason="Stop.")
    lose(ledger, "late")
    assert ledger.recover(forever).moved == {claim.token: State.CANCELLED}
    assert the(ledger, claim.id).reason == "Stop."


def test_recovery_asks_for_each_run_how_much_it_bears(ledger: Ledger) -> None:
    tough, frail = claimed(ledger, 2, worker="gone")
    settled = ledger.recover(lambda orphan: 5 if orphan.id == tough.id else 0)
    assert settled.moved == {tough.token: State.READY, frail.token: State.LOST}


def test_recovery_can_be_of_one_worker_and_bounded(ledger: Ledger) -> None:
    one = claimed(ledger, 3, worker="one")
    two = claimed(ledger, 3, worker="two")
    assert set(ledger.recover(forever, "two", limit=2).moved) == {claim.token for claim in two[:2]}
    rest = {claim.token for claim in [*one, two[2]]}
    assert set(ledger.recover(forever).moved) == rest


def test_what_was_adopted_before_it_could_be_recovered_is_left_alone(ledger: Ledger) -> None:
    [claim] = claimed(ledger, worker="late")
    lose(ledger, "late")
    ledger.register(worker_record("heir"))

    def adopted_meanwhile(orphan: object) -> int:
        assert ledger.adopt([(claim.id, claim.token)], "late", "heir") == {claim.token}
        return 3

    assert ledger.recover(adopted_meanwhile) == Settled(not_mine=frozenset({claim.token}))
    run = the(ledger, claim.id)
    assert (run.state, run.worker, run.token, run.losses) == (State.RUNNING, "heir", claim.token, 0)


def test_what_settled_itself_before_it_could_be_recovered_is_left_alone(ledger: Ledger) -> None:
    [claim] = claimed(ledger, worker="late")
    lose(ledger, "late")

    def settled_meanwhile(orphan: object) -> int:
        ledger.settle([settlement(claim)])
        return 3

    assert ledger.recover(settled_meanwhile) == Settled(not_mine=frozenset({claim.token}))
    assert state_of(ledger, claim.id) is State.SUCCESSFUL


# -- adoption ------------------------------------------------------------------------------------


def test_the_token_survives_an_adoption(ledger: Ledger) -> None:
    claims = claimed(ledger, 3, worker="former")
    ledger.cancel([claims[1].id])
    taken = ledger.adopt([(claim.id, claim.token) for claim in claims[:2]], "former", "heir")
    assert taken == {claim.token for claim in claims[:2]}
    assert [run.worker for run in ledger.fetch(claim.id for claim in claims)] == ["heir", "heir", "former"]
    assert [run.token for run in ledger.fetch(claim.id for claim in claims)] == [claim.token for claim in claims]
    assert ledger.settle([settlement(claims[0])], "former") == Settled({}, frozenset({claims[0].token}))
    assert ledger.settle([settlement(claims[0])], "heir").moved == {claims[0].token: State.SUCCESSFUL}
    assert the(ledger, claims[0].id).history[0].worker == "heir"


def test_a_stale_execution_is_not_adopted(ledger: Ledger) -> None:
    [claim] = claimed(ledger, worker="former")
    ledger.settle([settlement(claim, Outcome.LOST, State.READY)])
    assert ledger.adopt([(claim.id, claim.token)], "former", "heir") == set()
    [again] = ledger.claim("former", ["default"], 1)
    assert ledger.adopt([(claim.id, claim.token)], "former", "heir") == set()
    run = the(ledger, claim.id)
    assert (run.worker, run.token) == ("former", again.token)


def test_only_what_the_former_owner_holds_is_adopted(ledger: Ledger) -> None:
    [claim] = claimed(ledger, worker="third")
    assert ledger.adopt([(claim.id, claim.token)], "former", "heir") == set()
    assert ledger.adopt([], "third", "heir") == set()
    assert the(ledger, claim.id).worker == "third"


def test_crossed_tokens_adopt_nothing(ledger: Ledger) -> None:
    first, second = claimed(ledger, 2, worker="former")
    assert ledger.adopt([(first.id, second.token), (second.id, first.token)], "former", "heir") == set()


def test_a_suspect_is_charged_only_if_its_worker_had_nothing_waiting(ledger: Ledger) -> None:
    """A worker takes on suspects with nothing behind them: with more in hand than it can start, it died of others."""
    enqueue(ledger, 5)
    assert len(ledger.claim("first", ["default"], 5)) == 5
    lose(ledger, "first", slots=2)
    ledger.recover(forever)
    crowd = ledger.claim("second", ["default"], 5)
    assert all(claim.suspect and not claim.losses for claim in crowd)
    lose(ledger, "second", slots=2)
    ledger.recover(forever)
    assert [the(ledger, claim.id).losses for claim in crowd] == [0] * 5
    pair = ledger.claim("third", ["default"], 2)
    lose(ledger, "third", slots=2)
    ledger.recover(forever)
    assert [the(ledger, claim.id).losses for claim in pair] == [1, 1]
