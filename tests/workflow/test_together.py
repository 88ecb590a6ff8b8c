"""What a workflow enqueues is inserted together, and nobody can tell the difference."""

from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from django.db import DEFAULT_DB_ALIAS, DatabaseError, IntegrityError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.dispatch import receiver
from django.tasks.signals import task_enqueued
from django.test.utils import CaptureQueriesContext

from django_manta import State, TaskResult, promise, resolve, workflow
from django_manta.ledger import Ledger
from django_manta.models import Dependency, Gate, Run
from django_manta.result import get_result
from django_manta.testing import run_all
from django_manta.workflow import own, together, waits
from tests.app.models import Ledgerline
from tests.app.tasks import add
from tests.workflow.conftest import state, states
from tests.workflow.tasks import same, total


def chain(length: int) -> list[TaskResult]:
    steps = [same.enqueue(1)]
    for _ in range(length - 1):
        steps.append(same.enqueue(steps[-1]))
    return steps


def inserts(captured: CaptureQueriesContext) -> int:
    return sum("INSERT INTO manta_run" in query["sql"] for query in captured.captured_queries)


def apart_from_rings(captured: CaptureQueriesContext) -> int:
    """How many statements there were; whether the doorbell rings depends on how long ago it did."""
    return sum("pg_notify" not in query["sql"] for query in captured.captured_queries)


def test_a_graph_is_inserted_by_one_statement() -> None:
    with CaptureQueriesContext(connection) as few, workflow("few"):
        chain(2)
    with CaptureQueriesContext(connection) as many, workflow("many"):
        steps = chain(40)
        joined = total.enqueue(same.map(range(100)))
        same.using(after=[joined]).enqueue()
    assert inserts(few) == inserts(many) == 1
    assert apart_from_rings(few) == apart_from_rings(many)
    run_all(max_runs=200)
    steps[-1].refresh()
    joined.refresh()
    assert (steps[-1].return_value, joined.return_value) == (1, sum(range(100)))
    assert Run.objects.successful().count() == Run.objects.count() == 2 + 40 + 102


def test_results_are_what_the_database_says_they_are() -> None:
    with workflow("import"):
        first = same.using(priority=7, metadata={"a": 1}).enqueue("x", y=2)
        second = same.using(after=[first], when="any_finished", deadline=timedelta(hours=1)).enqueue(first)
        # Before the commit, after which what the second waits for hurries as much as it does.
        for result in (first, second):
            assert get_result(result.id) == result
    assert second.deadline - second.enqueued_at == timedelta(hours=1)


@pytest.mark.parametrize(
    "look",
    [
        lambda result: get_result(result.id),
        lambda result: result.refresh(),
        lambda result: Run.objects.get(id=result.id),
        lambda result: connection.cursor().execute("SELECT 1"),
        lambda result: list(Run.objects.filter(id=result.id).iterator()),
        lambda result: result.cancel(),
    ],
    ids=["get_result", "refresh", "query", "anything", "iterator", "cancel"],
)
def test_whoever_asks_for_them_in_the_block_finds_them(look: Any) -> None:
    with workflow("import") as flow:
        first = same.enqueue(1)
        second = same.enqueue(first)
        look(second)
        third = same.enqueue(second)
        assert flow.runs.count() == 3
    run_all()
    ended = State.UPSTREAM_FAILED if state(second) is State.CANCELLED else State.SUCCESSFUL
    assert state(third) is ended


def test_a_receiver_of_task_enqueued_finds_the_run() -> None:
    seen = []

    @receiver(task_enqueued)
    def look(task_result: TaskResult, **kwargs: Any) -> None:
        seen.append(Run.objects.filter(id=task_result.id).count())

    try:
        with workflow("import"):
            chain(3)
    finally:
        task_enqueued.disconnect(look)
    assert seen == [1, 1, 1]


