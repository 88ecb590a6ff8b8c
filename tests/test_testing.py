"""What we give to the tests of projects that use us."""

from datetime import timedelta
from typing import Any

import pytest
from django.tasks import TaskResultStatus, default_task_backend, task
from django.test import TestCase, override_settings
from django.utils import timezone

from django_manta import State, TaskContext
from django_manta.testing import TaskAssertions, TooManyRuns, run_all
from tests.app import tasks

IMMEDIATE = {"default": {"BACKEND": "django_manta.testing.ImmediateBackend", "QUEUES": []}}
DUMMY = {"default": {"BACKEND": "django_manta.testing.DummyBackend", "QUEUES": []}}


def works(context: TaskContext, steps: int) -> list[Any]:
    for _ in context.track(range(steps)):
        pass
    context.metadata["steps"] = steps
    context.save_metadata()
    return [context.attempt, context.is_last_attempt, context.metadata]


@override_settings(TASKS=IMMEDIATE)
def test_the_immediate_twin_accepts_our_options_and_gives_our_context() -> None:
    made = task(max_attempts=3, metadata={"a": 1}, takes_context=True)(works)
    result = made.enqueue(3)
    assert result.return_value == [1, True, {"a": 1, "steps": 3}]
    assert made.using(timeout=5, run_after=timezone.now()).map([1])[0].status == TaskResultStatus.SUCCESSFUL
    assert tasks.fail.enqueue().status == TaskResultStatus.FAILED
    assert [one.return_value for one in tasks.add.starmap([(1, 2), (3, 4)])] == [3, 7]


@override_settings(TASKS=IMMEDIATE)
def test_the_twins_give_out_our_results() -> None:
    result = tasks.add.using(run_after=timedelta(hours=1), metadata={"a": 1}).enqueue(1, 2)
    assert (result.state, result.metadata, result.join()) == (State.SUCCESSFUL, {"a": 1}, 3)
    assert tasks.fail.enqueue().state == State.FAILED
    with override_settings(TASKS=DUMMY):
        held = tasks.add.using(hold=True).enqueue(1, 2)
        held.refresh()
        assert held.state == State.HELD


@override_settings(TASKS=DUMMY)
def test_the_dummy_twin_accepts_our_options_and_remembers() -> None:
    made = task(max_attempts=3, backoff="exponential")(tasks.echo.func)
    made.enqueue(1)
    made.map([2, 3])
    assert [result.args for result in default_task_backend.results] == [[1], [2], [3]]


def test_djangos_own_twin_refuses_them() -> None:
    with (
        override_settings(TASKS={"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}),
        pytest.raises(TypeError),
    ):
        task(max_attempts=3)(tasks.echo.func)


class InsideATestCase(TaskAssertions, TestCase):
    """A transaction that never commits."""

    def test_run_all_executes_what_was_enqueued_and_what_that_enqueues(self) -> None:
        result = tasks.enqueue_another.enqueue()
        drained = run_all()
        self.assertEqual(drained.runs, 2)
        result.refresh()
        self.assertEqual(default_task_backend.get_result(result.return_value).return_value, 3)

    def test_assert_enqueued(self) -> None:
        result = tasks.add.enqueue(1, b=2)
        tasks.echo.enqueue((1, 2))
        self.assertEqual(self.assertEnqueued(tasks.add, 1, b=2), result)
        self.assertEnqueued(tasks.echo, (1, 2))
        self.assertNotEnqueued(tasks.fail)
        with self.assertRaisesMessage(AssertionError, "add(1, 2) was not enqueued; its runs are: add(1, b=2)."):
            self.assertEnqueued(tasks.add, 1, 2)
        with self.assertRaisesMessage(AssertionError, "fail() was not enqueued; no run of tests.app.tasks.fail was."):
            self.assertEnqueued(tasks.fail)
        with self.assertRaisesMessage(AssertionError, "tests.app.tasks.add was enqueued: add(1, b=2)."):
            self.assertNotEnqueued(tasks.add)


@pytest.mark.django_db
def test_run_all_stops_a_task_that_enqueues_itself_for_ever() -> None:
    tasks.enqueue_itself.enqueue()
    with pytest.raises(TooManyRuns, match="25 runs were executed and more are ready"):
        run_all(max_runs=25)


@pytest.mark.django_db
def test_what_waits_in_a_paused_queue_is_not_too_much() -> None:
    tasks.add.using(queue_name="slow").enqueue(1, 2)
    default_task_backend.ledger.pause("slow")
    tasks.add.starmap([(1, 2)] * 3)
    assert run_all(max_runs=3).runs == 3


@pytest.mark.django_db
def test_run_all_stops_at_max_runs_without_complaint_when_that_was_all() -> None:
    tasks.add.starmap([(1, 2)] * 25)
    assert run_all(max_runs=25).runs == 25


def test_the_pytest_fixtures(run_all: Any, assert_enqueued: Any) -> None:
    tasks.add.enqueue(1, 2)
    assert assert_enqueued(tasks.add, 1, 2).args == [1, 2]
    assert run_all().runs == 1
