"""workflow(): a name for a graph, whose enqueues are atomic."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_manta import State, TaskResult, WorkflowExists, workflow
from django_manta.ledger import Ledger
from django_manta.models import Run, Workflow
from django_manta.testing import run_all
from tests.workflow.conftest import Script, states
from tests.workflow.tasks import merge_sort, same, scripted, total


def test_the_runs_enqueued_inside_belong_to_it() -> None:
    outside = same.enqueue(0)
    with workflow("import") as flow:
        numbers = same.map([1, 2])
        result = total.enqueue(numbers)
    after = same.enqueue(1)
    assert set(flow.runs.values_list("id", flat=True)) == {UUID(each.id) for each in [*numbers, result]}
    assert set(Run.objects.filter(workflow=None).values_list("id", flat=True)) == {UUID(outside.id), UUID(after.id)}
    assert Workflow.objects.get(id=flow.id).name == "import"
    run_all()
    assert states(result) == [State.SUCCESSFUL]


def test_an_error_inside_leaves_nothing() -> None:
    with pytest.raises(RuntimeError), workflow("import", unique_key="monday"):
        same.enqueue(same.enqueue(1))
        raise RuntimeError
    assert (Run.objects.count(), Workflow.objects.count()) == (0, 0)
    with workflow("import", unique_key="monday"):
        same.enqueue(1)
    assert run_all().runs == 1


def test_a_unique_key_admits_one_of_the_name() -> None:
    with workflow("import", unique_key="monday") as first:
        same.enqueue(1)
    refused = pytest.raises(WorkflowExists, match="'import' with unique key 'monday' exists")
    with refused as caught, workflow("import", unique_key="monday"):
        same.enqueue(2)
    assert caught.value.workflow_id == first.id
    assert Run.objects.count() == 1
    for name, key in (("import", "tuesday"), ("export", "monday"), ("import", None), ("import", None)):
        with workflow(name, unique_key=key):
            same.enqueue(3)
    assert Workflow.objects.count() == 5


def test_a_refused_one_does_not_spoil_the_callers_transaction() -> None:
    with transaction.atomic():
        with workflow("import", unique_key="monday"):
            same.enqueue(1)
        with pytest.raises(WorkflowExists), workflow("import", unique_key="monday"):
            pass
        same.enqueue(2)
    assert Run.objects.count() == 2


def test_a_decorated_function_makes_one_each_time() -> None:
    @workflow("import")
    def start(number: int) -> TaskResult:
        """Starts it."""
        return same.enqueue(number)

    one, two = start(1), start(number=2)
    assert (start.__name__, start.__doc__) == ("start", "Starts it.")
    ids = [Run.objects.get(id=each.id).workflow_id for each in (one, two)]
    assert None not in ids
    assert len(set(ids)) == 2


def test_one_inside_another_has_its_own_runs() -> None:
    with workflow("outer") as outer:
        same.enqueue(1)
        with workflow("inner") as inner:
            same.enqueue(2)
        same.enqueue(3)
    assert (outer.runs.count(), inner.runs.count()) == (2, 1)


def test_the_same_one_can_be_entered_again() -> None:
    again = workflow("import")
    with again as first:
        same.enqueue(1)
    with again as second:
        same.enqueue(2)
    assert first.id != second.id
    assert (first.runs.count(), second.runs.count()) == (1, 1)


# SQLite lets one of them write at a time.
@pytest.mark.postgres
@pytest.mark.parametrize("ending", ["committed"], indirect=True)
def test_two_threads_may_be_in_the_block_of_the_same_one(ending: str) -> None:
    again = workflow("import")
    first, both, left = threading.Event(), threading.Event(), threading.Event()

    def good() -> None:
        with again:
            same.enqueue("good")
            first.set()
            assert both.wait(20)
        left.set()

    def bad() -> None:
        assert first.wait(20)
        with pytest.raises(RuntimeError), again:
            same.enqueue("bad")
            both.set()
            assert left.wait(20)
            raise RuntimeError

    def alone(block: Callable[[], None]) -> None:
        try:
            block()
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(alone, block) for block in (good, bad)]:
            done.result(30)
    assert [run.result.args for run in Run.objects.all()] == [["good"]]
    assert Workflow.objects.count() == 1


def test_a_workflow_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        workflow("")


def test_what_its_tasks_enqueue_belongs_to_it(script: Script) -> None:
    plain = scripted.enqueue(script(lambda: same.enqueue("elsewhere")))
    with workflow("import") as flow:
        first = scripted.enqueue(script(lambda: merge_sort.enqueue([3, 1, 2])))
    with workflow("other") as other:
        again = scripted.enqueue(script(lambda: _inside("nested")))
    run_all()
    assert states(plain, first, again) == [State.SUCCESSFUL] * 3
    assert (first.return_value, again.return_value) == ([1, 2, 3], 1)
    assert flow.runs.count() == 1 + 5 + 2
    assert other.runs.count() == 1
    assert Run.objects.filter(workflow__name="nested").count() == 1
    assert Run.objects.filter(workflow=None).count() == 2


def _inside(name: str) -> TaskResult:
    with workflow(name):
        return same.enqueue(1)


def test_its_key_is_free_when_none_of_its_runs_is_kept() -> None:
    with workflow("import", unique_key="monday") as flow:
        same.enqueue(1)
    with workflow("import", unique_key="tuesday"):
        pass
    run_all()
    Workflow.objects.update(created_at=timezone.now() - timedelta(hours=2))
    with workflow("import", unique_key="wednesday"):
        pass
    ledger = Ledger()
    assert ledger.forget_workflows() == 1
    assert ledger.prune(State.SUCCESSFUL, timedelta(hours=-1)).deleted == 1
    assert ledger.forget_workflows() == 1
    assert not Workflow.objects.filter(id=flow.id).exists()
    assert list(Workflow.objects.values_list("unique_key", flat=True)) == ["wednesday"]
    with workflow("import", unique_key="monday"):
        same.enqueue(1)