def test_what_a_rolled_back_part_enqueued_is_gone_and_the_rest_is_there() -> None:
    with workflow("import"):
        first = same.enqueue(1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            undone = same.enqueue(first)
            raise ZeroDivisionError
        with transaction.atomic():
            kept = same.enqueue(first)
        last = same.enqueue(kept)
    assert set(Run.objects.values_list("id", flat=True)) == {UUID(each.id) for each in (first, kept, last)}
    assert not Dependency.objects.filter(run_id=undone.id).exists()
    run_all()
    assert states(first, kept, last) == [State.SUCCESSFUL] * 3


def test_a_part_that_the_database_has_given_up_can_be_rolled_back() -> None:
    """What is noted must not be inserted then: nothing can be, and the savepoint could not be rolled back."""
    with workflow("import"):
        first = same.enqueue(1)
        with pytest.raises(DatabaseError), transaction.atomic():
            try:
                connection.cursor().execute("SELECT no_such_column FROM manta_run")
            finally:
                same.enqueue(first)
        second = same.enqueue(first)
    assert Run.objects.count() == 2
    run_all()
    assert state(second) is State.SUCCESSFUL


def test_a_block_that_is_to_be_rolled_back_leaves_nothing() -> None:
    with workflow("import"):
        chain(2)
        transaction.set_rollback(True)
    assert not Run.objects.exists()


def test_after_an_error_that_spoils_the_transaction_an_enqueue_is_refused() -> None:
    """As without a block: a result of a run that will never exist would be a lie."""
    with workflow("import"):
        same.enqueue(1)
        Ledgerline.objects.create(pk=1, label="once")
        same.enqueue(2)
        with pytest.raises(IntegrityError):
            Ledgerline.objects.create(pk=1, label="twice")
        with pytest.raises(TransactionManagementError):
            same.enqueue(3)
    assert not Run.objects.exists()


@pytest.mark.parametrize("is_inside", [True, False], ids=["inside another", "alone"])
def test_a_block_that_nobody_left_properly_swallows_nothing(is_inside: bool) -> None:
    """An interrupt may come at any moment."""
    mine = connections[DEFAULT_DB_ALIAS]
    with workflow("outer") if is_inside else transaction.atomic():
        same.enqueue(1)
        together._open[mine] = together.Together(DEFAULT_DB_ALIAS)
        same.enqueue(2)
    assert mine not in together._open
    assert Run.objects.count() == 2
    run_all()


def test_an_error_in_the_block_leaves_nothing_noted() -> None:
    with pytest.raises(ZeroDivisionError), workflow("import"):
        chain(3)
        raise ZeroDivisionError
    assert not Run.objects.exists()
    assert not together._open
    chain(2)
    assert Run.objects.count() == 2


def test_what_could_not_be_inserted_does_not_get_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for who passes over the error: the block cannot end well without it."""
    enqueue = Ledger.enqueue

    def refused(self: Ledger, runs: Any) -> Any:
        raise DatabaseError("the disk is full")

    monkeypatch.setattr(Ledger, "enqueue", refused)
    with pytest.raises(DatabaseError, match="disk is full"), workflow("import"):
        chain(2)
        for _ in range(2):
            with pytest.raises(DatabaseError, match="disk is full"):
                Run.objects.count()
    assert not Run.objects.exists()
    with workflow("import"):
        steps = chain(2)
        with pytest.raises(DatabaseError, match="disk is full"):
            Run.objects.count()
        monkeypatch.setattr(Ledger, "enqueue", enqueue)
    run_all()
    assert states(*steps) == [State.SUCCESSFUL] * 2


def test_what_has_dates_is_inserted_by_itself_after_what_came_before() -> None:
    with workflow("import") as flow:
        first = same.enqueue(1)
        held = same.using(hold=True).enqueue(2)
        dated = same.using(run_after=timedelta(hours=1)).enqueue(3)
        expiring = same.using(expires=timedelta(hours=1)).enqueue(first)
        promised = promise("later")
        last = same.enqueue([first, promised])
    assert flow.runs.count() == 6
    assert states(first, held, dated, expiring) == [State.READY, State.HELD, State.SCHEDULED, State.WAITING]
    resolve("later", 4)
    run_all()
    last.refresh()
    assert last.return_value == [1, 4]


@pytest.mark.parametrize("deadline", [timedelta(days=400_000), timedelta.max], ids=["far", "farthest"])
def test_an_impossible_deadline_is_refused_at_the_door(deadline: timedelta) -> None:
    with workflow("import") as flow:
        first = same.enqueue(1)
        with pytest.raises(ValueError, match="a thousand years"):
            same.using(deadline=deadline).enqueue(first)
    assert flow.runs.count() == 1


def test_whoever_comes_after_something_else_comes_after_it() -> None:
    with workflow("import"):
        chain(4)
        dated = same.using(expires=timedelta(hours=1)).enqueue(1)
        after = same.enqueue(2)
        with workflow("inner"):
            inner = same.enqueue(3)
        last = same.enqueue(4)
    moments = [dated.enqueued_at, after.enqueued_at, inner.enqueued_at, last.enqueued_at]
    # SQLite keeps milliseconds.
    assert all(later - sooner > timedelta(milliseconds=-1) for sooner, later in pairwise(moments))


def test_a_block_that_says_something_after_each_run_enqueues_as_ever() -> None:
    with workflow("import"):
        for number in range(5):
            Run.objects.count()
            with CaptureQueriesContext(connection) as captured:
                same.enqueue(number)
            # The first one asks for the time, and is inserted by what follows.
            assert inserts(captured) == (number > 0)
            assert len(captured) == 1
    assert Run.objects.count() == 5
    run_all()


def test_what_waits_is_armed_before_the_callers_own_hooks(ending: str) -> None:
    older = same.enqueue(1)
    seen = []
    with workflow("import"):
        waiting = same.enqueue(older)
        transaction.on_commit(lambda: seen.append(Gate.objects.get(run_id=waiting.id).armed))
    assert seen == ([True] if ending == "committed" else [])
    run_all()
    assert state(waiting) is State.SUCCESSFUL


def test_a_run_that_could_not_be_enqueued_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor when the insert that failed was that of those before it."""
    monkeypatch.setattr(together, "BATCH", 2)
    enqueue = Ledger.enqueue

    def refused(self: Ledger, runs: Any) -> Any:
        raise DatabaseError("no")

    with workflow("import") as flow:
        steps = chain(2)
        monkeypatch.setattr(Ledger, "enqueue", refused)
        with pytest.raises(DatabaseError, match="no"):
            same.enqueue(steps[-1])
        monkeypatch.setattr(Ledger, "enqueue", enqueue)
    assert flow.runs.count() == 2
    run_all()


@pytest.mark.sqlite
def test_a_rollback_that_fails_takes_nothing_along() -> None:
    with workflow("import") as flow:
        chain(2)
        with pytest.raises(DatabaseError):
            connection.cursor().execute("ROLLBACK TO SAVEPOINT nobody_made_it")
    assert flow.runs.count() == 2
    run_all()


def test_very_many_are_inserted_before_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "BATCH", 10)
    with CaptureQueriesContext(connection) as captured, workflow("import") as flow:
        steps = chain(25)
        many = same.map(range(30))
        joined = total.enqueue(many)
    assert inserts(captured) == 5
    assert flow.runs.count() == 56
    run_all(max_runs=100)
    assert states(steps[-1], joined) == [State.SUCCESSFUL] * 2


