"""What only others can see: doorbells, locks, real workers, and many at a time."""

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from django.db import connection, transaction

from django_manta import State, promise, reject, resolve, ringing
from django_manta.ledger import Ledger, fsck, graph, own_session
from django_manta.models import Gate, Herald, Run
from django_manta.result import refresh_all
from django_manta.states import Outcome
from django_manta.testing import run_all
from django_manta.workflow import own
from tests.app.tasks import fail, fail_first
from tests.ledger.given import claimed, settlement, sql
from tests.worker.conftest import Start, ended, start_worker  # noqa: F401 (a fixture)
from tests.worker.seldom import LOOK_SECONDS
from tests.workflow.conftest import state, states
from tests.workflow.tasks import BROKEN, descend, fragile, later_twice, look_upstream, merge_sort, same, spread

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def ending() -> Iterator[str]:
    """Everything here is committed."""
    BROKEN.clear()
    yield "committed"
    assert fsck.check(Ledger()) == []
    assert not Herald.objects.exists()


# -- the doorbell ----------------------------------------------------------------------------------------


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    heard: list[str] = []
    monkeypatch.setattr(ringing, "_ring", lambda database, cluster, word: heard.append(word))
    return heard


def rung(heard: list[str], act: Callable[[], object]) -> bool:
    heard.clear()
    act()
    return bool(heard)


@pytest.mark.postgres
def test_the_doorbell_rings_exactly_when_a_run_becomes_ready(rings: list[str]) -> None:
    open_ = promise("open")
    assert not rung(rings, lambda: same.enqueue(open_))
    assert not rung(rings, lambda: same.using(after=[open_], when="all_finished").enqueue())
    assert not rung(rings, lambda: same.using(after=[open_], when="any_finished").enqueue())
    assert rung(rings, lambda: resolve("open"))
    assert rung(rings, lambda: same.enqueue(open_))
    again = promise("again")
    same.using(after=[again], when="all_finished").enqueue()
    assert rung(rings, lambda: reject("again"))
    first = same.enqueue(1)
    same.using(after=[first], when="any_finished").enqueue()
    assert rung(rings, first.cancel)
    lone = same.enqueue(1)
    assert not rung(rings, lone.cancel)
    assert rung(rings, lone.retry)


@pytest.mark.postgres
def test_the_doorbell_rings_again_when_very_many_were_locked_to_be_counted(rings: list[str]) -> None:
    """A worker that looked meanwhile passed them over, and would not look again for a second."""
    few, many = same.map(range(3)), same.map(range(101))
    rings.clear()
    same.enqueue(few)
    assert rings == []
    same.enqueue(many)
    assert rings == [ringing.UNKNOWN]
    run_all()


@pytest.mark.postgres
def test_a_doorbell_in_a_transaction_rings_when_it_commits(rings: list[str]) -> None:
    open_ = promise("open")
    same.enqueue(open_)
    with transaction.atomic():
        assert not rung(rings, lambda: resolve("open"))
    assert rings
    run_all()


# -- locks -----------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_a_caller_that_keeps_its_transaction_open_delays_no_settle_and_no_claim() -> None:
    ledger = Ledger()
    [claim] = claimed(ledger)
    waiting = same.enqueue("ready")
    with closing(own_session()) as session:
        other = Ledger(session)
        # All of it happens before the caller commits, however long that takes. (A settlement passes over a row
        # that somebody holds, and so does a claim: neither would have found anything.)
        with transaction.atomic():
            result = same.using(after=[claim.id, waiting.id]).enqueue()
            sql(other, "SELECT 1 FROM manta_run WHERE id = %s FOR UPDATE NOWAIT", [claim.id.hex])
            assert other.settle([settlement(claim)]).moved == {claim.token: State.SUCCESSFUL}
            [again] = other.claim("worker", ["default"], 5)
            assert str(again.id) == waiting.id
            assert other.settle([settlement(again)]).moved == {again.token: State.SUCCESSFUL}
            assert state(result) is State.WAITING
    assert state(result) is State.READY
    run_all()
    assert state(result) is State.SUCCESSFUL


@pytest.mark.postgres
def test_a_transaction_that_never_commits_leaves_no_trace() -> None:
    first = same.enqueue(1)
    with closing(own_session()) as session, pytest.raises(RuntimeError), transaction.atomic():
        same.enqueue(first)
        [claim] = Ledger(session).claim("worker", ["default"], 1)
        assert Ledger(session).settle([settlement(claim)]).heralds == ()
        raise RuntimeError
    assert (Run.objects.count(), Gate.objects.count()) == (1, 0)


def test_depending_on_what_is_running_is_counted_at_once() -> None:
    ledger = Ledger()
    [claim] = claimed(ledger)
    result = same.using(after=[claim.id]).enqueue()
    assert Gate.objects.get(run=result.id).armed
    assert state(result) is State.WAITING
    ledger.settle([settlement(claim)])
    assert state(result) is State.READY


