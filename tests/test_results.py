"""Results: waiting, cancelling, retrying, and what errors they tell."""

import threading
import time
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.tasks import TaskResultStatus, default_task_backend
from django.tasks.signals import task_finished

from django_manta import State, exceptions
from django_manta.signals import run_settled
from django_manta.testing import run_all
from tests.app import tasks
from tests.app.tasks import add


def drain_elsewhere() -> threading.Thread:
    def drain() -> None:
        try:
            run_all()
        finally:
            connections.close_all()

    thread = threading.Thread(target=drain)
    thread.start()
    return thread


@pytest.mark.django_db(transaction=True)
def test_join_waits_for_the_value() -> None:
    result = tasks.echo.enqueue("hello")
    thread = drain_elsewhere()
    assert result.join(timeout=20) == [["hello"], {}]
    thread.join()
    assert result.state == State.SUCCESSFUL


@pytest.mark.django_db(transaction=True)
def test_ajoin_waits_for_the_value() -> None:
    async_to_sync(ajoin_waits_for_the_value)()


async def ajoin_waits_for_the_value() -> None:
    result = await add.aenqueue(20, 22)
    thread = drain_elsewhere()
    assert await result.ajoin(timeout=20) == 42
    thread.join()


@pytest.mark.django_db(transaction=True)
def test_join_gives_up_in_time() -> None:
    result = add.enqueue(1, 2)
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=f"Run {result.id} had not ended after 0.1 s"):
        result.join(timeout=0.1)
    assert time.monotonic() - started < 5


@pytest.mark.django_db(transaction=True)
def test_join_refuses_to_wait_where_waiting_cannot_end() -> None:
    with transaction.atomic():
        result = add.using(hold=True).enqueue(1, 2)
        with pytest.raises(RuntimeError, match="inside atomic"):
            result.join(timeout=1)
    joining = tasks.join_another.enqueue(result.id)
    run_all()
    joining.refresh()
    assert joining.state == State.FAILED
    assert "would hold its slot" in joining.errors[0].traceback


@pytest.mark.django_db
def test_join_of_a_bad_end_raises_as_return_value_does() -> None:
    result = tasks.fail.enqueue()
    run_all()
    result.refresh()
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


@pytest.mark.django_db(transaction=True)
def test_cancelling_what_is_ready_ends_it_at_once_and_tells() -> None:
    told: list[Any] = []

    def finished(sender: Any, task_result: Any, **kwargs: Any) -> None:
        told.append((task_result.id, task_result.status))

    def settled(sender: Any, run_id: str, state: State, **kwargs: Any) -> None:
        told.append((run_id, state))

    task_finished.connect(finished)
    run_settled.connect(settled)
    try:
        result = add.enqueue(1, 2)
        assert result.cancel("the customer left") == State.CANCELLED
    finally:
        task_finished.disconnect(finished)
        run_settled.disconnect(settled)
    assert told == [(result.id, TaskResultStatus.FAILED), (result.id, State.CANCELLED)]
    assert result.status == TaskResultStatus.FAILED
    assert result.is_finished
    assert result.attempts == 0
    [error] = result.errors
    assert error.exception_class is exceptions.TaskCancelled
    assert "the customer left" in error.traceback
    assert run_all().runs == 0


@pytest.mark.django_db
def test_a_running_run_is_cancelling_until_it_is_settled() -> None:
    result = tasks.cancel_itself.enqueue()
    run_all()
    result.refresh()
    # It succeeded although it was told to stop: success wins.
    assert result.state == State.SUCCESSFUL
    failing = tasks.cancel_itself.enqueue(fails=True)
    run_all()
    failing.refresh()
    assert failing.state == State.CANCELLED
    assert [error.exception_class for error in failing.errors] == [RuntimeError, exceptions.TaskCancelled]
    assert failing.attempts == len(failing.worker_ids) == 1


@pytest.mark.django_db
def test_retry_gives_a_fresh_budget_and_refuses_what_has_not_failed() -> None:
    result = tasks.fail_thrice.enqueue()
    run_all()
    result.refresh()
    assert (result.state, result.attempts, len(result.errors)) == (State.FAILED, 3, 3)
    assert result.retry() == State.READY
    assert result.status == TaskResultStatus.READY
    assert result.finished_at is None
    with pytest.raises(ValueError, match="is READY; only a run that ended badly can be retried"):
        result.retry()
    run_all()
    result.refresh()
    assert (result.state, result.attempts, len(result.errors)) == (State.FAILED, 6, 6)


@pytest.mark.django_db
def test_started_at_is_of_the_first_attempt_and_last_attempted_at_of_the_latest() -> None:
    result = tasks.fail_first.enqueue()
    run_all()
    result.refresh()
    assert result.attempts == len(result.worker_ids) == 2
    assert result.return_value == 2
    assert result.enqueued_at <= result.started_at < result.last_attempted_at <= result.finished_at
    assert [attempt.outcome for attempt in result.history] == ["FAILED", "SUCCESSFUL"]
    assert [attempt.number for attempt in result.history] == [1, 2]
    assert result.history[0].error_class == "builtins.RuntimeError"
    assert default_task_backend.get_result(result.id) == result
