"""What only others can see: doorbells, locks, real workers, and many at a time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.tasks import default_task_backend
from django.utils import timezone

from django_manta import State, gather, promise, reject, resolve, ringing
from django_manta.ledger import Ledger, fsck, graph, own_session
from django_manta.models import Gate, Herald, Run
from django_manta.states import Outcome
from django_manta.testing import run_all
from django_manta.worker.caretaker import spread_the_word
from tests.app.tasks import fail, fail_first
from tests.ledger.given import claimed, settlement, sql
from tests.worker.conftest import Start, ended, start_worker  # noqa: F401 (a fixture)
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
    same.enqueue("ready")
    with closing(own_session()) as session:
        other = Ledger(session)
        with transaction.atomic():
            result = same.using(after=[claim.id]).enqueue()
            begun = time.monotonic()
            assert other.settle([settlement(claim)]).moved == {claim.token: State.SUCCESSFUL}
            [again] = other.claim("worker", ["default"], 5)
            assert other.settle([settlement(again)]).moved
            assert time.monotonic() - begun < 1
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


def test_depending_on_what_is_running_returns_at_once() -> None:
    ledger = Ledger()
    [claim] = claimed(ledger)
    same.using(after=[claim.id]).enqueue()
    begun = time.monotonic()
    result = same.using(after=[claim.id]).enqueue()
    assert time.monotonic() - begun < 0.25
    assert state(result) is State.WAITING
    ledger.settle([settlement(claim)])
    assert state(result) is State.READY


@pytest.mark.postgres
def test_enqueueing_gives_up_on_a_precondition_that_somebody_holds() -> None:
    first = same.enqueue(1)
    hold = "UPDATE manta_run SET priority = priority WHERE id = %s"
    with closing(own_session()) as session:
        with session.transaction():
            sql(Ledger(session), hold, [UUID(first.id).hex])
            result = same.enqueue(first)
        assert not Gate.objects.get(run_id=result.id).armed
    assert connection.cursor().execute("SHOW lock_timeout").fetchone() == ("0",)
    Gate.objects.update(made_at=timezone.now() - timedelta(minutes=1))
    assert spread_the_word(default_task_backend, Ledger()) == 0
    assert Gate.objects.get(run_id=result.id).armed
    run_all()
    assert state(result) is State.SUCCESSFUL


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


# -- many at a time --------------------------------------------------------------------------------------


def test_edges_added_while_preconditions_end_lose_no_wake_up() -> None:
    """Writers add edges to runs that workers are finishing, each on a connection of its own."""
    firsts = same.map(range(60))
    results: list[str] = []
    errors: list[BaseException] = []
    written = threading.Event()

    def write(offset: int) -> None:
        try:
            for number in range(offset, 60, 3):
                on = gather(firsts[number], firsts[(number * 7) % 60])
                when = ["all_successful", "any_finished", "all_finished"][number % 3]
                results.append(same.using(after=on, when=when).enqueue(number).id)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    def work(name: str) -> None:
        with closing(own_session()) as session:
            ledger = Ledger(session)
            try:
                while True:
                    last = written.is_set()
                    claims = ledger.claim(name, ["default"], 3)
                    if claims:
                        finish(ledger, claims)
                    elif last:
                        return
                    else:
                        time.sleep(0.005)
            except BaseException as error:
                errors.append(error)
            finally:
                connection.close()

    def finish(ledger: Ledger, claims: list[object]) -> None:
        waiting = [settlement(claim) for claim in claims]  # type: ignore[arg-type]
        while waiting:
            settled = ledger.settle(waiting)
            waiting = [each for each in waiting if each.token in settled.busy]
            time.sleep(0.005 if waiting else 0)

    writers = [threading.Thread(target=write, args=[offset]) for offset in range(3)]
    workers = [threading.Thread(target=work, args=[f"worker-{number}"]) for number in range(2)]
    for thread in [*workers, *writers]:
        thread.start()
    for thread in writers:
        thread.join(60)
    written.set()
    for thread in workers:
        thread.join(60)
    assert errors == []
    # Whoever was in somebody's way left the rest to the caretaker.
    ledger = Ledger()
    while graph.tell_leftovers(ledger).seen or graph.arm_leftovers(ledger).seen:
        pass
    assert not Run.objects.filter(state=State.WAITING).exists()
    assert len(results) == 60
    run_all()
    assert not Run.objects.exclude(state=State.SUCCESSFUL).exists()


# -- real workers ----------------------------------------------------------------------------------------


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
    assert [each.outcome for each in later.history] == [Outcome.DEFERRED, Outcome.DEFERRED, Outcome.SUCCESSFUL]
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
