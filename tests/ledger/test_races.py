"""Two at once: real threads, a real connection each, and the moment in which they meet."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import pytest

from django_manta.ledger import Claimed, Ledger, Settled, Settlement, fsck, graph
from django_manta.states import ENDS, Outcome, State
from tests.ledger.conftest import OpenLedger
from tests.ledger.given import HOUR, claimed, dependent, enqueue, lose, settlement, sql, the, worker_record

ROUNDS = 200
BATCH = 4


class Company:
    """Threads that wait for each other before each round. Each has a ledger of its own."""

    def __init__(self, open_ledger: OpenLedger, size: int) -> None:
        self.answers: list[Any] = [None] * size
        self._work: list[Callable[[Ledger], Any]] = []
        self._open_ledger = open_ledger
        self._begin = threading.Barrier(size + 1)
        self._end = threading.Barrier(size + 1)
        self._threads = [threading.Thread(target=self._live, args=[place], daemon=True) for place in range(size)]
        for thread in self._threads:
            thread.start()

    def _live(self, place: int) -> None:
        with self._open_ledger() as ledger:
            ledger.next_due()  # connected, before it matters
            while True:
                self._begin.wait(60)
                if not self._work:
                    return
                try:
                    self.answers[place] = self._work[place](ledger)
                except Exception as error:
                    self.answers[place] = error
                self._end.wait(60)

    def together(self, *work: Callable[[Ledger], Any]) -> list[Any]:
        """Begin all at the same moment; the answers, when all have ended."""
        self._work = list(work)
        self._begin.wait(60)
        self._end.wait(60)
        for answer in self.answers:
            if isinstance(answer, Exception):
                raise answer
        return list(self.answers)

    def disperse(self) -> None:
        self._work = []
        self._begin.wait(60)
        for thread in self._threads:
            thread.join(60)


@pytest.fixture
def pair(open_ledger: OpenLedger, committed: None) -> Iterator[Company]:
    with ExitStack() as stack:
        company = Company(open_ledger, 2)
        stack.callback(company.disperse)
        yield company


@pytest.fixture
def four(open_ledger: OpenLedger, committed: None) -> Iterator[Company]:
    with ExitStack() as stack:
        company = Company(open_ledger, 4)
        stack.callback(company.disperse)
        yield company


def settle_until_done(settlements: Iterable[Settlement], worker: str | None = "worker") -> Callable[[Ledger], Settled]:
    """As a worker does: what is busy is tried again."""

    def settle(ledger: Ledger) -> Settled:
        settled = Settled(busy=frozenset(one.token for one in settlements))
        while settled.busy:
            again = [one for one in settlements if one.token in settled.busy]
            tried = ledger.settle(again, worker)
            settled = Settled(settled.moved | tried.moved, settled.not_mine | tried.not_mine, tried.busy)
        return settled

    return settle


# (outcome, asked for) → every state in which a run may stand after it was settled and cancelled at once.
MEETINGS = {
    (Outcome.SUCCESSFUL, State.SUCCESSFUL): {State.SUCCESSFUL},
    (Outcome.FAILED, State.FAILED): {State.FAILED, State.CANCELLED},
    (Outcome.FAILED, State.READY): {State.CANCELLED},
    (Outcome.RETURNED, State.SCHEDULED): {State.CANCELLED},
}


def test_a_cancel_and_a_settlement_that_meet_agree(ledger: Ledger, pair: Company) -> None:
    seen: Counter[State] = Counter()
    order = random.Random(7)
    for _ in range(ROUNDS):
        claims = claimed(ledger, BATCH, worker="worker")
        asked = dict(zip(claims_by_id(claims), MEETINGS, strict=True))
        batch = [settlement(claim, *asked[claim.id]) for claim in claims]
        order.shuffle(batch)
        settled, cancelled = pair.together(
            settle_until_done(batch), lambda own, ids=[*asked]: own.cancel(ids, reason="Stop.")
        )
        assert set(settled.moved) == {claim.token for claim in claims}
        assert not settled.not_mine
        for run in ledger.fetch(asked):
            [attempt] = run.history
            assert attempt.outcome is asked[run.id][0]
            assert run.state in MEETINGS[asked[run.id]]
            assert run.state in ENDS
            # Whoever came second saw what the first had done.
            if cancelled.get(run.id) is State.CANCELLING:
                assert settled.moved[attempt.token] is run.state
            elif cancelled.get(run.id) is State.CANCELLED:
                assert settled.moved[attempt.token] in (State.READY, State.SCHEDULED)
            else:
                assert settled.moved[attempt.token] is run.state
            assert (run.reason == "Stop.") == (run.state is State.CANCELLED)
            seen[run.state] += 1
    assert seen[State.SUCCESSFUL] == ROUNDS
    assert seen.total() == ROUNDS * BATCH
    ledger.register(worker_record())
    assert fsck.check(ledger) == []


def claims_by_id(claims: list[Claimed]) -> list[Any]:
    return [claim.id for claim in claims]


def test_a_cancel_and_a_claim_that_meet_agree(ledger: Ledger, pair: Company) -> None:
    for _ in range(ROUNDS // 4):
        ids = enqueue(ledger, BATCH)
        cancelled, claims = pair.together(
            lambda own, ids=ids: own.cancel(ids), lambda own: own.claim("worker", ["default"], BATCH)
        )
        taken = set(claims_by_id(claims))
        # A claim passes over what the cancel holds; the cancel waits for the claim, and sees it.
        for run in ledger.fetch(ids):
            assert cancelled[run.id] is (State.CANCELLING if run.id in taken else State.CANCELLED)
            assert run.state is cancelled[run.id]
            assert (run.token is not None) == (run.id in taken)
        ledger.settle([settlement(claim) for claim in claims])


def test_a_hold_and_a_claim_that_meet_agree(ledger: Ledger, pair: Company) -> None:
    for _ in range(ROUNDS // 4):
        ids = enqueue(ledger, BATCH)
        held, claims = pair.together(
            lambda own, ids=ids: own.hold(ids), lambda own: own.claim("worker", ["default"], BATCH)
        )
        assert set(held) | set(claims_by_id(claims)) == set(ids)
        assert set(held) & set(claims_by_id(claims)) == set()
        ledger.cancel(ids)
        ledger.settle([settlement(claim) for claim in claims])


def lose_and_recover(worker: str, seen_at: datetime, ids: list[Any]) -> Callable[[Ledger], None]:
    def act(ledger: Ledger) -> None:
        assert ledger.mark_lost(worker, seen_at)
        while any(run.worker for run in ledger.fetch(ids)):
            ledger.recover(lambda orphan: 9)

    return act


def test_a_late_settlement_and_the_recovery_that_meet_count_once(ledger: Ledger, pair: Company) -> None:
    seen: Counter[Outcome] = Counter()
    for round_ in range(ROUNDS // 2):
        worker = f"worker-{round_}"
        seen_at = ledger.register(worker_record(worker))
        claims = claimed(ledger, BATCH, worker=worker)

        batch = [settlement(claim) for claim in claims]
        settled, _ = pair.together(
            settle_until_done(batch, worker), lose_and_recover(worker, seen_at, claims_by_id(claims))
        )
        for run in ledger.fetch(claims_by_id(claims)):
            [attempt] = run.history
            seen[attempt.outcome] += 1
            if attempt.outcome is Outcome.SUCCESSFUL:
                assert (run.state, run.losses) == (State.SUCCESSFUL, 0)
                assert attempt.token in settled.moved
            else:
                assert (attempt.outcome, run.state) == (Outcome.LOST, State.READY)
                assert attempt.token in settled.not_mine
        ledger.cancel(claims_by_id(claims))
    assert seen.total() == ROUNDS // 2 * BATCH


def test_two_who_recover_the_same_worker_do_it_once(ledger: Ledger, pair: Company) -> None:
    for round_ in range(ROUNDS // 4):
        worker = f"worker-{round_}"
        claims = claimed(ledger, BATCH, worker=worker)
        lose(ledger, worker)
        pair.together(*[lambda own: own.recover(lambda orphan: 9)] * 2)
        ledger.recover(lambda orphan: 9)
        assert [len(run.history) for run in ledger.fetch(claims_by_id(claims))] == [1] * BATCH
        ledger.cancel(claims_by_id(claims))


def test_an_adoption_and_the_recovery_that_meet_agree(ledger: Ledger, pair: Company) -> None:
    ledger.register(worker_record("heir"))
    for round_ in range(ROUNDS // 4):
        worker = f"worker-{round_}"
        claims = claimed(ledger, BATCH, worker=worker)
        lose(ledger, worker)
        executions = [(claim.id, claim.token) for claim in claims]
        taken, recovered = pair.together(
            lambda own, these=executions, worker=worker: own.adopt(these, worker, "heir"),
            lambda own: own.recover(lambda orphan: 9),
        )
        assert taken.isdisjoint(recovered.moved)
        for run, claim in zip(ledger.fetch(claims_by_id(claims)), claims, strict=True):
            if claim.token in taken:
                assert (run.state, run.worker, run.token) == (State.RUNNING, "heir", claim.token)
            else:
                assert (run.state, run.worker) in [(State.READY, ""), (State.RUNNING, worker)]
        ledger.recover(lambda orphan: 9)
        ledger.settle([settlement(claim) for claim in claims])
        ledger.cancel(claims_by_id(claims))


def test_two_who_settle_the_same_execution_do_it_once(ledger: Ledger, pair: Company) -> None:
    for _ in range(ROUNDS // 2):
        claims = claimed(ledger, BATCH)
        good = [settlement(claim) for claim in claims]
        bad = [settlement(claim, Outcome.FAILED, State.FAILED) for claim in claims[::-1]]
        first, second = pair.together(settle_until_done(good, None), settle_until_done(bad))
        assert set(first.moved) | set(second.moved) == {claim.token for claim in claims}
        assert set(first.moved).isdisjoint(second.moved)
        assert first.not_mine == set(second.moved)
        for run in ledger.fetch(claims_by_id(claims)):
            [attempt] = run.history
            assert run.state is (State.SUCCESSFUL if attempt.token in first.moved else State.FAILED)


def test_two_caretakers_promote_and_expire_each_run_once(ledger: Ledger, pair: Company) -> None:
    for _ in range(ROUNDS // 8):
        enqueue(ledger, 10, run_after=HOUR)
        promoted = pair.together(*[lambda own: own.promote(ahead=2 * HOUR)] * 2)
        rest = ledger.promote(ahead=2 * HOUR)
        assert sum(promoted) + rest == 10
        ledger.claim("worker", ["default"], 10)
        late = enqueue(ledger, 10, expires=-HOUR)
        first, second = pair.together(*[lambda own: own.expire()] * 2)
        assert sorted([*first, *second, *ledger.expire()]) == sorted(late)


def test_verbs_on_the_same_runs_in_any_order_never_wait_in_a_circle(ledger: Ledger, four: Company) -> None:
    ids = enqueue(ledger, 60)
    ledger.register(worker_record())
    order = random.Random(11)

    def shuffled() -> list[Any]:
        return order.sample(ids, len(ids))

    for _ in range(ROUNDS // 8):
        lists = [shuffled() for _ in range(4)]
        four.together(
            lambda own, ids=lists[0]: own.cancel(ids),
            lambda own, ids=lists[1]: own.retry(ids),
            lambda own, ids=lists[2]: own.hold(ids),
            lambda own, ids=lists[3]: [own.release(ids), own.claim("worker", ["default"], 20)],
        )
        running = [run for run in ledger.fetch(ids) if run.token is not None]
        lists = [shuffled() for _ in range(4)]
        batch = [
            Settlement(run_id=run.id, token=run.token, outcome=Outcome.FAILED, next_state=State.READY)
            for run in running
            if run.token is not None
        ]
        order.shuffle(batch)
        four.together(
            settle_until_done(batch[::2]),
            settle_until_done(batch[1::2]),
            lambda own, ids=lists[0]: own.cancel(ids),
            lambda own: own.prune(State.CANCELLED, HOUR),
        )
    assert fsck.check(ledger) == []


# -- one waits for the other ---------------------------------------------------------------------


def wait_until_it_blocks_somebody(ledger: Ledger) -> None:
    limit = time.monotonic() + 20
    blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    while sql(ledger, blocked) == [(0,)]:
        assert time.monotonic() < limit, "nobody waits"
        time.sleep(0.005)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("asked", "reached", "stands"),
    [
        ((Outcome.SUCCESSFUL, State.SUCCESSFUL), None, State.SUCCESSFUL),
        ((Outcome.FAILED, State.FAILED), None, State.FAILED),
        ((Outcome.FAILED, State.READY), State.CANCELLED, State.CANCELLED),
        ((Outcome.RETURNED, State.SCHEDULED), State.CANCELLED, State.CANCELLED),
    ],
)
def test_a_cancel_that_waited_for_a_settlement_sees_it(
    ledger: Ledger,
    other_ledger: Ledger,
    open_ledger: OpenLedger,
    asked: tuple[Outcome, State],
    reached: State | None,
    stands: State,
) -> None:
    [claim] = claimed(ledger)
    answers: list[Any] = []

    def cancel() -> None:
        with open_ledger() as own:
            answers.append(own.cancel([claim.id]))

    waits = threading.Thread(target=cancel)
    with other_ledger.session.transaction():
        other_ledger.settle([settlement(claim, *asked)])
        waits.start()
        wait_until_it_blocks_somebody(other_ledger)
    waits.join(20)
    assert answers == [{} if reached is None else {claim.id: reached}]
    run = the(ledger, claim.id)
    assert (run.state, run.token, run.due_at) == (stands, None, None)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("verb", "first", "reached"),
    [
        ("hold", "claim", {}),
        ("cancel", "claim", State.CANCELLING),
        ("cancel", "hold", State.CANCELLED),
        ("hold", "cancel", {}),
        ("retry", "was cancelled", State.READY),
        ("release", "was held", State.READY),
    ],
)
def test_a_verb_that_waited_looks_again(
    ledger: Ledger,
    other_ledger: Ledger,
    open_ledger: OpenLedger,
    verb: str,
    first: str,
    reached: State | dict[str, str],
) -> None:
    """READ COMMITTED: the row is judged as it is when the lock is got, not as it was when the statement began."""
    [run_id] = enqueue(ledger)
    if first in ("was cancelled", "was held"):
        ledger.cancel([run_id]) if first == "was cancelled" else ledger.hold([run_id])
    answers: list[Any] = []

    def act() -> None:
        with open_ledger() as own:
            answers.append(getattr(own, verb)([run_id]))

    waits = threading.Thread(target=act)
    with other_ledger.session.transaction():
        if first in ("was cancelled", "was held"):
            sql(other_ledger, "UPDATE manta_run SET reason = 'touched' WHERE id = %s", [run_id])
        elif first == "claim":
            other_ledger.claim("worker", ["default"], 1)
        else:
            getattr(other_ledger, first)([run_id])
        waits.start()
        wait_until_it_blocks_somebody(other_ledger)
    waits.join(20)
    assert answers == [{run_id: reached} if isinstance(reached, State) else {}]


@pytest.mark.postgres
def test_who_counts_what_a_run_waits_for_sees_what_it_asks_for_meanwhile(
    ledger: Ledger, other_ledger: Ledger, open_ledger: OpenLedger
) -> None:
    """Two have found the same unarmed gate. One was faster: the run is being executed, and asks to wait for more."""
    [first] = claimed(ledger)
    [late] = enqueue(ledger, queue="other")
    run_id = dependent(ledger, first.id)
    ledger.settle([settlement(first)])
    [claim] = ledger.claim("worker", ["default"], 1)
    assert claim.id == run_id

    def arm() -> None:
        with open_ledger() as own:
            graph.arm(own, [run_id])

    slower = threading.Thread(target=arm)
    with other_ledger.session.transaction():
        other_ledger.settle([settlement(claim, Outcome.DEFERRED, State.WAITING, after=(late,))])
        slower.start()
        wait_until_it_blocks_somebody(other_ledger)
    slower.join(20)
    graph.arm_leftovers(ledger)
    assert the(ledger, run_id).state is State.WAITING
    assert fsck.check(ledger) == []
