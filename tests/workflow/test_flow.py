"""workflow(): a name for a graph, whose enqueues are atomic."""

from uuid import UUID

import pytest
from django.db import transaction

from django_manta import State, TaskResult, WorkflowExists, workflow
from django_manta.models import Run, Workflow
from django_manta.testing import run_all
from tests.workflow.conftest import states
from tests.workflow.tasks import same, total


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


def test_a_workflow_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        workflow("")
