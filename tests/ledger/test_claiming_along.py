"""Settle, tell who waited, and claim what became ready by it: all of it in one transaction, or none."""

from collections.abc import Iterator

import pytest
from django.db import DatabaseError, OperationalError

from django_manta.ledger import Claimed, Ledger, fsck, graph, own_session
from django_manta.states import Outcome, State, When
from tests.ledger.given import HOUR, claimed, dependent, enqueue, settlement, sql, state_of, worker_record

pytestmark = pytest.mark.postgres


@pytest.fixture
def own(committed: None) -> Iterator[Ledger]:
    session = own_session()
    ledger = Ledger(session)
    ledger.register(worker_record())
    yield ledger
    session.close()


class Fetch:
    """Claims as a worker would, and remembers that it did."""

    def __init__(self, ledger: Ledger, worker: str = "worker", queues: tuple[str, ...] = ("default",)) -> None:
        self.ledger, self.worker, self.queues = ledger, worker, queues
        self.calls = 0

    def __call__(self) -> list[Claimed]:
        self.calls += 1
        return self.ledger.claim(self.worker, self.queues, 10)


def test_what_became_ready_is_claimed_along(own: Ledger) -> None:
    [first] = claimed(own)
    next_one = dependent(own, first.id)
    settled = own.settle_and_claim([settlement(first)], "worker", Fetch(own))
    assert settled is not None
    assert settled.claims is not None
    assert (settled.moved, [claim.id for claim in settled.claims]) == ({first.token: State.SUCCESSFUL}, [next_one])
    # Nothing is left that others would have to hear of.
    assert (settled.ready, settled.heralds) == (frozenset(), ())
    assert [state_of(own, each) for each in (first.id, next_one)] == [State.SUCCESSFUL, State.RUNNING]
    assert fsck.check(own) == []


def test_a_claim_says_whether_somebody_waits(own: Ledger) -> None:
    awaited, alone = enqueue(own, 2)
    dependent(own, awaited)
    claims = {claim.id: claim for claim in own.claim("worker", ["default"], 2)}
    assert (claims[awaited].dependents, claims[alone].dependents) == (True, False)


def test_where_nothing_became_ready_nothing_is_claimed(own: Ledger) -> None:
    """Whoever waits for the end of a run should not wait for that as well."""
    first, second = claimed(own, 2)
    both, later = dependent(own, first.id, second.id), dependent(own, first.id, run_after=HOUR)
    enqueue(own)
    fetch = Fetch(own)
    settled = own.settle_and_claim([settlement(first)], "worker", fetch)
    assert settled is not None
    assert (settled.claims, settled.ready, fetch.calls) == (None, frozenset(), 0)
    assert [state_of(own, each) for each in (both, later)] == [State.WAITING, State.SCHEDULED]
    assert fsck.check(own) == []


def test_what_is_not_claimed_is_for_others(own: Ledger) -> None:
    [first] = claimed(own)
    here, there = dependent(own, first.id), dependent(own, first.id, queue="elsewhere")
    settled = own.settle_and_claim([settlement(first)], "worker", Fetch(own))
    assert settled is not None
    assert settled.claims is not None
    assert [claim.id for claim in settled.claims] == [here]
    assert "elsewhere" in settled.ready
    assert state_of(own, there) is State.READY


def test_who_waits_in_another_way_is_told_as_well(own: Ledger) -> None:
    first, second = claimed(own, 2)
    strict, whatever = dependent(own, second.id), dependent(own, second.id, when=When.ALL_FINISHED)
    any_one = dependent(own, first.id, second.id, when=When.ANY_SUCCESSFUL)
    after_strict = dependent(own, strict, when=When.ANY_FINISHED)
    failed = settlement(second, Outcome.FAILED, State.FAILED)
    settled = own.settle_and_claim([settlement(first), failed], "worker", Fetch(own))
    assert settled is not None
    assert settled.claims is not None
    assert {claim.id for claim in settled.claims} >= {whatever, any_one}
    assert set(settled.ended) == {strict}
    # Who waits for what ended by that is told when it is committed.
    assert state_of(own, strict) is State.UPSTREAM_FAILED
    assert state_of(own, after_strict) in (State.READY, State.RUNNING)
    assert state_of(own, after_strict) is State.RUNNING or settled.ready == {"default"}
    assert fsck.check(own) == []


