"""Settle, tell who waited, and claim what became ready by it: all of it in one transaction, or none."""

import threading
from collections.abc import Iterator, Sequence

import pytest
from django.db import OperationalError

from django_manta.ledger import Ledger, fsck, graph, marks, own_session, settling
from django_manta.ledger.claiming import Along, Wanted
from django_manta.ledger.marks import Marks
from django_manta.ledger.session import Row
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


def asked(limit: int = 10, queues: tuple[str, ...] = ("default",), kind: type[Along] = Along) -> Along:
    """What a worker with room for so many would ask for."""
    return kind([Wanted("worker", queues, limit)])


def test_what_became_ready_is_claimed_along(own: Ledger) -> None:
    [first] = claimed(own)
    next_one = dependent(own, first.id)
    settled = own.settle_and_claim([settlement(first)], "worker", asked())
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


def test_what_else_is_ready_is_claimed_along(own: Ledger) -> None:
    """Whoever has room would ask for it next. It was sent before anybody knew that nothing became ready."""
    first, second = claimed(own, 2)
    both, later = dependent(own, first.id, second.id), dependent(own, first.id, run_after=HOUR)
    [other] = enqueue(own)
    settled = own.settle_and_claim([settlement(first)], "worker", along := asked())
    assert settled is not None
    assert settled.claims is not None
    assert [claim.id for claim in settled.claims] == [other]
    assert (along.claims, along.is_open, settled.ready) == ([settled.claims], False, frozenset())
    assert [state_of(own, each) for each in (both, later)] == [State.WAITING, State.SCHEDULED]
    assert fsck.check(own) == []


def test_claims_for_several_wishes_are_told_apart(own: Ledger) -> None:
    [first] = claimed(own)
    here, there = dependent(own, first.id), dependent(own, first.id, queue="elsewhere")
    along = Along([Wanted("worker", ["elsewhere"], 10), Wanted("worker", ["default", "empty"], 10)])
    settled = own.settle_and_claim([settlement(first)], "worker", along)
    assert settled is not None
    assert along.claims is not None
    assert [[claim.id for claim in claims] for claims in along.claims] == [[there], [here]]


def test_what_was_tried_before_brings_its_history(own: Ledger) -> None:
    first, second = claimed(own, 2)
    own.settle([settlement(second, Outcome.FAILED, State.READY)], "worker")
    dependent(own, first.id)
    settled = own.settle_and_claim([settlement(first)], "worker", asked())
    assert settled is not None
    assert settled.claims is not None
    histories = {claim.id: [each.outcome for each in claim.history] for claim in settled.claims}
    assert histories[second.id] == [Outcome.FAILED]


