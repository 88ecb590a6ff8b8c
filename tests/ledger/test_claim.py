"""Claim: who gets which run, in which order, and that nobody gets what somebody else has."""

import random
import threading
from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest

from django_manta.ids import new_run_id
from django_manta.ledger import Claimed, Ledger
from django_manta.ledger.marks import Marks
from django_manta.moments import to_datetime, to_datetime_or_none
from django_manta.states import Outcome, State
from tests.ledger.conftest import OpenLedger
from tests.ledger.given import HOUR, claimed, enqueue, lose, new_run, settlement, sql, state_of, the, worker_record


def ids(claims: list[Claimed]) -> list[UUID]:
    return [claim.id for claim in claims]


def test_a_claimed_run_belongs_to_its_worker(ledger: Ledger) -> None:
    asked = new_run(priority=3, overrides='{"timeout":3}', metadata='{"who": "me"}', expires=HOUR, run_after=-HOUR)
    ledger.enqueue([asked])
    [claim] = ledger.claim("worker", ["default"], 1)
    run = the(ledger, asked.id)
    assert (run.state, run.worker, run.token, run.attempts) == (State.RUNNING, "worker", claim.token, 1)
    assert run.started_at == run.last_attempted_at == to_datetime(claim.started_at)
    assert claim.started_at == claim.last_attempted_at
    assert run.finished_at is None
    assert (claim.id, claim.task, claim.backend, claim.queue, claim.priority) == (
        asked.id,
        asked.task,
        asked.backend,
        asked.queue,
        3,
    )
    assert (claim.arguments, claim.overrides, claim.signature, claim.metadata) == (
        asked.arguments,
        asked.overrides,
        asked.signature,
        asked.metadata,
    )
    moments = (claim.enqueued_at, claim.run_after, claim.deadline, claim.expires_at)
    assert [to_datetime_or_none(moment) for moment in moments] == [
        run.enqueued_at,
        run.run_after,
        run.deadline,
        run.expires_at,
    ]
    assert (claim.attempts, claim.failures, claim.crashes, claim.losses, claim.worker) == (1, 0, 0, 0, "worker")
    assert (claim.refused_for, claim.history) == (None, ())


def test_the_limit_is_respected(ledger: Ledger) -> None:
    enqueue(ledger, 10)
    assert len(ledger.claim("worker", ["default"], 4)) == 4
    assert len(ledger.claim("worker", ["default"], 100)) == 6
    assert ledger.claim("worker", ["default"], 100) == []


@pytest.mark.parametrize(("queues", "limit"), [([], 10), (["default"], 0), (["default"], -1), (["nobody's"], 10)])
def test_nothing_is_claimed_when_nothing_is_asked_for(ledger: Ledger, queues: list[str], limit: int) -> None:
    enqueue(ledger)
    assert ledger.claim("worker", queues, limit) == []


def test_first_come_first_served(ledger: Ledger) -> None:
    expected = enqueue(ledger, 20)
    assert ids(ledger.claim("worker", ["default"], 7)) == expected[:7]
    assert ids(ledger.claim("worker", ["default"], 13)) == expected[7:]


def test_the_order_is_priority_then_deadline_then_id(ledger: Ledger) -> None:
    first, second, third, fourth, fifth = (new_run_id() for _ in range(5))
    near, far = timedelta(hours=1), timedelta(hours=2)
    asked = [
        new_run(id=fifth, priority=-100, deadline=timedelta(seconds=1)),
        new_run(id=fourth, priority=0, deadline=far),
        new_run(id=third, priority=0, deadline=near),
        new_run(id=second, priority=50, deadline=far),
        new_run(id=first, priority=50, deadline=near),
    ]
    ledger.enqueue(asked)
    assert ids(ledger.claim("worker", ["default"], 2)) == [first, second]
    assert ids(ledger.claim("worker", ["default"], 5)) == [third, fourth, fifth]


