"""REPEATABLE READ and SERIALIZABLE, conflicts between transactions, and connections without autocommit."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from django.db import connections, transaction

from django_manta import State, WorkflowExists, promise, resolve, workflow
from django_manta.ledger import Ledger, fsck
from django_manta.models import Run, Workflow
from django_manta.testing import run_all
from django_manta.workflow import own
from tests import test_executor
from tests.app import isolated, tasks
from tests.app.models import Ledgerline
from tests.worker.conftest import Start, ended, start_worker

__all__ = ["start_worker"]

LEVELS = ["repeatable_read", "serializable"]


@pytest.fixture
def isolation(request: pytest.FixtureRequest, transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every connection to the default database has this level, also those of processes that the test starts."""
    from psycopg import IsolationLevel

    level: str = request.param
    connection = connections["default"]
    connection.close()
    monkeypatch.setenv("MANTA_TEST_ISOLATION", level)
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", IsolationLevel[level.upper()])
    yield level
    connection.close()


with_isolation = pytest.mark.parametrize("isolation", LEVELS, indirect=True)


def outcomes(result: Any) -> list[str]:
    result.refresh()
    return [attempt.outcome.value for attempt in result.history]


# -- the isolation level of the project --------------------------------------------------------------


@pytest.mark.postgres
@with_isolation
def test_an_atomic_task_that_tells_how_it_goes_is_executed_once(isolation: str) -> None:
    good = isolated.tell_and_write.enqueue()
    run_all(include_scheduled=True, max_runs=8)
    assert outcomes(good) == ["SUCCESSFUL"]
    assert good.return_value == [False, False]
    assert (good.progress.done, good.metadata) == (1, {"told": True})
    assert Ledgerline.objects.filter(label="start").count() == 1


@pytest.mark.postgres
@with_isolation
def test_what_an_atomic_task_told_is_kept_when_it_fails(isolation: str) -> None:
    bad = isolated.tell_and_write.enqueue(fails=True)
    run_all(include_scheduled=True, max_runs=8)
    assert outcomes(bad) == ["FAILED"]
    assert (bad.progress.done, bad.metadata) == (1, {"told": True})
    assert not Ledgerline.objects.filter(label="effect").exists()


@pytest.mark.django_db(transaction=True)
def test_what_an_atomic_task_tells_shows_at_once_where_others_may_read_what_is_committed() -> None:
    telling = tasks.tell_progress_atomically.enqueue()
    run_all()
    telling.refresh()
    if connections["default"].vendor == "postgresql":
        assert telling.return_value == [1, {"told": True}]
    assert telling.metadata == {"told": True}


@pytest.mark.postgres
@with_isolation
def test_a_worker_does_everything_at_this_level(isolation: str, start_worker: Start) -> None:
    lines = [tasks.write_atomically.enqueue(f"line {n}", n) for n in range(60)]
    telling = [isolated.tell_and_write.enqueue() for _ in range(10)]
    plain = tasks.add.starmap([(n, 1) for n in range(40)])
    first = tasks.add.enqueue(1, 1)
    chain = [first]
    for _ in range(10):
        chain.append(tasks.add.enqueue(chain[-1], 1))
    every = [*lines, *telling, *plain, *chain]
    worker = start_worker("--processes", "2").ready()
    ended(*every, limit=90, worker=worker)
    assert {run.state for run in every} == {State.SUCCESSFUL}, worker.tell()
    assert chain[-1].return_value == 12
    assert Ledgerline.objects.filter(label__startswith="line").count() == 60
    assert Ledgerline.objects.filter(label="effect").count() == 10
    assert fsck.check(Ledger()) == []


@pytest.mark.postgres
@with_isolation
@pytest.mark.parametrize(
    "test",
    [
        test_executor.test_an_atomic_tasks_writes_and_its_success_commit_together,
        test_executor.test_an_atomic_task_that_lost_its_lease_leaves_no_trace,
        test_executor.test_failures_use_up_max_attempts_and_wait_their_backoff,
    ],
    ids=lambda test: test.__name__,
)
def test_what_holds_elsewhere_holds_at_this_level(isolation: str, test: Callable[[], None]) -> None:
    test()


@pytest.mark.postgres
@with_isolation
def test_the_second_workflow_of_a_unique_key_is_told_of_the_first_also_if_it_cannot_see_it(isolation: str) -> None:
    def enqueue_first() -> Any:
        try:
            with workflow("import", unique_key="monday") as flow:
                tasks.add.enqueue(1, 2)
            return flow.id
        finally:
            connections["default"].close()

    with pytest.raises(WorkflowExists) as refused, transaction.atomic():
        # From now on it sees nothing that others do.
        assert not Workflow.objects.exists()
        with ThreadPoolExecutor(1) as elsewhere:
            first = elsewhere.submit(enqueue_first).result(30)
        with workflow("import", unique_key="monday"):
            tasks.add.enqueue(3, 4)
    assert refused.value.workflow_id == first
    assert Run.objects.count() == 1


# -- conflicts ---------------------------------------------------------------------------------------