@pytest.mark.postgres
def test_depending_on_what_somebody_holds_waits_for_nobody() -> None:
    """Whoever enqueues goes on, and the caretaker counts when the row is free again."""
    ledger = Ledger()
    [claim] = claimed(ledger)
    with closing(own_session()) as session:
        holder = Ledger(session)
        # In this thread: an enqueue that waited for the row would wait for ever.
        with session.transaction():
            sql(holder, "SELECT 1 FROM manta_run WHERE id = %s FOR UPDATE", [claim.id.hex])
            result = same.using(after=[claim.id]).enqueue()
            assert not Gate.objects.get(run=result.id).armed
            # For that one transaction only.
            assert connection.cursor().execute("SHOW lock_timeout").fetchone() == ("0",)
        assert holder.settle([settlement(claim)]).moved
        assert state(result) is State.WAITING
        assert graph.arm_leftovers(holder).seen == 1
    assert state(result) is State.READY
    run_all()


@pytest.mark.postgres
def test_a_deadline_is_passed_on_past_what_somebody_holds() -> None:
    held, free = same.enqueue(1), same.enqueue(2)
    last = same.enqueue([held, free])
    kept = Run.objects.get(id=held.id).deadline
    near = "UPDATE manta_run SET deadline = now() WHERE id = %s"
    sql(Ledger(), near, [UUID(last.id).hex])
    with closing(own_session()) as session, transaction.atomic():
        sql(Ledger(), "SELECT 1 FROM manta_run WHERE id = %s FOR UPDATE", [UUID(held.id).hex])
        assert graph.bring_forward(Ledger(session), [UUID(last.id)]) == 1
    assert Run.objects.get(id=held.id).deadline == kept
    run_all()


@pytest.mark.postgres
def test_fsck_waits_for_nobody() -> None:
    same.enqueue(same.enqueue(1))
    with closing(own_session()) as session, transaction.atomic():
        for table in ("manta_run", "manta_gate", "manta_dependency"):
            sql(Ledger(), f"SELECT 1 FROM {table} FOR UPDATE")
        assert fsck.check(Ledger(session)) == []


# -- real workers ----------------------------------------------------------------------------------------


@pytest.mark.postgres  # which locks rows
def test_no_step_of_a_chain_waits_for_a_look_because_somebody_counts_the_next_one(
    start_worker: Start,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where steps are added to what is there already: to count one, a process locks the one before."""
    monkeypatch.setattr(own, "runs", lambda database: set())
    start_worker("--processes", "2", module="tests.worker.seldom").ready()
    for _ in range(8):
        with transaction.atomic():
            chain = [same.enqueue(0)]
            for _ in range(49):
                chain.append(same.enqueue(chain[-1]))
        ended(chain[-1], limit=60)
        refresh_all(chain)
        waited = [after.started_at - before.finished_at for before, after in pairwise(chain)]
        assert max(waited) < timedelta(seconds=LOOK_SECONDS - 1)


def test_a_worker_does_it_all(start_worker: Start) -> None:  # noqa: F811
    start_worker("--processes", "2").ready()
    numbers = [5, 3, 9, 1, 7, 2, 8, 6, 4]
    sort, down, wide = merge_sort.enqueue(numbers), descend.enqueue(5), spread.enqueue(["a", "b"])
    later, later_still = later_twice.enqueue(), later_twice.enqueue(others=True)
    bad = fail.enqueue()
    strict = same.enqueue([bad])
    lenient = look_upstream.using(after=[bad, sort], when="all_finished").enqueue()
    again = same.enqueue(fail_first.enqueue())
    approval = promise("approval")
    approved = same.enqueue(approval)
    resolve("approval", "yes")
    joined = same.enqueue([sort, down, wide, later, later_still, approved, again])
    ended(joined, strict, lenient, limit=30)
    assert joined.return_value == [sorted(numbers), "the ground", ["a", "b"], 3, 3, "yes", 2]
    assert state(strict) is State.UPSTREAM_FAILED
    assert lenient.return_value == [["fail", "FAILED"], ["merge_sort", "SUCCESSFUL"]]
    later.refresh()
    # On a busy machine some may have been given to one child, taken back unstarted, and given to another.
    started = [each.outcome for each in later.history if each.outcome is not Outcome.RETURNED]
    assert started == [Outcome.DEFERRED, Outcome.DEFERRED, Outcome.SUCCESSFUL]
    waited = joined.started_at - max(each.refresh() or each.finished_at for each in (sort, down, wide, later))
    assert waited.total_seconds() < 3


def test_a_worker_takes_up_what_was_left_lying(start_worker: Start, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Whoever enqueued died before it could count, and whoever cancelled before it could tell."""
    gone = same.using(hold=True).enqueue(1)
    told = same.using(after=[gone], when="all_finished").enqueue("told")
    with monkeypatch.context() as patched:
        patched.setattr(graph, "arm", lambda *args, **kwargs: graph.Passed())
        patched.setattr(graph, "tell", lambda *args, **kwargs: graph.Passed())
        uncounted = same.enqueue(same.enqueue("counted"))
        gone.cancel()
    assert states(told, uncounted) == [State.WAITING] * 2
    start_worker("--processes", "1")
    ended(told, uncounted, limit=30)
    assert [told.return_value, uncounted.return_value] == ["told", "counted"]


def test_a_failure_of_something_broken_is_told_to_who_waits_in_another_queue(start_worker: Start) -> None:  # noqa: F811
    start_worker("--processes", "1").ready()
    result = same.using(queue_name="slow").enqueue(fragile.enqueue("whole"))
    ended(result, limit=20)
    assert result.return_value == "whole"
