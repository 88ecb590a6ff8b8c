"""Which child gets which run, and how much is claimed."""

import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from django_manta.execution.runners.flights import Flight
from django_manta.execution.runners.processes import Child, Pool
from django_manta.ids import new_run_id
from django_manta.ledger import Claimed
from django_manta.moments import to_microseconds
from django_manta.worker.claimer import Claimer
from django_manta.worker.contact import Contact
from django_manta.worker.dispatch import (
    CLAIM_LIMIT,
    FETCH_SECONDS,
    FIRST_RUNS,
    HELPING_LEFT,
    HELPING_LEFT_SECONDS,
    HELPING_RUNS,
    HELPING_SECONDS,
    HELPING_SMALL,
    SLOW_SECONDS,
    WINDOW_RUNS,
    Appetite,
    Dispatcher,
    Tier,
)
from django_manta.worker.hands import Hands
from django_manta.worker.lookout import Lookout, Pauses
from django_manta.worker.loop import Worker
from django_manta.worker.prospects import Prospects
from django_manta.worker.settling import Settler
from django_manta.worker.stopping import Stopping

NOW = 1000.0
QUEUES = ["default", "io"]


class Children:
    """Children that take what they are given and never end it: the dispatcher's side of a Pool."""

    def __init__(self, count: int, *, concurrent: bool = True) -> None:
        self.children = {pid: self._child(pid, 0, pid - 1) for pid in range(1, count + 1)}
        self.async_one = self._child(99, 10) if concurrent else None
        if self.async_one is not None:
            self.children[99] = self.async_one
        self.taken_back: list[int] = []
        self.runs_left: int | None = None

    def _child(self, pid: int, slots: int, lane: int = 0) -> Child:
        ours, theirs = socket.socketpair()
        theirs.close()
        return Child(pid, ours, os.open(os.devnull, os.O_RDWR), None, slots, lane, ready=True)

    def close(self) -> None:
        for child in self.children.values():
            child.channel.close()
            os.close(child.output)

    def sync_children(self) -> list[Child]:
        return [child for child in self.children.values() if not child.slots]

    def async_child(self) -> Child | None:
        return self.async_one

    @property
    def has_async_child(self) -> bool:
        return self.async_one is not None

    def left(self, child: Child) -> int | None:
        return self.runs_left

    def give(self, child: Child, flights: list[Flight]) -> None:
        child.held.update({flight.claim.token: flight for flight in flights})

    def take_back(self, child: Child) -> None:
        self.taken_back.append(child.pid)


@pytest.fixture
def pool() -> Iterator[Children]:
    children = Children(2)
    yield children
    children.close()


def dispatcher_of(pool: Children, *tiers: Tier) -> Dispatcher:
    return Dispatcher(cast("Pool", pool), tiers, async_slots=10)


@pytest.fixture
def dispatcher(pool: Children) -> Dispatcher:
    return dispatcher_of(pool)


_tokens = iter(range(1, 1_000_000))


def flight(task: str = "quick", *, concurrent: bool = False, queue: str = "default", **changes: Any) -> Flight:
    moment = to_microseconds(datetime(2026, 11, 16, tzinfo=UTC))
    claim = Claimed(
        id=new_run_id(),
        token=next(_tokens),
        task=task,
        backend="default",
        queue=queue,
        priority=0,
        arguments="[[],{}]",
        overrides="",
        signature="",
        metadata="{}",
        enqueued_at=moment,
        run_after=None,
        deadline=moment + changes.pop("due_in", timedelta(days=7)) // timedelta(microseconds=1),
        expires_at=None,
        started_at=moment,
        last_attempted_at=moment,
        attempts=1,
        failures=0,
        crashes=0,
        losses=0,
        worker="worker",
        refused_for=None,
        suspect=changes.pop("suspect", False),
    )
    return Flight(claim, None, concurrent, waiting_since=NOW, **changes)


def give(dispatcher: Dispatcher, *flights: Flight) -> None:
    dispatcher.take_on(flights)
    dispatcher.dispatch()


def held(pool: Children) -> list[int]:
    return [len(child.held) for child in pool.children.values()]


def start(child: Child, moment: float = NOW) -> None:
    head = child.head
    assert head is not None
    head.started_at = moment