def test_equal_priority_and_deadline_go_by_id(ledger: Ledger) -> None:
    when = the(ledger, enqueue(ledger, queue="elsewhere")[0]).deadline
    asked = sorted((new_run(deadline=when) for _ in range(6)), key=lambda run: run.id)
    ledger.enqueue(asked[::-1])
    assert ids(ledger.claim("worker", ["default"], 6)) == [run.id for run in asked]


@pytest.mark.parametrize("limit", [4, 30], ids=["by and by", "at once"])
def test_a_workers_own_connection_claims_in_the_same_order(ledger: Ledger, other_ledger: Ledger, limit: int) -> None:
    """It reads rows as they are kept, and sorts them before anything is made of them."""
    now = the(ledger, enqueue(ledger, queue="elsewhere")[0]).deadline
    asked = [
        new_run(priority=priority, deadline=now + timedelta(seconds=seconds))
        for priority in (0, 7, -7)
        for seconds in (5, 0, 0, 3600)
    ]
    expected = sorted(asked, key=lambda run: (-run.priority, run.deadline, run.id))
    random.Random(7).shuffle(asked)
    ledger.enqueue(asked)
    marks = Marks()
    claims: list[Claimed] = []
    while more := other_ledger.claim("worker", ["default"], limit, marks=marks):
        claims += more
    assert ids(claims) == [run.id for run in expected]
    assert [to_datetime(claim.deadline) for claim in claims] == [run.deadline for run in expected]
    kept = {run.id: run for run in ledger.fetch(ids(claims))}
    for claim in claims:
        run = kept[claim.id]
        assert (claim.token, claim.priority, claim.arguments) == (run.token, run.priority, run.arguments)
        assert (claim.suspect, claim.dependents, claim.workflow, claim.values) == (False, False, None, {})
        assert to_datetime(claim.last_attempted_at) == run.last_attempted_at


def test_a_deadline_orders_and_never_kills(ledger: Ledger) -> None:
    [late] = enqueue(ledger, deadline=-HOUR)
    assert ledger.expire() == []
    assert ids(ledger.claim("worker", ["default"], 1)) == [late]


def test_within_a_horizon_only_near_deadlines_are_claimed(ledger: Ledger) -> None:
    [far] = enqueue(ledger, deadline=2 * HOUR, priority=100)
    [near] = enqueue(ledger, deadline=HOUR / 2)
    [past] = enqueue(ledger, deadline=-HOUR, priority=-100)
    assert ids(ledger.claim("worker", ["default"], 10, horizon=3600.0)) == [near, past]
    assert ledger.claim("worker", ["default"], 10, horizon=0.0) == []
    assert ids(ledger.claim("worker", ["default"], 10)) == [far]


def test_the_queues_take_turns(ledger: Ledger) -> None:
    crowded = enqueue(ledger, 10, queue="crowded", priority=100)
    quiet = enqueue(ledger, 2, queue="quiet")
    lone = enqueue(ledger, 1, queue="lone", priority=-100)
    assert ids(ledger.claim("worker", ["crowded", "quiet", "lone"], 6)) == [
        crowded[0],
        quiet[0],
        lone[0],
        crowded[1],
        quiet[1],
        crowded[2],
    ]


def test_the_order_of_the_queues_decides_who_is_first(ledger: Ledger) -> None:
    [a] = enqueue(ledger, queue="a")
    [b] = enqueue(ledger, queue="b")
    assert ids(ledger.claim("worker", ["b", "a"], 1)) == [b]
    assert ids(ledger.claim("worker", ["b", "a"], 1)) == [a]


def test_a_queue_named_twice_counts_once(ledger: Ledger) -> None:
    expected = enqueue(ledger, 3)
    claims = ledger.claim("worker", ["default", "default"], 10)
    assert ids(claims) == expected
    assert len({claim.token for claim in claims}) == 3


