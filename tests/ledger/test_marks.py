"""Claims that begin behind what was taken before: the same runs, in the same order, and none is forgotten."""

import random
from datetime import timedelta
from json import loads
from uuid import UUID

import pytest
from django.db import OperationalError
from psycopg.errors import QueryCanceled

from django_manta.ledger import Claimed, Ledger, claiming, marks
from django_manta.states import Outcome, State
from tests.ledger.given import enqueue, lose, settlement, sql

pytestmark = pytest.mark.postgres


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> marks.Marks:
    """Marks that hold until a batch is not full."""
    monkeypatch.setattr(marks, "REST_SECONDS", 1_000.0)
    monkeypatch.setattr(marks, "LONGEST_SECONDS", 1_000.0)
    monkeypatch.setattr(marks, "CHEAP_SECONDS", 1_000.0)
    return marks.Marks()


def take(ledger: Ledger, mine: marks.Marks, limit: int) -> list[Claimed]:
    return ledger.claim("worker", ["default"], limit, marks=mine)


def ids(claims: list[Claimed]) -> list[UUID]:
    return [claim.id for claim in claims]


def test_everything_is_taken_once_and_in_order(ledger: Ledger, mine: marks.Marks) -> None:
    dice = random.Random(7)
    wanted = []
    for _ in range(60):
        priority, hours = dice.choice([-5, 0, 0, 0, 3]), dice.randrange(4)
        [run_id] = enqueue(ledger, priority=priority, deadline=timedelta(days=1, hours=hours))
        wanted.append((-priority, hours, run_id))
    found: list[UUID] = []
    while claims := take(ledger, mine, 7):
        found += sorted(ids(claims), key=[run_id for *_, run_id in sorted(wanted)].index)
    assert found == [run_id for *_, run_id in sorted(wanted)]


def test_no_more_queues_are_remembered_than_may_matter(ledger: Ledger, mine: marks.Marks) -> None:
    """A queue for each customer: other names each day."""
    for number in range(300):
        queue = f"customer-{number}"
        enqueue(ledger, queue=queue)
        assert len(ledger.claim("worker", [queue, "default"], 5, marks=mine)) == 1
    assert len(mine._lines) == marks.REMEMBERED
    # What is looked at all the time stays.
    assert "default" in mine._lines


def test_what_comes_before_the_mark_by_priority_is_taken_first(ledger: Ledger, mine: marks.Marks) -> None:
    enqueue(ledger, 10)
    take(ledger, mine, 4)
    [urgent] = enqueue(ledger, priority=9)
    [modest] = enqueue(ledger, priority=-9)
    assert urgent in ids(take(ledger, mine, 1))
    [urgent_again] = enqueue(ledger, priority=9)
    assert ids(take(ledger, mine, 1)) == [urgent_again]
    assert len(take(ledger, mine, 6)) == 6
    assert ids(take(ledger, mine, 1)) == [modest]


def test_what_comes_back_behind_the_mark_is_found_when_a_batch_is_not_full(ledger: Ledger, mine: marks.Marks) -> None:
    enqueue(ledger, 10)
    first = take(ledger, mine, 4)
    back = [settlement(claim, outcome=Outcome.RETURNED, next_state=State.READY) for claim in first]
    assert len(ledger.settle(back, "worker").moved) == 4
    # The marks are behind them.
    assert not set(ids(first)) & set(ids(take(ledger, mine, 4)))
    assert set(ids(first)) <= set(ids(take(ledger, mine, 20)))