def test_time_goes_on_in_a_long_block(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(together.time, "monotonic", lambda: now)
    with workflow("import"):
        first = same.enqueue(1)
        now += together.SAME_SECONDS / 2
        second = same.enqueue(first)
        now += 60
        third = same.enqueue(second)
    assert first.enqueued_at == second.enqueued_at
    assert third.enqueued_at - first.enqueued_at == timedelta(seconds=60 + together.SAME_SECONDS / 2)
    assert get_result(third.id) == third
    assert third.deadline > second.deadline


def test_clusters_are_not_mixed(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rings its own bell, and arms in its own name."""
    settings.TASKS = {
        alias: {"BACKEND": "django_manta.MantaBackend", "QUEUES": [], "OPTIONS": {"CLUSTER": alias}}
        for alias in ("default", "second")
    }
    armed: list[tuple[str, waits.Added]] = []
    monkeypatch.setattr(
        waits, "arm_after_commit", lambda database, cluster, added: armed.append((cluster, added)) or added
    )
    with workflow("import") as flow:
        first = add.enqueue(1, 2)
        second = add.using(backend="second").enqueue(first, 3)
        third = add.enqueue(second, 4)
        fourth = add.enqueue(third, 5)
    assert flow.runs.count() == 4
    found = [(cluster, {str(run_id) for run_id in (*added.armed, *added.unarmed)}) for cluster, added in armed]
    assert found == [("second", {second.id}), ("default", {third.id, fourth.id})]


@pytest.mark.postgres
def test_all_of_a_graph_is_armed_when_it_commits(ending: str) -> None:
    with workflow("import"):
        steps = chain(5)
        if ending == "committed":
            assert own.runs(DEFAULT_DB_ALIAS) >= {UUID(each.id) for each in steps}
            # Before the commit, and so not by anybody who comes after it.
            assert Gate.objects.filter(armed=True).count() == 4
    run_all()
    assert states(*steps) == [State.SUCCESSFUL] * 5