# -- windows -----------------------------------------------------------------------------------------


def test_the_window_starts_at_one(dispatcher: Dispatcher) -> None:
    assert dispatcher.appetite(QUEUES, NOW) == [Appetite(2, QUEUES)]


def test_the_window_grows_with_what_was_measured(dispatcher: Dispatcher) -> None:
    for seconds, room in ((0.010, 2 * 3), (0.001, 2 * 30)):
        for _ in range(60):
            dispatcher.durations.note("quick", seconds)
        [want] = dispatcher.appetite(QUEUES, NOW)
        assert want.limit == pytest.approx(room, abs=2)
    for _ in range(60):
        dispatcher.durations.note("quick", 0.000_01)
    assert dispatcher.appetite(QUEUES, NOW) == [Appetite(2 * FIRST_RUNS, QUEUES)]


def limit(dispatcher: Dispatcher, now: float = NOW) -> int:
    [want] = dispatcher.appetite(QUEUES, now)
    return want.limit


def test_the_most_that_a_child_may_hold_grows_while_claims_are_filled(pool: Children, dispatcher: Dispatcher) -> None:
    for _ in range(60):
        dispatcher.durations.note("quick", 0.000_01)
    asked = []
    dispatcher.settled(HELPING_RUNS)
    for _ in range(20):
        asked.append(limit(dispatcher))
        give(dispatcher, *(flight() for _ in range(limit(dispatcher))))
        assert sum(held(pool)) == asked[-1], "what was asked for found no child"
        for child in pool.children.values():
            child.held.clear()
    assert asked[0] == 2 * FIRST_RUNS
    assert asked == sorted(asked)
    assert asked[1] < asked[-1] == 2 * WINDOW_RUNS


def full(dispatcher: Dispatcher) -> None:
    """There has been a backlog for a while."""
    for _ in range(60):
        dispatcher.durations.note("quick", 0.000_01)
    for _ in range(20):
        bring(dispatcher, limit(dispatcher))
        dispatcher.settled(HELPING_RUNS)
    assert limit(dispatcher) == 2 * WINDOW_RUNS


def bring(dispatcher: Dispatcher, count: int, **changes: Any) -> None:
    """A claim that brings so many, which are all executed at once."""
    dispatcher.appetite(QUEUES, NOW)
    dispatcher.take_on([flight(**changes) for _ in range(count)])
    dispatcher.backlog.clear()


def test_after_a_claim_that_found_little_it_begins_again(dispatcher: Dispatcher) -> None:
    full(dispatcher)
    bring(dispatcher, 1)
    assert limit(dispatcher) == 2 * FIRST_RUNS