def test_of_very_many_the_rest_is_told_afterwards(own: Ledger) -> None:
    [first] = claimed(own)
    ids = enqueue(own, graph.TELL_BATCH + 50, waits=True)
    graph.add(
        own, [graph.NewGate(each) for each in ids], [graph.Edge(each, first.id, graph.Role.AFTER) for each in ids]
    )
    graph.arm(own, ids)
    settled = own.settle_and_claim([settlement(first)], "worker", Fetch(own))
    assert settled is not None
    assert settled.claims is not None
    assert (len(settled.claims), settled.ready) == (10, {"default"})
    assert {state_of(own, each) for each in ids} == {State.READY, State.RUNNING}
    assert fsck.check(own) == []


def test_one_bad_outcome_undoes_it_all_and_its_neighbours_are_settled_without_it(own: Ledger) -> None:
    good, bad = claimed(own, 2)
    waiting = dependent(own, good.id)
    told = [settlement(good), settlement(bad, result="\0")]
    fetch = Fetch(own)
    assert own.settle_and_claim(told, "worker", fetch) is None
    assert [state_of(own, each) for each in (good.id, bad.id, waiting)] == [State.RUNNING] * 2 + [State.WAITING]
    assert own.settle(told, "worker").moved == {good.token: State.SUCCESSFUL, bad.token: State.FAILED}


def test_a_claim_that_fails_undoes_the_settlement(own: Ledger) -> None:
    [first] = claimed(own)
    waiting = dependent(own, first.id)

    def fail() -> list[Claimed]:
        with pytest.raises(DatabaseError):
            sql(own, "SELECT 1 / 0")
        # Somebody passed over it: the server will roll back where it is asked to commit.
        return []

    assert own.settle_and_claim([settlement(first)], "worker", fail) is None
    assert [state_of(own, each) for each in (first.id, waiting)] == [State.RUNNING, State.WAITING]
    assert own.settle([settlement(first)], "worker").moved == {first.token: State.SUCCESSFUL}


