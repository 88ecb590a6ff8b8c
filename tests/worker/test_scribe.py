"""Many outcomes are settled by a thread of their own, while the loop goes on."""

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError

from django_manta.ledger import Claimed, Ledger, Settled, own_session
from django_manta.states import State
from django_manta.worker import scribe, settling
from django_manta.worker.scribe import Scribe
from django_manta.worker.settling import BATCH, FULL, FULL_BYTES, MANY, WORTHWHILE, Settler, Waiting
from tests.ledger.given import claimed, dependent, settlement, sql, state_of

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True, available_apps=["django_manta"])]


class Desk:
    """A settler and its scribe, and a bell that tells when there is something to collect."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.settler = Settler("worker", Scribe("default", self.done.set))

    def add(self, *claims: Claimed) -> None:
        for claim in claims:
            self.settler.add(claim, settlement(claim), 0.0)

    def collected(self) -> dict[int, State | None]:
        assert self.done.wait(20)
        self.done.clear()
        return {claim.token: state for claim, _, state in self.settler.collect(0.0)}


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.settler.close(5)


def test_many_are_settled_elsewhere_and_few_at_once(ledger: Ledger, desk: Desk) -> None:
    *few, last = claimed(ledger, MANY)
    desk.add(*few)
    assert not desk.settler.has_many
    assert len(desk.settler.flush(ledger, 0.0)) == len(few)
    many = [last, *claimed(ledger, MANY - 1)]
    desk.add(*many)
    assert desk.settler.has_many
    assert desk.settler.flush(ledger, 0.0) == []
    # Until it is collected it is not forgotten, and nothing else is settled.
    assert len(desk.settler) == MANY
    assert last.token in desk.settler
    assert desk.settler.next_time() is None
    assert desk.collected() == {claim.token: State.SUCCESSFUL for claim in many}
    assert (len(desk.settler), last.token in desk.settler) == (0, False)


def test_what_comes_meanwhile_waits_its_turn(ledger: Ledger, desk: Desk) -> None:
    first, second = claimed(ledger, BATCH), claimed(ledger, 1)
    desk.add(*first)
    assert desk.settler.flush(ledger, 0.0) == []
    desk.add(*second)
    assert desk.settler.flush(ledger, 0.0) == []
    assert state_of(ledger, second[0].id) is State.RUNNING
    assert len(desk.collected()) == BATCH
    assert [claim.token for claim, _, _ in desk.settler.flush(ledger, 0.0)] == [second[0].token]


def test_the_next_batch_is_there_when_the_first_is_done(ledger: Ledger, desk: Desk) -> None:
    """While the loop claims nobody could hand it over."""
    first, second, third = claimed(ledger, MANY), claimed(ledger, WORTHWHILE), claimed(ledger, WORTHWHILE)
    rival = own_session()
    other = Ledger(rival)
    with other.session.transaction():
        # As long as somebody holds it in this way, nobody settles anything.
        sql(other, "LOCK TABLE manta_attempt IN ACCESS EXCLUSIVE MODE")
        desk.add(*first)
        desk.settler.flush(ledger, 0.0)
        desk.add(*second[1:])
        assert desk.settler.next_time() is None, "too few to go without company"
        desk.add(second[0])
        assert desk.settler.next_time() == 0.0
        assert desk.settler.flush(ledger, 0.0) == []
        assert second[0].token in desk.settler
        desk.add(*third)
        assert desk.settler.next_time() is None, "two are enough"
        assert desk.settler.flush(ledger, 0.0) == []
        assert len(desk.settler) == MANY + 2 * WORTHWHILE
    rival.close()
    collected: dict[int, State | None] = {}
    while len(collected) < MANY + WORTHWHILE:
        collected |= desk.collected()
    assert collected == {claim.token: State.SUCCESSFUL for claim in (*first, *second)}
    assert desk.settler.next_time() == 0.0
    assert desk.settler.flush(ledger, 0.0) == []
    assert len(desk.collected()) == WORTHWHILE


class Refusing:
    """Stands where the scribe gets its connection: does what it is told, the first time only when it may."""

    def __init__(self, *answers: BaseException | None) -> None:
        self.go = threading.Event()
        self._answers = list(answers)

    def __call__(self, database: str) -> Any:
        assert self.go.wait(20)
        if (answer := self._answers.pop(0)) is not None:
            raise answer
        return own_session(database)


TOO_MANY = OperationalError("too many connections for role")


def test_if_the_first_could_not_be_settled_both_are_left_to_the_loop_and_half_of_the_first_goes_first(
    ledger: Ledger, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may be there for the loop, and the scribe would try for seconds."""
    refusing = Refusing(TOO_MANY)
    monkeypatch.setattr(scribe, "own_session", refusing)
    first, second = claimed(ledger, MANY), claimed(ledger, WORTHWHILE)
    for batch in (first, second):
        desk.add(*batch)
        desk.settler.flush(ledger, 0.0)
    refusing.go.set()
    while desk.settler._under_way:
        assert desk.collected() == {}
    assert len(desk.settler) == MANY + WORTHWHILE
    monkeypatch.undo()
    # The last one that came back was the second: half of that.
    settled = [claim.token for claim, _, _ in desk.settler.flush(ledger, 0.0)]
    assert len(settled) == WORTHWHILE // 2
    while len(settled) < MANY + WORTHWHILE:
        moved = desk.settler.flush(ledger, 0.0) or desk.settler.collect(0.0)
        settled += [claim.token for claim, _, state in moved if state is State.SUCCESSFUL]
    assert sorted(settled) == sorted(claim.token for claim in (*first, *second))