def test_what_a_claim_locks_and_does_not_take_is_its_next_and_others_find_it_later(
    ledger: Ledger, other_ledger: Ledger, mine: marks.Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, theirs = enqueue(ledger, 12), marks.Marks()
    assert ids(other_ledger.claim("other", ["default"], 1, marks=theirs)) == runs[:1]
    with other_ledger.session.transaction():
        # It locks four of them.
        assert ids(other_ledger.claim("other", ["default"], 4, marks=theirs, budget=1)) == runs[1:2]
        assert ids(take(ledger, mine, 2)) == runs[5:7]
    assert ids(other_ledger.claim("other", ["default"], 1, marks=theirs)) == runs[2:3]
    assert ids(take(ledger, mine, 2)) == runs[7:9]
    monkeypatch.setattr(marks.time, "monotonic", lambda: 1e9)
    assert ids(take(ledger, mine, 3)) == [*runs[3:5], runs[9]]


def test_and_after_a_while_in_any_case(ledger: Ledger, mine: marks.Marks, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue(ledger, 20)
    [first, *_] = take(ledger, mine, 4)
    ledger.settle([settlement(first, outcome=Outcome.RETURNED, next_state=State.READY)], "worker")
    assert first.id not in ids(take(ledger, mine, 2))
    monkeypatch.setattr(marks.time, "monotonic", lambda: 1e9)
    assert first.id in ids(take(ledger, mine, 2))


def test_whatever_is_passed_over_is_left_before_the_mark(ledger: Ledger, mine: marks.Marks) -> None:
    [other] = enqueue(ledger, task="tests.app.tasks.fail")
    enqueue(ledger, 10)
    for _ in range(2):
        ledger.claim("worker", ["default"], 2, not_tasks=["tests.app.tasks.fail"], marks=mine)
    assert other in ids(take(ledger, mine, 1))


def test_a_pause_and_a_lost_lease_hold_behind_a_mark_as_well(ledger: Ledger, mine: marks.Marks) -> None:
    enqueue(ledger, 10)
    assert len(take(ledger, mine, 2)) == 2
    sql(ledger, "INSERT INTO manta_queue (name, paused_at) VALUES ('default', statement_timestamp())")
    assert take(ledger, mine, 2) == []
    sql(ledger, "DELETE FROM manta_queue")
    assert len(take(ledger, mine, 2)) == 2
    lose(ledger, "worker")
    assert take(ledger, mine, 2) == []


def test_of_very_many_priorities_the_highest_are_marked(mine: marks.Marks, ledger: Ledger) -> None:
    for priority in range(marks.PRIORITIES + 2):
        enqueue(ledger, priority=priority)
    enqueue(ledger, 3, priority=-1)
    assert len(take(ledger, mine, marks.PRIORITIES + 2)) == marks.PRIORITIES + 2
    assert marked(mine) == list(range(marks.PRIORITIES + 1, 1, -1))
    assert len(take(ledger, mine, 3)) == 3


def marked(mine: marks.Marks, queue: str = "default") -> list[int]:
    """The priorities that claims begin behind the last run of."""
    return [part["priority"] for part in loads(mine.parts(queue)) if "priority" in part]


def test_a_priority_that_came_and_went_stays_marked(
    ledger: Ledger, mine: marks.Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entries may be there still, before all others."""
    enqueue(ledger, 4, priority=5)
    enqueue(ledger, 20)
    take(ledger, mine, 4)
    assert marked(mine) == [5]
    monkeypatch.setattr(marks.time, "monotonic", lambda: 1e9)
    # All of the queue, because it is time.
    take(ledger, mine, 4)
    assert marked(mine) == [5, 0]


def test_of_a_priority_that_a_look_did_not_come_to_the_mark_is_given_up(ledger: Ledger, mine: marks.Marks) -> None:
    enqueue(ledger, 3, priority=5)
    [first, *_] = [*take(ledger, mine, 3), *enqueue(ledger, 3)]
    take(ledger, mine, 2)
    assert marked(mine) == [5, 0]
    ledger.settle([settlement(first, outcome=Outcome.RETURNED, next_state=State.READY)], "worker")
    mine.looked("default", [first], 0.0, full=True)
    assert marked(mine) == [5]


def test_where_a_look_takes_long_it_waits_until_it_is_due(
    ledger: Ledger, mine: marks.Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "CHEAP_SECONDS", -1.0)
    enqueue(ledger, 6)
    [first, *_] = take(ledger, mine, 4)
    ledger.settle([settlement(first, outcome=Outcome.RETURNED, next_state=State.READY)], "worker")
    assert len(take(ledger, mine, 4)) == 2
    # It is told when to come again.
    assert mine.look_at is not None
    assert mine.are_dear(["default"])
    assert take(ledger, mine, 4) == []
    [late] = enqueue(ledger)
    assert ids(take(ledger, mine, 4)) == [late]
    monkeypatch.setattr(marks.time, "monotonic", lambda: 1e9)
    assert ids(take(ledger, mine, 4)) == [first.id]
    assert mine.look_at is None


def test_a_look_at_one_queue_leaves_the_marks_of_another(ledger: Ledger, mine: marks.Marks) -> None:
    enqueue(ledger, 10, queue="much")
    ledger.claim("worker", ["much"], 2, marks=mine)
    assert mine.hold("much")
    for _ in range(2):
        assert ledger.claim("worker", ["none"], 2, marks=mine) == []
    assert mine.hold("much")


def too_long(*args: object) -> list[Claimed]:
    raise OperationalError("canceling statement due to statement timeout") from QueryCanceled()


def test_what_was_claimed_is_not_lost_with_a_look_that_takes_too_long(
    committed: None, ledger: Ledger, mine: marks.Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(ledger, 5)
    assert len(take(ledger, mine, 3)) == 3
    monkeypatch.setattr(claiming, "_claim", too_long)
    assert len(take(ledger, mine, 10)) == 2
    with pytest.raises(OperationalError):
        ledger.claim("worker", ["other"], 10, marks=mine)


def test_inside_a_transaction_it_goes_with_the_look_that_takes_too_long(
    committed: None, ledger: Ledger, mine: marks.Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(ledger, 5)
    assert len(take(ledger, mine, 3)) == 3
    monkeypatch.setattr(claiming, "_claim", too_long)
    with pytest.raises(OperationalError), ledger.session.transaction():
        take(ledger, mine, 10)
    monkeypatch.undo()
    assert len(take(ledger, mine, 10)) == 2


def test_a_claim_whose_answer_was_lost_is_told_although_something_was_claimed_before(
    ledger: Ledger, mine: marks.Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been committed: the worker has to ask what it owns."""
    enqueue(ledger, 5)
    assert len(take(ledger, mine, 3)) == 3

    def cut(*args: object) -> list[Claimed]:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(claiming, "_claim", cut)
    with pytest.raises(OperationalError):
        take(ledger, mine, 10)


def test_queues_take_turns_behind_their_marks(ledger: Ledger, mine: marks.Marks) -> None:
    for queue, count in (("much", 60), ("little", 12), ("none", 0)):
        enqueue(ledger, count, queue=queue)
    queues = ["much", "little", "none"]
    taken = []
    for _ in range(4):
        claims = ledger.claim("worker", queues, 10, marks=mine)
        assert len(claims) == 10
        taken.append(sum(claim.queue == "little" for claim in claims))
        assert mine.hold("much")
    # A third at least, as long as there are some, and no more than half.
    assert taken[0] == 5
    assert sum(taken) == 12
    assert all(3 <= few <= 6 for few in taken[:2])
    [late] = enqueue(ledger, queue="none")
    assert late in ids(ledger.claim("worker", queues, 10, marks=mine))