def test_behind_a_pooler_a_claim_that_fails_undoes_the_settlement_as_well(
    committed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There psycopg ends the transaction, and does not hear that the server has rolled it back."""
    monkeypatch.setattr("django_manta.ledger.preparing.is_pooled", lambda connection: True)
    session = own_session()
    pooled = Ledger(session)
    pooled.register(worker_record())
    [first] = claimed(pooled)
    waiting = dependent(pooled, first.id)

    def fail() -> list[Claimed]:
        claims = pooled.claim("worker", ["default"], 10)
        with pytest.raises(DatabaseError):
            sql(pooled, "SELECT 1 / 0")
        return claims

    assert pooled.settle_and_claim([settlement(first)], "worker", fail) is None
    assert [state_of(pooled, each) for each in (first.id, waiting)] == [State.RUNNING, State.WAITING]
    session.close()


def test_who_is_held_for_a_moment_is_told_after_the_commit(own: Ledger, other_ledger: Ledger) -> None:
    """As a join is by whoever tells it of another run."""
    [first] = claimed(own)
    held, free = dependent(own, first.id), dependent(own, first.id)
    holding = other_ledger.session.transaction()
    holding.__enter__()
    sql(other_ledger, "SELECT FROM manta_run WHERE id = %s FOR UPDATE", [held])

    def let_go() -> list[Claimed]:
        holding.__exit__(None, None, None)
        return own.claim("worker", ["default"], 1)

    settled = own.settle_and_claim([settlement(first)], "worker", let_go)
    assert settled is not None
    assert [state_of(own, each) for each in (free, held)] == [State.RUNNING, State.READY]
    assert settled.ready == {"default"}
    assert fsck.check(own) == []


def test_a_connection_that_is_cut_undoes_it_all_and_says_so(own: Ledger, other_ledger: Ledger) -> None:
    [first] = claimed(own)
    waiting = dependent(own, first.id)

    def cut() -> list[Claimed]:
        claims = own.claim("worker", ["default"], 10)
        [[backend]] = sql(own, "SELECT pg_backend_pid()")
        sql(other_ledger, "SELECT pg_terminate_backend(%s, 5000)", [backend])
        return claims

    with pytest.raises(OperationalError):
        own.settle_and_claim([settlement(first)], "worker", cut)
    assert [state_of(other_ledger, each) for each in (first.id, waiting)] == [State.RUNNING, State.WAITING]
    assert fsck.check(other_ledger) == []


def test_who_is_held_by_somebody_is_told_later(own: Ledger, other_ledger: Ledger) -> None:
    [first] = claimed(own)
    held, free = dependent(own, first.id), dependent(own, first.id)
    with other_ledger.session.transaction():
        sql(other_ledger, "SELECT FROM manta_run WHERE id = %s FOR UPDATE", [held])
        settled = own.settle_and_claim([settlement(first)], "worker", Fetch(own))
        assert settled is not None
        assert settled.claims is not None
        assert [claim.id for claim in settled.claims] == [free]
    assert state_of(own, held) is State.WAITING
    assert graph.tell_leftovers(own).states == {held: State.READY}
    assert fsck.check(own) == []


def test_what_is_held_is_settled_later_and_what_is_not_ours_never(own: Ledger, other_ledger: Ledger) -> None:
    held, gone, free = claimed(own, 3)
    waiting = [dependent(own, each.id) for each in (held, gone, free)]
    own.settle([settlement(gone, Outcome.RETURNED, State.READY)], "worker")
    own.hold([gone.id])
    with other_ledger.session.transaction():
        sql(other_ledger, "SELECT FROM manta_run WHERE id = %s FOR UPDATE", [held.id])
        settled = own.settle_and_claim([settlement(each) for each in (held, gone, free)], "worker", Fetch(own))
    assert settled is not None
    assert settled.claims is not None
    assert (settled.busy, settled.not_mine) == ({held.token}, {gone.token})
    assert [claim.id for claim in settled.claims] == waiting[2:]


def test_a_worker_that_lost_its_lease_settles_and_claims_nothing(own: Ledger) -> None:
    [first] = claimed(own)
    dependent(own, first.id)
    assert own.mark_lost("worker", *sql(own, "SELECT seen_at FROM manta_worker")[0])
    fetch = Fetch(own)
    settled = own.settle_and_claim([settlement(first)], "worker", fetch)
    assert settled is not None
    assert (settled.moved, settled.not_mine, settled.claims, fetch.calls) == ({}, {first.token}, None, 0)


def test_inside_a_transaction_and_for_what_waits_it_is_not_for(own: Ledger) -> None:
    [first, second] = claimed(own, 2)
    with own.session.transaction():
        assert own.settle_and_claim([settlement(first)], "worker", Fetch(own)) is None
    later = settlement(second, Outcome.DEFERRED, State.WAITING, after=(first.id,))
    assert own.settle_and_claim([later], "worker", Fetch(own)) is None
    assert [state_of(own, each.id) for each in (first, second)] == [State.RUNNING] * 2


def test_it_tells_only_of_what_it_has_moved_itself(own: Ledger, other_ledger: Ledger) -> None:
    """Of a run that somebody else is moving he has to tell: his herald must not go before he has."""
    free, held = claimed(own, 2)
    here, there = dependent(own, free.id), dependent(own, held.id)
    sql(own, "INSERT INTO manta_herald (run_id) VALUES (%s)", [held.id])
    with other_ledger.session.transaction():
        sql(other_ledger, "SELECT FROM manta_run WHERE id = %s FOR UPDATE", [held.id])
        settled = own.settle_and_claim([settlement(free), settlement(held)], "worker", Fetch(own))
        assert settled is not None
        assert (settled.busy, state_of(own, here)) == ({held.token}, State.RUNNING)
    assert sql(own, "SELECT run_id FROM manta_herald") == [(held.id,)]
    assert state_of(own, there) is State.WAITING


def test_where_somebody_has_left_a_herald_before_it_is_told_after_the_commit(own: Ledger) -> None:
    [first] = claimed(own)
    waiting = dependent(own, first.id)
    sql(own, "INSERT INTO manta_herald (run_id) VALUES (%s)", [first.id])
    fetch = Fetch(own)
    settled = own.settle_and_claim([settlement(first)], "worker", fetch)
    assert settled is not None
    assert (settled.claims, settled.ready, fetch.calls) == (None, {"default"}, 0)
    assert state_of(own, waiting) is State.READY
    assert sql(own, "SELECT run_id FROM manta_herald") == []
    assert fsck.check(own) == []
