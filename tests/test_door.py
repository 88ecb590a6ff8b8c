"""Enqueue and get_result: Django's contract, in the caller's transaction."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.tasks import TaskResultStatus, default_task_backend, task_backends
from django.tasks import task as django_task
from django.tasks.base import Task as DjangoTask
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_manta import MantaBackend, State, options, payload
from django_manta.ledger.book import ENQUEUE_BYTES
from django_manta.models import Run
from tests.app import tasks
from tests.app.tasks import add, echo

FAR = datetime(2100, 1, 1, tzinfo=UTC)


def test_the_decorator_is_djangos_own() -> None:
    import django_manta.task  # binds the submodule unless the package's own name wins

    assert django_manta.task is django_task


@pytest.mark.parametrize(
    "task",
    [
        echo,
        echo.using(priority=7, queue_name="urgent"),
        echo.using(run_after=FAR),
        echo.using(run_after=timedelta(hours=1)),
        echo.using(timeout=5, max_attempts=2, backoff=3),
        echo.using(metadata={"large": 1e23, "minus": -0.0, "small": 1e-9, "list": [1e16, 2.5]}),
        echo.using(metadata={"a": 1}, deadline=timedelta(hours=1), expires=FAR, hold=True),
    ],
)
@pytest.mark.django_db
def test_the_result_of_enqueue_equals_that_of_get_result(task: Any) -> None:
    result = task.enqueue(1, [2.5, None], key={"nested": True})
    assert default_task_backend.get_result(result.id) == result
    assert result.args == [1, [2.5, None]]
    assert result.kwargs == {"key": {"nested": True}}
    assert result.status == TaskResultStatus.READY
    assert (result.started_at, result.finished_at, result.attempts, result.errors) == (None, None, 0, [])


@pytest.mark.django_db
def test_the_database_decides_when() -> None:
    result = echo.using(run_after=timedelta(hours=1), expires=timedelta(hours=2)).enqueue()
    assert result.state == State.SCHEDULED
    assert result.task.run_after == result.enqueued_at + timedelta(hours=1)
    assert result.expires_at == result.enqueued_at + timedelta(hours=2)
    assert result.deadline == result.enqueued_at + timedelta(days=7)
    past = echo.using(run_after=timezone.now() - timedelta(hours=1)).enqueue()
    assert past.state == State.READY


@pytest.mark.django_db(transaction=True)
def test_a_run_exists_if_and_only_if_the_callers_transaction_commits() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        lost = add.enqueue(1, 2)
        many = add.starmap([(1, 2), (3, 4)])
        assert default_task_backend.get_result(lost.id).args == [1, 2]
        raise ZeroDivisionError
    for result in (lost, *many):
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()
    with transaction.atomic():
        kept = add.enqueue(1, 2)
    kept.refresh()
    assert kept.state == State.READY


@pytest.mark.django_db
def test_enqueue_is_one_statement_and_get_result_at_most_two() -> None:
    with CaptureQueriesContext(connection) as queries:
        result = add.enqueue(1, 2)
    assert len(queries) == 1
    assert queries[0]["sql"].lstrip("- \n").count("INSERT INTO manta_run") == 1
    with CaptureQueriesContext(connection) as queries:
        default_task_backend.get_result(result.id)
    assert len(queries) <= 2
    with CaptureQueriesContext(connection) as queries:
        add.starmap([(n, n) for n in range(500)])
    assert len(queries) == 1


@pytest.mark.django_db
def test_many_ways_to_enqueue_many() -> None:
    by_pairs = echo.enqueue_many([((1,), {}), ([], {"a": 2})])
    assert [(result.args, result.kwargs) for result in by_pairs] == [([1], {}), ([], {"a": 2})]
    assert [result.args for result in echo.map("ab")] == [["a"], ["b"]]
    assert [result.args for result in add.starmap([(1, 2), [3, 4]])] == [[1, 2], [3, 4]]
    mixed = default_task_backend.enqueue_many([(add, (1, 2), {}), (echo, [], {"x": 1})])
    assert [result.task for result in mixed] == [add, echo]
    assert echo.enqueue_many([]) == []
    for result in mixed:
        assert default_task_backend.get_result(result.id) == result


@pytest.mark.django_db
def test_many_are_claimed_in_the_order_they_were_given(run_all: Any) -> None:
    results = echo.map(range(5000))
    assert [result.id for result in results] == sorted(result.id for result in results)
    assert Run.objects.count() == 5000


@pytest.mark.django_db
def test_one_refused_call_refuses_all() -> None:
    with pytest.raises(TypeError, match=r"args\[0\]"):
        echo.map([1, object(), 3])
    assert Run.objects.count() == 0


@pytest.mark.parametrize(
    ("enqueue", "words"),
    [
        (lambda: add.enqueue_many([(1, 2)]), "Call 0 must be (args, kwargs), such as ((1, 2), {}), not (1, 2)."),
        (lambda: add.enqueue_many([((1, 2), {}), (3,)]), "Call 1 must be (args, kwargs)"),
        (lambda: add.starmap([3]), "Arguments 0 must be a list or tuple"),
        (lambda: task_backends["default"].enqueue_many([(add, 1, 2)]), "Call 0 must be (task, args, kwargs)"),
        (lambda: task_backends["default"].enqueue_many([((1,), {})]), "Call 0 must be (task, args, kwargs)"),
    ],
)
def test_a_malformed_call_is_named(enqueue: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        enqueue()
    assert words in str(caught.value)


@pytest.mark.parametrize("malformed", ["123", "", None, 7, "x" * 500, "0190a0a0-0000-7000-8000-000000000000"])
@pytest.mark.django_db
def test_an_id_that_names_no_run_does_not_exist(malformed: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(malformed)


@pytest.mark.django_db
def test_options_that_were_not_refused_at_definition_are_validated_at_enqueue() -> None:
    gone = echo.using(queue_name="slow")
    with (
        override_settings(TASKS={"default": {"BACKEND": "django_manta.MantaBackend", "QUEUES": ["default"]}}),
        pytest.raises(InvalidTask, match="Queue 'slow' is not valid"),
    ):
        gone.enqueue()


@pytest.mark.django_db
def test_a_plain_task_of_another_backend_can_be_sent_to_ours(run_all: Any) -> None:
    with override_settings(
        TASKS={
            "default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
            "manta": {"BACKEND": "django_manta.MantaBackend"},
        }
    ):
        plain = django_task(tasks.add.func)
        assert type(plain) is DjangoTask
        result = plain.using(backend="manta").enqueue(1, 2)
        assert options.effective(plain, task_backends["manta"].config).max_attempts == 1
        assert result.backend == "manta"


@pytest.mark.django_db
def test_receivers_of_task_enqueued_see_the_result_and_cannot_take_it_back(caplog: Any) -> None:
    seen = []

    def receiver(sender: Any, task_result: Any, **kwargs: Any) -> None:
        seen.append((sender, task_result.id))
        raise RuntimeError("a receiver of the project's")

    task_enqueued.connect(receiver)
    try:
        result = add.enqueue(1, 2)
    finally:
        task_enqueued.disconnect(receiver)
    assert seen == [(type(task_backends["default"]), result.id)]
    assert Run.objects.filter(pk=result.id).exists()


def test_only_the_ledger_moves_runs() -> None:
    with pytest.raises(TypeError, match="behind the ledger's back"):
        Run.objects.update(state="SUCCESSFUL")
    with pytest.raises(TypeError, match="behind the ledger's back"):
        Run.objects.ready().update(priority=3)
    with pytest.raises(TypeError, match="behind the ledger's back"):
        Run.objects.bulk_update([], ["state"])


@pytest.mark.django_db
def test_the_queryset_speaks_the_vocabulary(run_all: Any) -> None:
    ready, failing = add.enqueue(1, 2), tasks.fail.enqueue()
    add.using(hold=True).enqueue(1, 2)
    add.using(run_after=FAR).enqueue(1, 2)
    assert {str(run.pk) for run in Run.objects.ready()} == {ready.id, failing.id}
    assert Run.objects.held().count() == Run.objects.scheduled().count() == 1
    assert Run.objects.pending().count() == 4
    run_all()
    assert [str(run.pk) for run in Run.objects.successful()] == [ready.id]
    assert [str(run.pk) for run in Run.objects.failed()] == [failing.id]
    assert Run.objects.finished().count() == 2
    run = Run.objects.get(pk=ready.id)
    assert run.result.return_value == 3
    assert [attempt.outcome for attempt in run.history.all()] == ["SUCCESSFUL"]
    with pytest.raises(TypeError, match="behind the ledger's back"):
        run.save()


@pytest.mark.django_db(transaction=True)
def test_async_twins_of_everything() -> None:
    async_to_sync(async_twins_of_everything)()


async def async_twins_of_everything() -> None:
    one = await add.aenqueue(1, 2)
    many = await echo.amap([1, 2]) + await add.astarmap([(1, 2)]) + await echo.aenqueue_many([((), {})])
    many += await default_task_backend.aenqueue_many([(add, (1, 2), {})])
    assert await default_task_backend.aget_result(one.id) == one
    for result in many:
        await result.arefresh()
        assert result.state == State.READY
    assert await one.acancel() == State.CANCELLED
    assert await one.aretry() == State.READY


@pytest.mark.parametrize("middleware", ["add_one", "return_nothing"])
@pytest.mark.django_db(transaction=True)
def test_an_enqueue_chain_that_loses_or_invents_runs_leaves_none(middleware: str) -> None:
    options = {"ENQUEUE_MIDDLEWARE": [f"tests.app.tasks.{middleware}"]}
    with (
        override_settings(TASKS={"default": {"BACKEND": "django_manta.MantaBackend", "OPTIONS": options}}),
        pytest.raises(ImproperlyConfigured, match="must return a list of as many results"),
    ):
        echo.enqueue(1)
    assert Run.objects.count() == 0


@pytest.mark.parametrize("reason", ["a\0b", "\ud800", "x" * 100_000])
@pytest.mark.django_db
def test_a_cancel_may_give_any_reason(reason: str) -> None:
    assert echo.enqueue().cancel(reason) == State.CANCELLED


def test_a_coroutine_cannot_be_atomic_by_settings_either() -> None:
    options = {"TASK_DEFAULTS": {"atomic": True}}
    with (
        override_settings(TASKS={"default": {"BACKEND": "django_manta.MantaBackend", "OPTIONS": options}}),
        pytest.raises(InvalidTask, match="is a coroutine"),
    ):
        tasks.add_async.enqueue(1, 2)


class Closed(MantaBackend):
    """A backend with rules of its own, which change."""

    is_closed = False

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        if self.is_closed:
            raise InvalidTask("Closed for maintenance.")


@pytest.mark.django_db
def test_rules_of_somebody_elses_hold_for_each_enqueue() -> None:
    with override_settings(TASKS={"default": {"BACKEND": f"{__name__}.Closed", "QUEUES": []}}):
        backend: Any = task_backends["default"]
        backend.enqueue(echo, [1], {})
        backend.is_closed = True
        with pytest.raises(InvalidTask, match="maintenance"):
            backend.enqueue(echo, [1], {})
        backend.is_closed = False
        backend.enqueue(echo, [1], {})
    assert Run.objects.count() == 2


@pytest.mark.django_db
def test_what_was_refused_once_is_refused_again() -> None:
    refused = echo.using(ray={"runtime_env": "nowhere"})
    for _ in range(2):
        with pytest.raises(InvalidTask, match="RUNTIME_ENVS has no profile 'nowhere'"):
            refused.enqueue(1)


@pytest.mark.django_db
def test_more_tasks_than_are_remembered_keep_their_options() -> None:
    found = [echo.using(metadata={"number": number}).enqueue(number).metadata for number in range(600)]
    assert found == [{"number": number} for number in range(600)]


TOO_LARGE = "x" * payload.ARGUMENTS_LIMIT


@pytest.mark.django_db
@pytest.mark.parametrize(
    "enqueue",
    [
        lambda: echo.enqueue(TOO_LARGE),
        lambda: echo.enqueue(word=TOO_LARGE),
        lambda: echo.map(["small", TOO_LARGE]),
        lambda: echo.enqueue_many([(("small",), {}), ((), {"word": TOO_LARGE})]),
        lambda: default_task_backend.enqueue_many([(echo, ("small",), {}), (echo, (TOO_LARGE,), {})]),
    ],
)
def test_arguments_beyond_the_limit_are_refused_and_nothing_is_enqueued(enqueue: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="The arguments are 16.0 MiB of JSON .* at most 16 MiB are stored"):
        enqueue()
    assert not Run.objects.exists()


@pytest.mark.django_db
def test_many_large_arguments_are_inserted_a_few_at_a_time() -> None:
    sizes: list[int] = []

    def weigh(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        values = params.values() if isinstance(params, dict) else params or ()
        sizes.append(sum(len(value) for value in values if isinstance(value, str)))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(weigh):
        runs = echo.map(["x" * 2**20] * 40)
    assert len(runs) == Run.objects.count() == 40
    assert 2 * ENQUEUE_BYTES > max(sizes) > 2**20
    assert sum(sizes) > 40 * 2**20