def test_only_the_queues_asked_for_are_claimed(ledger: Ledger) -> None:
    [mine] = enqueue(ledger, queue="mine")
    [other] = enqueue(ledger, queue="other")
    assert ids(ledger.claim("worker", ["mine"], 10)) == [mine]
    assert state_of(ledger, other) is State.READY


def test_nothing_is_claimed_from_a_paused_queue(ledger: Ledger) -> None:
    [waits] = enqueue(ledger, queue="paused")
    [goes] = enqueue(ledger, queue="open")
    ledger.pause("paused")
    ledger.pause("paused")
    assert ids(ledger.claim("worker", ["paused", "open"], 1)) == [goes]
    assert ledger.claim("worker", ["paused"], 10) == []
    assert ledger.resume("paused")
    assert not ledger.resume("paused")
    assert not ledger.resume("never heard of")
    assert ids(ledger.claim("worker", ["paused"], 10)) == [waits]


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_an_expired_run_never_starts_and_is_in_nobodys_way(ledger: Ledger, limit: int) -> None:
    late = enqueue(ledger, 5, expires=-HOUR, priority=100)
    [good] = enqueue(ledger, expires=HOUR)
    [neighbour] = enqueue(ledger, queue="other")
    assert set(ids(ledger.claim("worker", ["default", "other"], limit))) == {good, neighbour} & (
        {good} if limit == 1 else {good, neighbour}
    )
    assert {run.state for run in ledger.fetch(late)} == {State.READY}


def test_a_run_that_started_once_no_longer_expires(ledger: Ledger) -> None:
    [claim] = claimed(ledger, expires=HOUR)
    sql(ledger, "UPDATE manta_run SET expires_at = enqueued_at WHERE id = %s", [claim.id.hex])
    ledger.settle([settlement(claim, Outcome.FAILED, State.READY)])
    assert ledger.expire() == []
    assert ids(ledger.claim("worker", ["default"], 1)) == [claim.id]


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_only_ready_runs_are_claimed(ledger: Ledger, state: State) -> None:
    from tests.ledger.given import run_in_state

    run_in_state(ledger, state)
    assert ledger.claim("another", ["default"], 10) == []


def test_tokens_grow_for_ever(ledger: Ledger) -> None:
    seen = [0]
    for round_ in range(4):
        claims = claimed(ledger, 3)
        tokens = sorted(claim.token for claim in claims)
        assert tokens[0] > seen[-1]
        assert len(set(tokens)) == 3
        seen += tokens
        ledger.settle([settlement(claim) for claim in claims])
        if round_ % 2:
            # Also when nothing is left that would remember them.
            ledger.prune(State.SUCCESSFUL, -HOUR)
            assert sql(ledger, "SELECT count(*) FROM manta_attempt") == [(0,)]


def test_a_token_in_use_is_not_given_again(ledger: Ledger) -> None:
    first, second = claimed(ledger, 2)
    # The higher one is settled and pruned, the lower still runs; and the other way round.
    for _ in range(2):
        ledger.settle([settlement(second)])
        ledger.prune(State.SUCCESSFUL, -HOUR)
        [third] = claimed(ledger)
        assert third.token > max(first.token, second.token)
        first, second = third, first


def test_a_retried_run_comes_with_its_history(ledger: Ledger) -> None:
    [claim] = claimed(ledger, worker="first")
    ledger.settle(
        [settlement(claim, Outcome.FAILED, State.READY, error_class="builtins.ValueError", error_message="no")]
    )
    [again] = ledger.claim("second", ["default"], 1)
    [attempt] = again.history
    assert (attempt.token, attempt.number, attempt.outcome, attempt.worker) == (
        claim.token,
        1,
        Outcome.FAILED,
        "first",
    )
    assert (attempt.error_class, attempt.error_message) == ("builtins.ValueError", "no")
    assert (again.attempts, again.failures, again.worker) == (2, 1, "second")
    assert again.started_at == claim.started_at
    assert again.last_attempted_at >= claim.last_attempted_at
    assert again.token > claim.token