def test_if_the_second_ends_the_worker_what_was_settled_before_is_told_first(
    ledger: Ledger, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = claimed(ledger, MANY), claimed(ledger, WORTHWHILE)
    thread = desk.settler._scribe
    assert thread is not None
    desk.add(*first)
    desk.settler.flush(ledger, 0.0)
    assert desk.done.wait(20)
    monkeypatch.setattr(Scribe, "_ledger", lambda self: 1 / 0)
    desk.done.clear()
    desk.add(*second)
    desk.settler.flush(ledger, 0.0)
    assert desk.done.wait(20)
    assert len(desk.settler.collect(0.0)) == MANY
    with pytest.raises(ZeroDivisionError):
        desk.settler.collect(0.0)
    assert len(desk.settler) == WORTHWHILE


def test_a_few_that_weigh_much_are_not_left_to_the_loop_while_the_scribe_is_at_work(ledger: Ledger, desk: Desk) -> None:
    first, heavy = claimed(ledger, BATCH), claimed(ledger, WORTHWHILE)
    desk.add(*first)
    desk.settler.flush(ledger, 0.0)
    for claim in heavy:
        desk.settler.add(claim, settlement(claim, result='"' + "x" * 2**19 + '"'), 0.0)
    assert desk.settler.next_time() == 0.0
    assert desk.settler.flush(ledger, 0.0) == []
    # Or the loop would be told again and again that it is time, and could do nothing.
    assert desk.settler.next_time() is None
    done = 0
    while done < BATCH + WORTHWHILE:
        done += len(desk.settler.flush(ledger, 0.0) or desk.settler.collect(0.0))
    assert len(desk.settler) == 0


def test_who_waits_for_them_is_told(ledger: Ledger, desk: Desk) -> None:
    claims = claimed(ledger, MANY)
    join = dependent(ledger, *(claim.id for claim in claims))
    desk.add(*claims)
    desk.settler.flush(ledger, 0.0)
    desk.collected()
    assert (state_of(ledger, join), desk.settler.ready) == (State.READY, {"default"})


def test_what_could_not_be_settled_waits_in_its_place_and_the_loop_tries_half_of_it(ledger: Ledger, desk: Desk) -> None:
    claims = claimed(ledger, MANY)
    desk.add(*claims)
    sql(ledger, "ALTER TABLE manta_attempt RENAME TO manta_elsewhere")
    try:
        desk.settler.flush(ledger, 0.0)
        late = claimed(ledger, 1)
        desk.add(*late)
        assert desk.collected() == {}
        with pytest.raises(DatabaseError):
            desk.settler.flush(ledger, 0.0)
    finally:
        sql(ledger, "ALTER TABLE manta_elsewhere RENAME TO manta_attempt")
    assert len(desk.settler) == MANY + 1
    tokens = [claim.token for claim in (*claims, *late)]
    # A quarter after it has failed twice, then all that is left.
    for expected in (tokens[: MANY // 4], tokens[MANY // 4 :]):
        assert [claim.token for claim, _, _ in desk.settler.flush(ledger, 0.0)] == expected


def test_a_scribe_without_a_connection_leaves_it_to_the_loop(
    ledger: Ledger, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role may have just as many connections as its workers had before there was much to do."""

    def refuse(database: str) -> Any:
        raise OperationalError("too many connections for role")

    monkeypatch.setattr(scribe, "own_session", refuse)
    claims = claimed(ledger, 2 * MANY)
    desk.settler.expect(len(claims))
    desk.add(*claims)
    assert desk.settler.flush(ledger, 0.0) == []
    assert desk.collected() == {}
    assert len(desk.settler.flush(ledger, 0.0)) == MANY
    # It is asked again: there may be one now.
    monkeypatch.undo()
    assert desk.settler.has_many
    assert desk.settler.flush(ledger, 0.0) == []
    assert len(desk.collected()) == MANY


def test_what_nobody_foresaw_is_raised_where_it_ends_the_worker(
    ledger: Ledger, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(database: str) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(scribe, "own_session", fail)
    desk.settler.expect(MANY)
    desk.add(*claimed(ledger, MANY))
    desk.settler.flush(ledger, 0.0)
    with pytest.raises(ZeroDivisionError):
        desk.collected()
    assert len(desk.settler) == MANY


def test_a_thread_that_ended_without_a_word_is_not_waited_for(ledger: Ledger, desk: Desk) -> None:
    thread = desk.settler._scribe
    assert thread is not None
    desk.settler.expect(MANY)
    thread.stop()
    thread.join(5)
    desk.add(*claimed(ledger, MANY))
    desk.settler.flush(ledger, 0.0)
    with pytest.raises(RuntimeError, match="without a word"):
        desk.settler.collect(0.0)


def test_results_that_weigh_much_travel_in_smaller_batches(ledger: Ledger, desk: Desk) -> None:
    claims = claimed(ledger, 40)
    for claim in claims:
        desk.settler.add(claim, settlement(claim, result='"' + "x" * 2**20 + '"'), 0.0)
    sizes = []
    while moved := desk.settler.flush(ledger, 0.0):
        sizes.append(len(moved))
    assert sizes == [15, 15, 10]


def test_what_is_left_when_it_closes_is_settled_by_the_loop(ledger: Ledger, desk: Desk) -> None:
    first = claimed(ledger, MANY)
    desk.add(*first)
    desk.settler.flush(ledger, 0.0)
    second = claimed(ledger, BATCH + MANY)
    desk.add(*second)
    desk.settler.close(20)
    assert len(desk.settler.collect(0.0)) == MANY
    # All of it, also where that takes more than one batch.
    assert [len(desk.settler.flush(ledger, 0.0)) for _ in range(3)] == [BATCH, MANY, 0]


def test_who_has_too_many_that_are_not_settled_claims_no_more(ledger: Ledger, desk: Desk) -> None:
    [claim] = claimed(ledger, 1)
    for number in range(FULL):
        assert not desk.settler.is_full
        desk.settler.add(claim._replace(token=number), settlement(claim), 0.0)
    assert desk.settler.is_full


def test_so_many_bytes_that_are_not_settled_are_too_many_as_well(ledger: Ledger, desk: Desk) -> None:
    held, *others, late = claimed(ledger, 9)
    large = '"' + "x" * (FULL_BYTES // 8) + '"'
    for claim in (held, *others):
        assert not desk.settler.is_full
        desk.settler.add(claim, settlement(claim, result=large), 0.0)
    assert desk.settler.is_full
    # What is settled makes room; what has to be tried again does not.
    with closing(own_session()) as session, session.transaction():
        sql(Ledger(session), "SELECT 1 FROM manta_run WHERE id = %s FOR UPDATE", [held.id])
        for _ in range(8):
            desk.settler.flush(ledger, 0.0)
        assert (len(desk.settler), desk.settler.is_full) == (1, False)
    for claim in others:
        desk.settler.add(claim, settlement(claim, result=large), 0.0)
    assert desk.settler.is_full
    desk.settler.clear()
    desk.settler.add(late, settlement(late, result=large), 0.0)
    assert not desk.settler.is_full


def test_what_the_database_refuses_keeps_a_worker_from_nothing_until_it_is_very_much(
    ledger: Ledger, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = claimed(ledger, 2)
    large = '"' + "x" * FULL_BYTES + '"'
    refused = Settled(refused={bad.token: "It is not taken."})
    desk.settler.add(bad, settlement(bad, result=large), 0.0)
    assert desk.settler.is_full
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "settle", lambda *args: refused)
        for now in (0.0, 100.0, 1_000.0):
            assert desk.settler.flush(ledger, now) == []
            assert (desk.settler.put_aside, desk.settler.is_full) == (1, False)
    assert not desk.settler.is_full_of_refused
    monkeypatch.setattr(settling, "FULL_ASIDE_BYTES", FULL_BYTES)
    assert desk.settler.is_full_of_refused
    # What is settled after all leaves nothing behind that counts.
    assert len(desk.settler.flush(ledger, 10_000.0)) == 1
    assert not desk.settler.is_full_of_refused
    desk.settler.add(good, settlement(good, result='"' + "x" * (FULL_BYTES // 2) + '"'), 0.0)
    assert not desk.settler.is_full


def test_many_that_the_database_refuses_are_not_waited_for_but_claim_no_more(ledger: Ledger, desk: Desk) -> None:
    [claim] = claimed(ledger, 1)
    for number in range(FULL):
        one = Waiting(claim._replace(token=number), settlement(claim), 0.0)
        desk.settler._put_aside(one, "It is not taken.", 0.0)
    assert (desk.settler.is_full, desk.settler.is_full_of_refused) == (False, True)
    desk.settler.clear()
    assert not desk.settler.is_full_of_refused


def test_what_somebody_holds_is_tried_again_and_what_is_not_ours_is_not(ledger: Ledger, desk: Desk) -> None:
    held, gone, *others = claimed(ledger, MANY)
    ledger.settle([settlement(gone)], "worker")
    desk.add(held, gone, *others)
    other = own_session()
    rival = Ledger(other)
    with rival.session.transaction():
        sql(rival, "SELECT FROM manta_run WHERE id = %s FOR UPDATE", [held.id])
        desk.settler.flush(ledger, 0.0)
        collected = desk.collected()
    other.close()
    assert collected[gone.token] is None
    assert held.token not in collected
    assert held.token in desk.settler
    assert [claim.token for claim, _, _ in desk.settler.flush(ledger, 10.0)] == [held.token]


def test_a_worker_that_lost_its_lease_settles_nothing_there_either(ledger: Ledger, desk: Desk) -> None:
    claims = claimed(ledger, MANY)
    assert ledger.mark_lost("worker", *sql(ledger, "SELECT seen_at FROM manta_worker")[0])
    desk.add(*claims)
    desk.settler.flush(ledger, 0.0)
    assert set(desk.collected().values()) == {None}
    assert state_of(ledger, claims[0].id) is State.RUNNING