def test_half_of_what_was_asked_for_is_enough(dispatcher: Dispatcher) -> None:
    full(dispatcher)
    bring(dispatcher, CLAIM_LIMIT // 2)
    assert limit(dispatcher) == 2 * WINDOW_RUNS
    bring(dispatcher, CLAIM_LIMIT // 2 - 1)
    assert limit(dispatcher) == 2 * FIRST_RUNS


def test_a_claim_that_asked_for_nothing_of_the_kind_says_nothing(pool: Children) -> None:
    """While the children are full, only what is reserved is asked for, and may find nothing."""
    dispatcher = dispatcher_of(pool, Tier(1, 60.0))
    dispatcher.settled(HELPING_RUNS)
    for _ in range(60):
        dispatcher.durations.note("quick", 0.000_01)
    for _ in range(20):
        wanted = dispatcher.appetite(QUEUES, NOW)
        plain = sum(want.limit for want in wanted if want.horizon is None)
        give(dispatcher, *(flight() for _ in range(plain)))
        assert all(want.horizon is not None for want in dispatcher.appetite(QUEUES, NOW))
        dispatcher.take_on([])
        for child in pool.children.values():
            child.held.clear()
    [want] = [want for want in dispatcher.appetite(QUEUES, NOW) if want.horizon is None]
    assert want.limit == WINDOW_RUNS


def test_what_queues_held_is_forgotten_when_nothing_is_claimed_from_them_any_more(dispatcher: Dispatcher) -> None:
    for number in range(5_000):
        queue = f"customer-{number}"
        dispatcher.take_on([flight(queue=queue, concurrent=True)])
        dispatcher.backlog.clear()
        dispatcher.appetite([queue, "default"], NOW)
    assert len(dispatcher._kinds) < 200
    # Of those that are claimed from it is known.
    assert [appetite.queues for appetite in dispatcher.appetite([queue, "default"], NOW)] == [["default"], [queue]]


def test_coroutines_do_not_count_for_the_others(dispatcher: Dispatcher) -> None:
    full(dispatcher)
    bring(dispatcher, CLAIM_LIMIT, concurrent=True)
    assert dispatcher.appetite(QUEUES, NOW)[0].limit <= 2 * FIRST_RUNS


def test_where_a_window_is_shorter_for_their_length_it_does_not_swing(dispatcher: Dispatcher) -> None:
    for _ in range(60):
        dispatcher.durations.note("quick", 0.000_3)
    asked = []
    for _ in range(40):
        asked.append(limit(dispatcher))
        # As where one child of two has half of its window left.
        bring(dispatcher, asked[-1] // 2 + 1)
    assert asked == sorted(asked)
    assert asked[-1] == 2 * 100


def test_one_slow_run_shrinks_it_at_once(dispatcher: Dispatcher) -> None:
    for _ in range(60):
        dispatcher.durations.note("quick", 0.001)
    dispatcher.durations.note("quick", 1.0)
    assert dispatcher.appetite(QUEUES, NOW) == [Appetite(2, QUEUES)]


def test_children_share_what_there_is(pool: Children, dispatcher: Dispatcher) -> None:
    dispatcher.durations.note("quick", 0.001)
    give(dispatcher, *(flight() for _ in range(10)))
    assert held(pool) == [5, 5, 0]


def test_nothing_follows_a_task_that_nobody_has_seen_finish(pool: Children, dispatcher: Dispatcher) -> None:
    give(dispatcher, *(flight("new") for _ in range(4)))
    assert held(pool) == [1, 1, 0]
    assert len(dispatcher.backlog) == 2


def test_but_it_may_follow_what_is_known_to_be_quick(pool: Children, dispatcher: Dispatcher) -> None:
    # Children that are kept busy are never empty; a new task would wait for ever.
    dispatcher.durations.note("quick", 0.001)
    give(dispatcher, *(flight() for _ in range(10)))
    newcomer = flight("new")
    give(dispatcher, newcomer, flight("new"), flight("new"), flight())
    assert held(pool) == [6, 6, 0]
    assert [each.claim.task for each in dispatcher.backlog] == ["new", "quick"]


def test_a_child_is_refilled_at_half_a_window(pool: Children, dispatcher: Dispatcher) -> None:
    for _ in range(60):
        dispatcher.durations.note("quick", 0.001)
    give(dispatcher, *(flight() for _ in range(60)))
    assert dispatcher.appetite(QUEUES, NOW) == []
    child = pool.children[1]
    for token in list(child.held)[:10]:
        del child.held[token]
    assert dispatcher.appetite(QUEUES, NOW) == []
    for token in list(child.held)[:10]:
        del child.held[token]
    assert [want.limit for want in dispatcher.appetite(QUEUES, NOW)] == [pytest.approx(20, abs=2)]


def test_a_child_is_given_no_more_than_it_has_left(pool: Children, dispatcher: Dispatcher) -> None:
    for _ in range(60):
        dispatcher.durations.note("quick", 0.001)
    pool.runs_left = 3
    assert dispatcher.appetite(QUEUES, NOW) == [Appetite(6, QUEUES)]
    give(dispatcher, *(flight() for _ in range(20)))
    assert held(pool) == [3, 3, 0]


# -- the first moments of a backlog ------------------------------------------------------------------


class Hand:
    """A worker with so many runs that are claimed and not settled."""

    runs = 0

    def dispatcher(self, pool: Children, *tiers: Tier) -> Dispatcher:
        dispatcher = Dispatcher(cast("Pool", pool), tiers, 10, lambda: self.runs)
        for _ in range(60):
            dispatcher.durations.note("quick", 0.000_01)
        return dispatcher


def test_the_first_helping_is_settled_before_more_is_claimed(pool: Children) -> None:
    hand = Hand()
    dispatcher = hand.dispatcher(pool)
    while wanted := dispatcher.appetite(QUEUES, NOW):
        # All of them end, and nobody settles them.
        bring(dispatcher, wanted[0].limit)
        hand.runs += wanted[0].limit
    assert hand.runs == HELPING_RUNS
    for left in range(HELPING_RUNS - 1, HELPING_LEFT, -326):
        dispatcher.settled(hand.runs - left)
        hand.runs = left
        assert dispatcher.appetite(QUEUES, NOW) == []
    assert hand.runs == HELPING_LEFT + 1
    dispatcher.settled(hand.runs)
    hand.runs = 0
    assert limit(dispatcher) > HELPING_SMALL


def test_the_last_few_of_the_first_helping_are_waited_for_a_moment_only(pool: Children) -> None:
    """One of them may take long, and most children would have nothing to do."""
    hand = Hand()
    dispatcher = hand.dispatcher(pool)
    while wanted := dispatcher.appetite(QUEUES, NOW):
        bring(dispatcher, wanted[0].limit)
        hand.runs += wanted[0].limit
    hand.runs = HELPING_LEFT
    dispatcher.settled(HELPING_RUNS - HELPING_LEFT)
    assert dispatcher.appetite(QUEUES, NOW) == []
    over = NOW + HELPING_LEFT_SECONDS
    assert dispatcher.appetite(QUEUES, over - 0.001) == []
    # And somebody wakes the worker then.
    assert dispatcher.next_fetch(over - 0.001) == over
    assert limit(dispatcher, over) > HELPING_SMALL


def test_what_is_left_of_the_first_helping_is_claimed_whatever_it_is(pool: Children) -> None:
    hand = Hand()
    dispatcher = hand.dispatcher(pool)
    dispatcher.settled(300)
    hand.runs = HELPING_RUNS - 300 - 2
    assert limit(dispatcher) == 2
    hand.runs += 2
    assert dispatcher.appetite(QUEUES, NOW) == []


def test_who_has_few_in_hand_does_not_wait_for_them(pool: Children) -> None:
    """Runs of some milliseconds: their children would have nothing to do meanwhile."""
    hand = Hand()
    dispatcher = hand.dispatcher(pool)
    for _ in range(60):
        dispatcher.durations.note("quick", 0.001)
    hand.runs = 50
    dispatcher.settled(HELPING_RUNS - 50)
    assert limit(dispatcher) == pytest.approx(60, abs=2)
    assert dispatcher.next_fetch(NOW) is None
    hand.runs = HELPING_SMALL
    dispatcher.settled(50 - HELPING_SMALL)
    assert dispatcher.appetite(QUEUES, NOW) == []


def test_what_is_never_settled_limits_nobody_for_long(pool: Children) -> None:
    """Runs that take long on very many children, or rows that somebody holds."""
    hand = Hand()
    dispatcher = hand.dispatcher(pool)
    hand.runs = 2 * HELPING_RUNS
    assert dispatcher.appetite(QUEUES, NOW) == []
    assert dispatcher.appetite(QUEUES, NOW + HELPING_SECONDS - 0.01) == []
    # And somebody wakes the worker then.
    assert dispatcher.next_fetch(NOW + HELPING_SECONDS - 0.01) == NOW + HELPING_SECONDS
    assert dispatcher.appetite(QUEUES, NOW + HELPING_SECONDS) == [Appetite(2 * FIRST_RUNS, QUEUES)]


def test_coroutines_under_way_take_nobody_s_place(pool: Children) -> None:
    hand = Hand()
    dispatcher = hand.dispatcher(pool)
    give(dispatcher, *(flight("fetch", concurrent=True) for _ in range(10)))
    hand.runs = HELPING_RUNS + 10 - 5
    assert limit(dispatcher) == 5


def test_the_next_backlog_begins_with_a_first_helping_again(pool: Children) -> None:
    hand = Hand()
    dispatcher = hand.dispatcher(pool)
    full(dispatcher)
    hand.runs = 2 * HELPING_RUNS
    assert limit(dispatcher) == 2 * WINDOW_RUNS
    bring(dispatcher, 1)
    # What is left of the last one does not count for the next, neither before nor after it is settled.
    assert limit(dispatcher) == 2 * FIRST_RUNS
    hand.runs += HELPING_RUNS
    assert dispatcher.appetite(QUEUES, NOW) == []
    dispatcher.settled(2 * HELPING_RUNS)
    hand.runs = HELPING_RUNS
    assert dispatcher.appetite(QUEUES, NOW) == []


# -- slow ones ---------------------------------------------------------------------------------------


def test_mates_of_a_slow_head_are_taken_back(pool: Children, dispatcher: Dispatcher) -> None:
    dispatcher.durations.note("quick", 0.001)
    give(dispatcher, *(flight() for _ in range(4)))
    start(pool.children[1])
    assert dispatcher.tend(NOW + SLOW_SECONDS / 2) == NOW + SLOW_SECONDS
    assert pool.taken_back == []
    dispatcher.tend(NOW + SLOW_SECONDS)
    assert pool.taken_back == [1]


def test_what_was_taken_back_goes_to_the_free_child(pool: Children, dispatcher: Dispatcher) -> None:
    slow = flight("slow")
    give(dispatcher, slow)
    start(pool.children[1])
    mates = [flight("quick") for _ in range(3)]
    dispatcher.durations.note("quick", 0.001)
    dispatcher.take_back(mates, NOW + 0.06)
    dispatcher.dispatch()
    assert held(pool) == [1, 3, 0]
    assert dispatcher.overdue(NOW + 0.06) == []


def test_what_nobody_here_can_take_is_given_back(pool: Children, dispatcher: Dispatcher) -> None:
    give(dispatcher, flight("slow"), flight("slow"), flight("slow"))
    assert dispatcher.overdue(NOW + SLOW_SECONDS) == []
    assert len(dispatcher.overdue(NOW + SLOW_SECONDS + 0.01)) == 1
    assert not dispatcher.backlog


def test_what_follows_a_run_of_known_length_is_fetched_a_moment_before_it_is_done(
    pool: Children, dispatcher: Dispatcher
) -> None:
    dispatcher.durations.note("slow", 0.2)
    give(dispatcher, flight("slow"), flight("slow"))
    for child in pool.sync_children():
        start(child)
    due = NOW + 0.2 - FETCH_SECONDS
    assert dispatcher.appetite(QUEUES, due - 0.01) == []
    assert dispatcher.next_fetch(due - 0.01) == pytest.approx(due)
    assert dispatcher.appetite(QUEUES, due + 0.001) == [Appetite(2, QUEUES)]
    give(dispatcher, flight("slow"), flight("slow"))
    assert held(pool) == [1, 1, 0]
    assert dispatcher.appetite(QUEUES, due + 0.001) == []


def test_nothing_is_fetched_for_what_takes_longer_than_it_should(pool: Children, dispatcher: Dispatcher) -> None:
    dispatcher.durations.note("slow", 0.2)
    give(dispatcher, flight("slow"), flight("slow"))
    for child in pool.sync_children():
        start(child)
    assert dispatcher.appetite(QUEUES, NOW + 0.3) == []
    assert dispatcher.next_fetch(NOW + 0.3) is None


# -- suspects ----------------------------------------------------------------------------------------


def test_a_suspect_travels_alone(pool: Children, dispatcher: Dispatcher) -> None:
    dispatcher.durations.note("quick", 0.001)
    give(dispatcher, flight(suspect=True), *(flight() for _ in range(4)))
    assert held(pool) == [1, 4, 0]
    give(dispatcher, flight())
    assert held(pool) == [1, 5, 0]


def test_a_child_becomes_empty_for_a_suspect_that_waits(pool: Children, dispatcher: Dispatcher) -> None:
    dispatcher.durations.note("quick", 0.001)
    give(dispatcher, *(flight() for _ in range(10)))
    waiting = flight(suspect=True)
    give(dispatcher, waiting, *(flight() for _ in range(6)))
    assert sorted(held(pool)) == [0, 5, 11]
    shorter = min(pool.sync_children(), key=lambda child: len(child.held))
    shorter.held.clear()
    give(dispatcher, *(flight() for _ in range(3)))
    assert list(shorter.held.values()) == [waiting]


def test_no_more_suspects_are_claimed_than_can_start(pool: Children, dispatcher: Dispatcher) -> None:
    for _ in range(60):
        dispatcher.durations.note("quick", 0.001)
    give(dispatcher, flight(suspect=True))
    assert dispatcher.appetite(QUEUES, NOW) == [Appetite(1, QUEUES)]
    pool.children[1].held.clear()
    give(dispatcher, flight())
    assert dispatcher.appetite(QUEUES, NOW)[0].limit > 20


# -- coroutines --------------------------------------------------------------------------------------


def test_plain_runs_that_take_long_do_not_keep_coroutines_waiting(pool: Children, dispatcher: Dispatcher) -> None:
    give(dispatcher, flight("slow"), flight("slow"), flight("fetch", concurrent=True, queue="io"))
    assert held(pool) == [1, 1, 1]
    assert dispatcher.appetite(QUEUES, NOW) == [Appetite(9, ["io"])]


def test_coroutines_that_take_long_do_not_keep_plain_runs_waiting(pool: Children, dispatcher: Dispatcher) -> None:
    give(dispatcher, *(flight("fetch", concurrent=True, queue="io") for _ in range(12)))
    assert held(pool) == [0, 0, 10]
    # Also not those that stand behind them in a queue that held nothing but coroutines so far.
    assert dispatcher.appetite(QUEUES, NOW) == [Appetite(2, QUEUES, not_tasks=("fetch",))]


def test_where_both_are_mixed_coroutines_do_not_pile_up(pool: Children, dispatcher: Dispatcher) -> None:
    give(dispatcher, flight(queue="mixed"), *(flight("fetch", concurrent=True, queue="mixed") for _ in range(20)))
    assert held(pool) == [1, 0, 10]
    assert dispatcher.appetite(["mixed"], NOW) == [Appetite(1, ["mixed"], not_tasks=("fetch",))]


def test_a_coroutine_waits_for_its_child_to_start() -> None:
    children = Children(1, concurrent=False)
    dispatcher = dispatcher_of(children)
    give(dispatcher, flight("fetch", concurrent=True))
    assert dispatcher.overdue(NOW + 10) == []
    children.close()


# -- reserved slots ----------------------------------------------------------------------------------


def test_reserved_slots_are_kept_for_near_deadlines() -> None:
    children = Children(2)
    dispatcher = dispatcher_of(children, Tier(1, 60.0))
    far, near = flight("far"), flight("near", due_in=timedelta(seconds=30))
    assert dispatcher.appetite(QUEUES, NOW) == [Appetite(1, QUEUES), Appetite(1, QUEUES, 60.0)]
    give(dispatcher, far, flight("far"))
    assert held(children) == [0, 1, 0]
    assert dispatcher.appetite(QUEUES, NOW) == [Appetite(1, QUEUES, 60.0)]
    give(dispatcher, near)
    assert list(children.children[1].held.values()) == [near]
    children.close()


def test_a_worker_that_finds_no_room_stays_cautious() -> None:
    """The loop asks again and again while its children are full: suspects go on travelling alone."""
    pool = Children(2)
    dispatcher = dispatcher_of(pool)
    for _ in range(60):
        dispatcher.durations.note("quick", 0.0005)
    asked = []

    def claim(worker: str, queues: list[str], limit: int, **more: Any) -> list[Claimed]:
        asked.append(limit)
        return [flight("quick", suspect=True).claim for _ in range(min(limit, 2))]

    runner = cast(
        "Any",
        SimpleNamespace(appetite=dispatcher.appetite, take_on=dispatcher.take_on, dispatch=dispatcher.dispatch),
    )
    given: Any = SimpleNamespace(names=QUEUES), Prospects()
    ledger = cast("Any", SimpleNamespace(claim=claim))
    hands = Hands(cast("Any", None), ledger, *given, Stopping(1.0), None)
    hands.begin("worker", Settler("worker"))
    hands.runner = runner
    worker = cast("Any", Worker.__new__(Worker))
    worker.hands, worker.prospects, worker._until_free = hands, given[1], Pauses()
    worker.claimer = Claimer(ledger, hands, runner, *given, Lookout(), Contact())
    dispatcher.cautious = True
    for _ in range(3):
        worker._claim(NOW)
    assert (asked, dispatcher.cautious) == ([2], True)
    pool.children[1].held.clear()
    assert [want.limit for want in dispatcher.appetite(QUEUES, NOW)] == [1]
    pool.close()