def test_a_refused_run_tells_since_when(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim, Outcome.RETURNED, State.READY, refused=True)])
    sql(ledger, "UPDATE manta_run SET refused_at = enqueued_at WHERE id = %s", [claim.id.hex])
    [again] = ledger.claim("worker", ["default"], 1)
    assert again.refused_for is not None
    assert 0 <= again.refused_for < 60

    ledger.settle([settlement(again, Outcome.RETURNED, State.READY, refused=True)])
    [still] = ledger.claim("worker", ["default"], 1)
    assert still.refused_for is not None
    assert still.refused_for >= again.refused_for

    ledger.settle([settlement(still, Outcome.FAILED, State.READY)])
    [verified] = ledger.claim("worker", ["default"], 1)
    assert verified.refused_for is None


def test_a_worker_that_lost_its_lease_claims_nothing(ledger: Ledger) -> None:
    [run_id] = enqueue(ledger)
    lose(ledger, "late")
    assert ledger.claim("late", ["default"], 1) == []
    ledger.register(worker_record("alive"))
    assert ids(ledger.claim("alive", ["default"], 1)) == [run_id]


@pytest.mark.postgres
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_what_another_worker_is_taking_is_made_up_for(ledger: Ledger, other_ledger: Ledger, limit: int) -> None:
    taken = enqueue(ledger, 2, queue="a")
    left = enqueue(ledger, 4, queue="b")
    with other_ledger.session.transaction():
        other_ledger.claim("other", ["a"], 2)
        assert ids(ledger.claim("worker", ["a", "b"], limit)) == left[:limit]
    assert {run.worker for run in ledger.fetch(taken)} == {"other"}


@pytest.mark.postgres
def test_no_more_rows_are_locked_than_taken(ledger: Ledger, other_ledger: Ledger) -> None:
    first = enqueue(ledger, 3, queue="a")
    second = enqueue(ledger, 3, queue="b")
    with other_ledger.session.transaction():
        assert len(other_ledger.claim("other", ["a", "b"], 2)) == 2
        claims = ledger.claim("worker", ["a", "b"], 10)
    assert set(ids(claims)) == {*first[1:], *second[1:]}


@pytest.mark.postgres
def test_a_foreign_key_that_is_being_written_hides_no_run(
    ledger: Ledger, other_ledger: Ledger, keepsakes: None
) -> None:
    [run_id] = enqueue(ledger)
    with other_ledger.session.transaction():
        sql(other_ledger, "INSERT INTO manta_keepsake (run_id) VALUES (%s)", [run_id])
        [claim] = ledger.claim("worker", ["default"], 1)
        assert ledger.settle([settlement(claim)], "worker").moved == {claim.token: State.SUCCESSFUL}


@pytest.mark.parametrize("batch", [1, 7])
def test_two_workers_never_get_the_same_run(open_ledger: OpenLedger, batch: int) -> None:
    workers, runs = 4, 240
    with open_ledger() as ledger:
        expected = [*enqueue(ledger, runs // 2, queue="a"), *enqueue(ledger, runs // 2, queue="b")]
    begin = threading.Barrier(workers)
    taken: dict[str, list[Claimed]] = {f"worker-{number}": [] for number in range(workers)}
    failures: list[BaseException] = []

    def work(worker: str) -> None:
        try:
            with open_ledger() as own:
                own.claim(worker, ["nothing"], 1)
                begin.wait(20)
                while claims := own.claim(worker, ["a", "b"], batch):
                    assert len(claims) <= batch
                    taken[worker] += claims
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=[worker]) for worker in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    everything = [claim for claims in taken.values() for claim in claims]
    assert Counter(ids(everything)) == Counter(expected)
    assert len({claim.token for claim in everything}) == runs
    with open_ledger() as ledger:
        owners = {run.id: (run.worker, run.token, run.state) for run in ledger.fetch(expected)}
    assert owners == {claim.id: (claim.worker, claim.token, State.RUNNING) for claim in everything}