@pytest.fixture
def shared_line(transactional_db: None) -> None:
    Ledgerline.objects.create(label="shared")


@pytest.mark.postgres
@pytest.mark.parametrize("at", ["statement", "settlement"])
def test_a_conflict_inside_an_atomic_task_charges_nobody(shared_line: None, at: str) -> None:
    result = isolated.lose_conflicts.enqueue(3, at)
    run_all(include_scheduled=True, max_runs=20)
    assert outcomes(result) == ["INTERRUPTED"] * 3 + ["SUCCESSFUL"]
    assert Run.objects.get(pk=result.id).failures == 0
    assert "could not serialize access" in result.history[0].error_message
    assert Ledgerline.objects.filter(label="effect").count() == 1


@pytest.mark.postgres
@pytest.mark.parametrize("at", ["statement", "settlement"])
def test_a_conflict_that_comes_again_and_again_is_charged_in_the_end(shared_line: None, at: str) -> None:
    result = isolated.lose_conflicts.using(max_attempts=2, backoff=0).enqueue(1_000, at)
    run_all(include_scheduled=True, max_runs=30)
    assert outcomes(result) == (["INTERRUPTED"] * 5 + ["FAILED"]) * 2
    assert result.state == State.FAILED
    assert not Ledgerline.objects.filter(label="effect").exists()


# -- without autocommit ------------------------------------------------------------------------------


@pytest.fixture
def no_autocommit(transactional_db: None) -> Iterator[None]:
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


@pytest.mark.parametrize("block", [nullcontext, transaction.atomic], ids=["plainly", "in a block"])
def test_what_is_enqueued_without_autocommit_is_there_when_the_caller_commits(
    no_autocommit: None, block: Callable[[], Any]
) -> None:
    if block is nullcontext or connections["default"].vendor == "postgresql":
        # SQLite commits at the end of such a block.
        with block():
            tasks.add.enqueue(0, 0)
        transaction.rollback()
    with block():
        first = tasks.add.enqueue(1, 2)
        second = tasks.add.enqueue(first, 3)
        many = tasks.add.starmap([(n, n) for n in range(3)])
        promised = promise("approval")
        resolve("approval", 1)
        gone = tasks.add.enqueue(5, 5)
        gone.cancel()
        with workflow("import", unique_key="monday") as flow:
            third = tasks.add.enqueue(second, 4)
    transaction.commit()
    assert not connections["default"].run_on_commit
    assert Run.objects.count() == 8
    assert flow.runs.count() == 1
    run_all()
    transaction.commit()
    assert [run.return_value for run in map(refreshed, (first, second, third, *many, promised))] == [
        3,
        6,
        10,
        0,
        2,
        4,
        1,
    ]
    assert refreshed(gone).state == State.CANCELLED
    assert fsck.check(Ledger()) == []


def refreshed(result: Any) -> Any:
    result.refresh()
    return result


def test_a_worker_finds_what_was_committed_by_hand(no_autocommit: None, start_worker: Start) -> None:
    worker = start_worker("--processes", "1")
    first = tasks.write_atomically.enqueue("line", 1)
    second = tasks.echo.using(after=[first]).enqueue(2)
    transaction.commit()
    transaction.set_autocommit(True)
    ended(first, second, limit=60, worker=worker)
    assert (first.state, second.state) == (State.SUCCESSFUL, State.SUCCESSFUL)
    transaction.set_autocommit(False)


# -- very long transactions --------------------------------------------------------------------------


def test_a_long_transaction_keeps_no_more_the_more_it_enqueues(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "REMEMBERED", 100)
    with transaction.atomic():
        done = tasks.add.enqueue(1, 1)
        first = [tasks.add.enqueue(n, 1) for n in range(200)]
        later = [tasks.add.using(queue_name="urgent").enqueue(n, 1) for n in range(300)]
        waiting = [tasks.add.using(after=[done]).enqueue(n, 1) for n in range(300)]
        assert len(own.runs("default")) <= 100
        # The last ones of a kind are one each: two queues, and who is to be counted.
        assert len(connections["default"].run_on_commit) <= own.HOOKS + 4
    run_all()
    assert {refreshed(each).state for each in (done, *first, *later, *waiting)} == {State.SUCCESSFUL}


def test_what_a_savepoint_takes_back_of_a_long_transaction_takes_nobody_along(transactional_db: None) -> None:
    done = tasks.add.enqueue(1, 1)
    run_all()
    with transaction.atomic():
        for n in range(own.HOOKS):
            tasks.add.enqueue(n, 1)
        with suppress(ZeroDivisionError), transaction.atomic():
            gone = tasks.add.using(after=[done]).enqueue(1, 1)
            raise ZeroDivisionError
        kept = tasks.add.using(after=[done]).enqueue(2, 2)
        another = tasks.add.using(after=[done]).enqueue(3, 3)
    assert {refreshed(kept).state, refreshed(another).state} == {State.READY}
    assert not Run.objects.filter(pk=gone.id).exists()
    run_all()