def test_what_cannot_be_completed_is_committed_and_nobody_knows_of_it(
    own: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker gives it back: see Worker._reconcile()."""
    first, second = claimed(own, 2)
    own.settle([settlement(second, Outcome.FAILED, State.READY)], "worker")
    waiting = dependent(own, first.id)

    def history(ids: object) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(own, "history", history)
    settled = own.settle_and_claim([settlement(first)], "worker", along := asked())
    assert settled is not None
    assert (settled.moved, settled.claims, along.is_open) == ({first.token: State.SUCCESSFUL}, None, True)
    monkeypatch.undo()
    assert [state_of(own, each) for each in (second.id, waiting)] == [State.RUNNING] * 2


def test_what_is_not_claimed_is_for_others(own: Ledger) -> None:
    [first] = claimed(own)
    here, there = dependent(own, first.id), dependent(own, first.id, queue="elsewhere")
    settled = own.settle_and_claim([settlement(first)], "worker", asked())
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
    settled = own.settle_and_claim([settlement(first), failed], "worker", asked())
    assert settled is not None
    # When it is committed: these are judged otherwise, and so is who waits for what ends by that.
    assert (settled.claims, settled.ready) == ([], {"default"})
    assert set(settled.ended) == {strict}
    assert state_of(own, strict) is State.UPSTREAM_FAILED
    assert [state_of(own, each) for each in (whatever, any_one, after_strict)] == [State.READY] * 3
    assert fsck.check(own) == []


def test_of_very_many_the_rest_is_told_afterwards(own: Ledger) -> None:
    [first] = claimed(own)
    ids = enqueue(own, graph.TELL_BATCH + 50, waits=True)
    graph.add(
        own, [graph.NewGate(each) for each in ids], [graph.Edge(each, first.id, graph.Role.AFTER) for each in ids]
    )
    graph.arm(own, ids)
    settled = own.settle_and_claim([settlement(first)], "worker", asked())
    assert settled is not None
    assert settled.claims is not None
    assert (len(settled.claims), settled.ready) == (10, {"default"})
    assert {state_of(own, each) for each in ids} == {State.READY, State.RUNNING}
    assert fsck.check(own) == []


def test_one_bad_outcome_undoes_it_all_and_its_neighbours_are_settled_without_it(own: Ledger) -> None:
    good, bad = claimed(own, 2)
    waiting = dependent(own, good.id)
    told = [settlement(good), settlement(bad, result="\0")]
    assert own.settle_and_claim(told, "worker", along := asked()) is None
    assert not along.is_open
    assert [state_of(own, each) for each in (good.id, bad.id, waiting)] == [State.RUNNING] * 2 + [State.WAITING]
    assert own.settle(told, "worker").moved == {good.token: State.SUCCESSFUL, bad.token: State.FAILED}


def test_a_claim_that_fails_undoes_the_settlement(own: Ledger) -> None:
    [first] = claimed(own)
    waiting = dependent(own, first.id)
    # PostgreSQL refuses a limit of less than none.
    assert own.settle_and_claim([settlement(first)], "worker", along := asked(limit=-1)) is None
    assert not along.is_open
    assert [state_of(own, each) for each in (first.id, waiting)] == [State.RUNNING, State.WAITING]
    assert own.settle([settlement(first)], "worker").moved == {first.token: State.SUCCESSFUL}


def test_behind_a_pooler_it_is_the_same(committed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """There it is said one by one, through psycopg."""
    monkeypatch.setattr("django_manta.ledger.preparing.is_pooled", lambda connection: True)
    session = own_session()
    pooled = Ledger(session)
    pooled.register(worker_record())
    [first] = claimed(pooled)
    waiting = dependent(pooled, first.id)
    assert pooled.settle_and_claim([settlement(first)], "worker", asked(limit=-1)) is None
    assert [state_of(pooled, each) for each in (first.id, waiting)] == [State.RUNNING, State.WAITING]
    settled = pooled.settle_and_claim([settlement(first)], "worker", asked())
    assert settled is not None
    assert settled.claims is not None
    assert [claim.id for claim in settled.claims] == [waiting]
    session.close()


def test_who_is_held_for_a_moment_is_told_after_the_commit(own: Ledger, other_ledger: Ledger) -> None:
    """As a join is by whoever tells it of another run."""
    [first] = claimed(own)
    held, free = dependent(own, first.id), dependent(own, first.id)
    holding = other_ledger.session.transaction()
    holding.__enter__()
    sql(other_ledger, "SELECT FROM manta_run WHERE id = %s FOR UPDATE", [held])

    class LettingGo(Along):
        def read(self, ledger: Ledger, answers: Sequence[Sequence[Row]], seconds: float) -> None:
            holding.__exit__(None, None, None)
            super().read(ledger, answers, seconds)

    settled = own.settle_and_claim([settlement(first)], "worker", asked(kind=LettingGo))
    assert settled is not None
    assert [state_of(own, each) for each in (free, held)] == [State.RUNNING, State.READY]
    assert settled.ready == {"default"}
    assert fsck.check(own) == []


def test_a_connection_that_is_cut_undoes_it_all_and_says_so(own: Ledger, other_ledger: Ledger) -> None:
    [first] = claimed(own)
    waiting = dependent(own, first.id)
    [[backend]] = sql(own, "SELECT pg_backend_pid()")
    with other_ledger.session.transaction():
        sql(other_ledger, "LOCK TABLE manta_attempt IN ACCESS EXCLUSIVE MODE")
        cutting = threading.Timer(0.3, lambda: _cut(backend))
        cutting.start()
        with pytest.raises(OperationalError):
            own.settle_and_claim([settlement(first)], "worker", along := asked())
        cutting.join()
    # Nobody has said what became of it.
    assert along.is_open
    assert [state_of(other_ledger, each) for each in (first.id, waiting)] == [State.RUNNING, State.WAITING]
    assert fsck.check(other_ledger) == []


def _cut(backend: int) -> None:
    session = own_session()
    sql(Ledger(session), "SELECT pg_terminate_backend(%s, 5000)", [backend])
    session.close()


def test_who_is_held_by_somebody_is_told_later(own: Ledger, other_ledger: Ledger) -> None:
    [first] = claimed(own)
    held, free = dependent(own, first.id), dependent(own, first.id)
    with other_ledger.session.transaction():
        sql(other_ledger, "SELECT FROM manta_run WHERE id = %s FOR UPDATE", [held])
        settled = own.settle_and_claim([settlement(first)], "worker", asked())
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
        settled = own.settle_and_claim([settlement(each) for each in (held, gone, free)], "worker", asked())
    assert settled is not None
    assert settled.claims is not None
    assert (settled.busy, settled.not_mine) == ({held.token}, {gone.token})
    assert [claim.id for claim in settled.claims] == waiting[2:]


def test_a_worker_that_lost_its_lease_settles_and_claims_nothing(own: Ledger) -> None:
    [first] = claimed(own)
    dependent(own, first.id)
    enqueue(own)
    assert own.mark_lost("worker", *sql(own, "SELECT seen_at FROM manta_worker")[0])
    settled = own.settle_and_claim([settlement(first)], "worker", asked())
    assert settled is not None
    assert (settled.moved, settled.not_mine, settled.claims) == ({}, {first.token}, [])


def test_inside_a_transaction_and_for_what_waits_it_is_not_for(own: Ledger) -> None:
    [first, second] = claimed(own, 2)
    with own.session.transaction():
        assert own.settle_and_claim([settlement(first)], "worker", asked()) is None
    later = settlement(second, Outcome.DEFERRED, State.WAITING, after=(first.id,))
    assert own.settle_and_claim([later], "worker", asked()) is None
    assert [state_of(own, each.id) for each in (first, second)] == [State.RUNNING] * 2


def test_it_tells_only_of_what_it_has_moved_itself(own: Ledger, other_ledger: Ledger) -> None:
    """Of a run that somebody else is moving he has to tell: his herald must not go before he has."""
    free, held = claimed(own, 2)
    here, there = dependent(own, free.id), dependent(own, held.id)
    sql(own, "INSERT INTO manta_herald (run_id) VALUES (%s)", [held.id])
    with other_ledger.session.transaction():
        sql(other_ledger, "SELECT FROM manta_run WHERE id = %s FOR UPDATE", [held.id])
        settled = own.settle_and_claim([settlement(free), settlement(held)], "worker", asked())
        assert settled is not None
        assert (settled.busy, state_of(own, here)) == ({held.token}, State.RUNNING)
    assert sql(own, "SELECT run_id FROM manta_herald") == [(held.id,)]
    assert state_of(own, there) is State.WAITING


def test_a_herald_that_somebody_has_left_before_has_nothing_more_to_tell(own: Ledger) -> None:
    [first] = claimed(own)
    waiting = dependent(own, first.id)
    sql(own, "INSERT INTO manta_herald (run_id) VALUES (%s)", [first.id])
    settled = own.settle_and_claim([settlement(first)], "worker", asked())
    assert settled is not None
    assert settled.claims is not None
    assert [claim.id for claim in settled.claims] == [waiting]
    assert graph.tell_leftovers(own).states == {}
    assert sql(own, "SELECT run_id FROM manta_herald") == []
    assert fsck.check(own) == []


def test_who_was_called_for_it_before_is_told_after_the_commit(own: Ledger) -> None:
    """It ended, was reopened and ends again: that is a reason to be called again, and counted otherwise."""
    [first] = claimed(own)
    waiting = dependent(own, first.id)
    sql(own, "UPDATE manta_dependency SET called = true")
    sql(own, "UPDATE manta_gate SET consumed = 1")
    settled = own.settle_and_claim([settlement(first)], "worker", asked())
    assert settled is not None
    assert (settled.claims, settled.ready) == ([], {"default"})
    assert state_of(own, waiting) is State.READY
    assert sql(own, "SELECT consumed FROM manta_gate") == [(0,)]
    assert fsck.check(own) == []


def test_what_ended_otherwise_before_is_told_after_the_commit(own: Ledger) -> None:
    """It failed, of which somebody was told, was reopened and ends well, before anybody told of that."""
    [first] = claimed(own)
    whatever = dependent(own, first.id, when=When.ALL_FINISHED)
    sql(own, "UPDATE manta_dependency SET told = true, met = false")
    sql(own, "UPDATE manta_gate SET pending_after = 0, bad_after = 1")
    settled = own.settle_and_claim([settlement(first)], "worker", asked())
    assert settled is not None
    assert sql(own, "SELECT met FROM manta_dependency") == [(True,)]
    assert state_of(own, whatever) in (State.READY, State.RUNNING)
    assert sql(own, "SELECT run_id FROM manta_herald") == []


@pytest.mark.parametrize("altered", ["[1]", "[[0, 1]]", "no json"])
def test_references_that_somebody_has_altered_keep_nobody_from_claiming(own: Ledger, altered: str) -> None:
    """Their executor refuses them: the signature covers them."""
    first, second = claimed(own, 2)
    waiting = dependent(own, first.id)
    sql(own, "UPDATE manta_run SET refs = %s WHERE id = %s", [altered, waiting])
    settled = own.settle_and_claim([settlement(first)], "worker", asked())
    assert settled is not None
    assert settled.claims is not None
    assert [claim.id for claim in settled.claims] == [waiting]
    own.settle([settlement(settled.claims[0], Outcome.RETURNED, State.READY)], "worker")
    assert [claim.id for claim in own.claim("worker", ["default"], 10)] == [waiting]
    assert state_of(own, second.id) is State.RUNNING


def test_if_nobody_can_say_what_became_of_one_the_others_are_settled_all_the_same(
    own: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, gone = claimed(own, 2)
    dependent(own, first.id)
    own.settle([settlement(gone, Outcome.RETURNED, State.READY)], "worker")
    own.hold([gone.id])

    def standing(*args: object) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(settling, "_standing", standing)
    settled = own.settle_and_claim([settlement(first), settlement(gone)], "worker", asked())
    assert settled is not None
    assert (settled.moved, settled.busy) == ({first.token: State.SUCCESSFUL}, {gone.token})
    assert settled.claims is not None
    assert len(settled.claims) == 1


def test_what_is_slow_in_company_is_measured_by_itself_before_it_is_called_dear(
    own: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit or a settlement that took its time says nothing of the claim that was sent along with it."""
    # So much that no claim takes as long, however busy the machine is.
    monkeypatch.setattr(marks, "CHEAP_SECONDS", 60.0)
    mine, wanted = Marks(), [Wanted("worker", ["default"], 10)]
    mine.looked("default", (), 600.0, full=False, in_company=True)
    assert not mine.is_dear("default")
    assert not mine.hold("default")
    assert Along.of(wanted, mine) is None
    own.claim("worker", ["default"], 10, marks=mine)
    assert Along.of(wanted, mine) is not None
    mine.looked("default", (), 600.0, full=False)
    assert mine.is_dear("default")
    assert Along.of(wanted, mine) is None
