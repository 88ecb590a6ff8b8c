"""One claimed run, executed: every way it can end, and what it can never do."""

import logging
import threading
from signal import SIGUSR1
from signal import signal as set_handler
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections
from django.tasks import TaskResultStatus, default_task_backend, task_backends
from django.tasks.signals import task_finished, task_started
from django.test import override_settings

from django_manta import State, exceptions, text
from django_manta.execution import limits, policy
from django_manta.execution.executor import execute
from django_manta.ledger import Ledger, Settlement, Written, fsck, written
from django_manta.logs import RunFilter
from django_manta.models import Run, Worker
from django_manta.signals import attempt_finished, run_settled
from django_manta.states import Outcome
from django_manta.testing import run_all
from django_manta.worker import caretaker
from tests.app import coroutines, tasks
from tests.app.models import Ledgerline

MANTA: dict[str, Any] = {"BACKEND": "django_manta.MantaBackend", "QUEUES": ["default", "urgent", "slow"]}


def with_options(**options: Any) -> override_settings:
    return override_settings(TASKS={"default": {**MANTA, "OPTIONS": options}})


def alter(run_id: str, **columns: str) -> None:
    """What somebody with a database prompt could do."""
    pk = run_id if connection.vendor == "postgresql" else run_id.replace("-", "")
    for column, value in columns.items():
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE manta_run SET {column} = %s WHERE id = %s", [value, pk])
            assert cursor.rowcount == 1


# -- ends --------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_sync_and_async_tasks_succeed() -> None:
    sync, coroutine = tasks.add.enqueue(1, 2), tasks.add_async.enqueue(3, 4)
    assert run_all().states == {State.SUCCESSFUL: 2}
    sync.refresh(), coroutine.refresh()
    assert (sync.return_value, coroutine.return_value) == (3, 7)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("task", "args", "in_writing"),
    [
        (tasks.add, (1, 2), True),
        (tasks.echo, ('"quoted" \\ back\n', "ü€😀", {"deep": [None, 1.5]}), True),
        (tasks.add_async, (1, 2), True),
        (tasks.fail, ("no",), False),
        (tasks.return_unstorable, ("nul",), False),
        (tasks.write_atomically, ("line", 1), False),
    ],
    ids=["a number", "texts", "a coroutine", "a failure", "what cannot be stored", "an atomic one"],
)
def test_a_success_in_writing_is_what_would_be_written(task: Any, args: Any, in_writing: bool) -> None:
    task.enqueue(*args)
    [claim] = default_task_backend.ledger.claim("worker", ["default"], 1)  # type: ignore[attr-defined]
    done = execute(claim, executor="høst:1", in_writing=True).settlement
    assert isinstance(done, Written if in_writing else Settlement)
    if isinstance(done, Written):
        plain = execute(claim, executor="høst:1").settlement
        assert isinstance(plain, Settlement)
        plain.duration = done.duration
        assert done == written(plain)
        assert done.is_well


@pytest.mark.parametrize(
    ("task", "args", "error", "words"),
    [
        (tasks.fail, ("boom",), ValueError, "ValueError: boom\n"),
        (tasks.leave, (), SystemExit, "SystemExit: 3\n"),
        (tasks.return_unstorable, ("object",), TypeError, "Unsupported type: <class 'object'> (at return value)"),
        (tasks.return_unstorable, ("nan",), ValueError, "nan has no place in JSON (at return value)"),
        (tasks.return_unstorable, ("nul",), ValueError, "NUL character (at return value)"),
        (tasks.return_unstorable, ("keys",), TypeError, "JSON keys are strings (at return value[1])"),
        (tasks.add, (1,), TypeError, "missing 1 required positional argument"),
        (tasks.fail_unspeakably, ("str",), tasks.UnspeakableError, "UnspeakableError"),
    ],
)
@pytest.mark.django_db
def test_whatever_a_task_raises_or_returns_becomes_an_outcome(
    task: Any, args: Any, error: type[BaseException], words: str
) -> None:
    result = task.enqueue(*args)
    beside = tasks.add.enqueue(1, 1)
    run_all()
    result.refresh(), beside.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is error
    assert words in result.errors[0].traceback
    assert "django_manta" not in result.errors[0].traceback.split("Error")[0] or error in (TypeError, ValueError)
    assert beside.return_value == 2
    assert fsck.check(Ledger()) == []


@pytest.mark.django_db
def test_words_that_no_database_takes_are_cleaned_and_long_ones_capped(caplog: pytest.LogCaptureFixture) -> None:
    # Django logs the words as they are, and pytest's report of a lone surrogate cannot be sent to its master.
    caplog.set_level(logging.CRITICAL, "django.tasks")
    dirty, long = tasks.fail_unspeakably.enqueue("nul"), tasks.fail_unspeakably.enqueue("long")
    run_all()
    dirty.refresh(), long.refresh()
    assert dirty.history[0].error_message == "a\ufffdb\ufffdc"
    assert len(long.history[0].error_message) <= text.MESSAGE_LIMIT
    assert len(long.errors[0].traceback) <= text.TRACEBACK_LIMIT
    assert "characters left out" in long.errors[0].traceback
    assert long.errors[0].exception_class is ValueError  # the real error, not one about its size
    assert long.errors[0].traceback.startswith("Traceback")


@pytest.mark.parametrize("task", [tasks.sleep_too_long, tasks.spin_too_long, tasks.sleep_too_long_async])
@pytest.mark.django_db
def test_a_task_that_runs_too_long_times_out(task: Any) -> None:
    result = task.enqueue()
    run_all()
    result.refresh()
    assert result.state == State.FAILED
    assert {attempt.outcome for attempt in result.history} == {"TIMED_OUT"}
    assert result.errors[-1].exception_class is exceptions.TaskTimeout
    assert "longer than its timeout of 0.2 s" in result.errors[-1].traceback


@pytest.mark.django_db(transaction=True)
def test_a_timeout_also_works_in_a_thread_that_is_not_the_main_one() -> None:
    result = tasks.spin_too_long.enqueue()

    def drain() -> None:
        try:
            run_all()
        finally:
            connections.close_all()

    thread = threading.Thread(target=drain)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    result.refresh()
    assert [attempt.outcome for attempt in result.history] == ["TIMED_OUT"]


@pytest.mark.django_db
def test_ctrl_c_stops_the_drain_and_loses_nothing() -> None:
    interrupted = tasks.interrupt.enqueue()
    waiting = tasks.add.starmap([(1, 2)] * 5)
    with pytest.raises(KeyboardInterrupt):
        run_all()
    interrupted.refresh()
    assert interrupted.state == State.READY
    assert [attempt.outcome for attempt in interrupted.history] == ["INTERRUPTED"]
    for result in waiting:
        result.refresh()
        assert (result.state, result.attempts) == (State.READY, 0)
    assert Worker.objects.count() == 0
    assert fsck.check(Ledger()) == []


# -- retries -----------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_coroutine_that_is_interrupted_does_not_go_on_beside_the_next_run() -> None:
    coroutines.TRAIL.clear()
    former = set_handler(SIGUSR1, lambda *_: limits.interrupt(Outcome.CANCELLED, "enough"))
    try:
        coroutines.interrupt_itself.enqueue(int(SIGUSR1))
        assert run_all().states == {State.CANCELLED: 1}
    finally:
        set_handler(SIGUSR1, former)
    assert coroutines.TRAIL == ["was cancelled"]


@pytest.mark.django_db
def test_failures_use_up_max_attempts_and_wait_their_backoff() -> None:
    result = tasks.fail.using(max_attempts=3, backoff=3600).enqueue()
    run_all()
    result.refresh()
    assert result.state == State.SCHEDULED
    assert result.status == TaskResultStatus.READY
    due = Run.objects.get(pk=result.id).due_at
    assert due is not None
    assert 3600 <= (due - result.history[0].finished_at).total_seconds() <= 3600 * 1.1 + 1
    assert run_all().runs == 0
    run_all(include_scheduled=True)
    result.refresh()
    assert (result.state, result.attempts) == (State.FAILED, 3)
    assert result.reason == "It failed 3 times, and max_attempts is 3."


@pytest.mark.parametrize(
    ("options", "attempts"),
    [
        ({"retry_on": [ValueError]}, 3),
        ({"retry_on": [Exception]}, 3),
        ({"retry_on": ["builtins.ValueError"]}, 3),
        ({"retry_on": ["tests.app.tasks.AlsoValueError"]}, 3),
        ({"retry_on": [KeyError]}, 1),
        ({"retry_on": ["gone.module.Error"]}, 1),
        ({"no_retry_on": [Exception]}, 1),
        ({"retry_on": [Exception], "no_retry_on": [ValueError]}, 1),
        ({"backoff": tasks.give_up}, 1),
        ({"backoff": tasks.once_more}, 2),
        ({"backoff": tasks.broken_backoff}, 1),
    ],
)
@pytest.mark.django_db
def test_what_is_retried(options: dict[str, Any], attempts: int) -> None:
    result = tasks.fail.using(**{"max_attempts": 3, "backoff": 0, **options}).enqueue()
    run_all()
    result.refresh()
    assert (result.state, result.attempts) == (State.FAILED, attempts)


def test_a_timeout_is_not_an_os_error_unless_named() -> None:
    config = default_task_backend.config

    def retried(*names: Any) -> bool:
        from django_manta.options import effective

        return policy.is_retried(
            exceptions.TaskTimeout("late"), effective(tasks.fail.using(retry_on=list(names)), config)
        )

    assert not retried(OSError)
    assert retried(exceptions.TaskTimeout)
    assert retried(TimeoutError)
    assert retried(OSError, "django_manta.exceptions.TaskTimeout")


@pytest.mark.django_db
def test_an_override_holds_for_later_attempts_whatever_the_code_says() -> None:
    result = tasks.fail.using(max_attempts=2, backoff=0).enqueue()
    with with_options(TASK_DEFAULTS={"max_attempts": 9}):
        run_all()
    result.refresh()
    assert result.attempts == 2


# -- signals and logs --------------------------------------------------------------------------------


@pytest.mark.django_db
def test_signals_tell_each_start_each_attempt_and_one_end() -> None:
    told: list[Any] = []
    receivers = {
        task_started: lambda sender, task_result, **kw: told.append(("started", sender, task_result.status)),
        task_finished: lambda sender, task_result, **kw: told.append(("finished", sender, task_result.status)),
        attempt_finished: lambda sender, outcome, state, **kw: told.append(("attempt", sender, outcome, state)),
        run_settled: lambda sender, state, **kw: told.append(("settled", sender, state)),
    }
    for signal, receiver in receivers.items():
        signal.connect(receiver)
    try:
        tasks.fail_first.enqueue()
        run_all()
    finally:
        for signal, receiver in receivers.items():
            signal.disconnect(receiver)
    backend = type(task_backends["default"])
    assert told == [
        ("started", backend, TaskResultStatus.RUNNING),
        ("attempt", backend, "FAILED", State.READY),
        ("started", backend, TaskResultStatus.RUNNING),
        ("finished", backend, TaskResultStatus.SUCCESSFUL),
        ("attempt", backend, "SUCCESSFUL", State.SUCCESSFUL),
        ("settled", backend, State.SUCCESSFUL),
    ]


@pytest.mark.django_db
def test_task_finished_is_sent_while_the_exception_is_live(caplog: pytest.LogCaptureFixture) -> None:
    tasks.fail.enqueue("for the log")
    with caplog.at_level(logging.ERROR, "django.tasks"):
        run_all()
    [record] = [record for record in caplog.records if record.name == "django.tasks"]
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "for the log"


@pytest.mark.django_db
def test_a_receiver_that_raises_changes_nothing() -> None:
    def receiver(**kwargs: Any) -> None:
        raise RuntimeError("a receiver of the project's")

    signals = [task_started, task_finished, attempt_finished, run_settled]
    for signal in signals:
        signal.connect(receiver)
    try:
        good, bad = tasks.add.enqueue(1, 2), tasks.fail.enqueue()
        run_all()
    finally:
        for signal in signals:
            signal.disconnect(receiver)
    good.refresh(), bad.refresh()
    assert (good.state, bad.state) == (State.SUCCESSFUL, State.FAILED)


@pytest.mark.django_db
def test_an_expired_run_is_told_by_whoever_finds_it() -> None:
    told: list[Any] = []

    def finished(sender: Any, task_result: Any, **kwargs: Any) -> None:
        told.append(task_result.errors[-1].exception_class)

    task_finished.connect(finished)
    try:
        from datetime import timedelta

        result = tasks.add.using(expires=timedelta(seconds=-1)).enqueue(1, 2)
        assert run_all().runs == 0
    finally:
        task_finished.disconnect(finished)
    result.refresh()
    assert result.state == State.EXPIRED
    assert told == [exceptions.TaskExpired]


@pytest.mark.django_db
def test_the_users_own_log_lines_carry_the_run() -> None:
    lines: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lines.append  # type: ignore[method-assign, assignment]
    handler.addFilter(RunFilter())
    logger = logging.getLogger("tests.app")
    logger.addHandler(handler)
    try:
        result = tasks.log_a_line.enqueue()
        run_all()
        logger.warning("outside")
    finally:
        logger.removeHandler(handler)
    inside, outside = lines
    assert (inside.run_id, inside.task, inside.attempt) == (result.id, "tests.app.tasks.log_a_line", 1)  # type: ignore[attr-defined]
    assert (outside.run_id, outside.task) == ("", "")  # type: ignore[attr-defined]


# -- atomic ------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_an_atomic_tasks_writes_and_its_success_commit_together() -> None:
    good, bad = tasks.write_atomically.enqueue("good", 1), tasks.write_atomically.enqueue("bad", 2, fails=True)
    run_all()
    good.refresh(), bad.refresh()
    assert (good.state, bad.state) == (State.SUCCESSFUL, State.FAILED)
    assert list(Ledgerline.objects.values_list("label", flat=True)) == ["good"]
    assert "after the write" in bad.errors[0].traceback


@pytest.mark.django_db(transaction=True)
def test_an_atomic_task_that_lost_its_lease_leaves_no_trace() -> None:
    tasks.write_and_lose.using(max_losses=0).enqueue("ghost")
    claimed = default_task_backend.ledger.claim("gone-worker", ["default"], 1)
    [claim] = claimed
    execution = execute(claim)  # its worker was never registered, so recover() finds the run orphaned
    assert execution.settlement is None
    assert Ledgerline.objects.count() == 0
    run = Run.objects.get()
    # Rolled back with the rest: what the task itself did to the run from inside its transaction.
    assert run.state == State.RUNNING


@pytest.mark.django_db(transaction=True)
def test_a_hook_that_fails_after_the_commit_cannot_change_the_outcome() -> None:
    result = tasks.write_then_hook_fails.enqueue("hook")
    run_all()
    result.refresh()
    assert result.state == State.SUCCESSFUL
    assert result.errors == []
    assert Ledgerline.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_broken_constraint_inside_an_atomic_task_still_records_the_attempt() -> None:
    result = tasks.break_a_constraint.enqueue()
    run_all()
    result.refresh()
    assert (result.state, result.attempts) == (State.FAILED, 2)
    assert result.errors[0].exception_class_path == "django.db.utils.IntegrityError"
    assert Ledgerline.objects.count() == 0


@pytest.mark.django_db
def test_atomic_tasks_work_inside_a_test_case() -> None:
    good, bad = tasks.write_atomically.enqueue("good", 1), tasks.write_atomically.enqueue("bad", 2, fails=True)
    run_all()
    good.refresh(), bad.refresh()
    assert (good.state, bad.state) == (State.SUCCESSFUL, State.FAILED)
    assert list(Ledgerline.objects.values_list("label", flat=True)) == ["good"]


# -- rows that must not run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"task": "tests.app.tasks.write_line"}, exceptions.BadTaskSignature),
        ({"task": "os.system"}, exceptions.BadTaskSignature),
        ({"arguments": '[["altered", 9], {}]'}, exceptions.BadTaskSignature),
        ({"arguments": "not json"}, exceptions.BadTaskSignature),
        ({"overrides": '{"timeout": 99}'}, exceptions.BadTaskSignature),
        ({"overrides": "}"}, exceptions.BadTaskSignature),
        ({"signature": ""}, exceptions.BadTaskSignature),
        ({"backend": "removed"}, exceptions.TaskNotFound),
    ],
)
@pytest.mark.django_db
def test_a_row_altered_by_hand_executes_nothing(columns: dict[str, str], error: type[Exception]) -> None:
    altered = tasks.write_line.enqueue("ours", 1) if "task" not in columns else tasks.echo.enqueue("x", 1)
    neighbours = tasks.add.starmap([(1, 2)] * 3)
    alter(altered.id, **columns)
    run_all()
    altered.refresh()
    assert altered.state == State.SCHEDULED  # given back: a newer release might know it
    assert altered.attempts == 0
    assert altered.reason
    # The skew period passes.
    with with_options(SKEW_SECONDS=0):
        run_all(include_scheduled=True)
    altered = default_task_backend.get_result(altered.id)
    assert Ledgerline.objects.count() == 0
    assert altered.state == (State.FAILED if "backend" not in columns else State.SCHEDULED)
    if altered.state == State.FAILED:
        assert altered.errors[-1].exception_class is error
    for neighbour in neighbours:
        neighbour.refresh()
        assert neighbour.state == State.SUCCESSFUL
    assert fsck.check(Ledger()) == []


def test_a_refusal_backs_off_until_the_skew_period_is_over() -> None:
    delays = [policy.after_refusal(so_far, 600) for so_far in (None, 0.5, 30, 400, 590)]
    assert [verdict.delay for verdict in delays if verdict] == [1.0, 1.0, 30, 60, 10]
    assert policy.after_refusal(600, 600) is None
    assert policy.after_refusal(None, 0) is None


@pytest.mark.django_db
def test_a_path_in_a_signed_row_must_still_name_a_task() -> None:
    """Signed by us, but the function is no longer decorated."""
    backend: Any = task_backends["default"]
    result = tasks.add.enqueue(1, 2)
    pk, arguments = result.id, "[[1,2],{}]"
    alter(pk, task="operator.add", signature=backend.seal.sign_run(pk, "operator.add", arguments, ""))
    run_all()
    result.refresh()
    assert result.reason == "'operator.add' is not a Task; decorate the function with @task."


# -- code that moved on ------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_task_that_moved_is_found_by_its_alias() -> None:
    backend: Any = task_backends["default"]
    result = tasks.present_name.enqueue()
    former = "tests.app.tasks.former_name"
    alter(result.id, task=former, signature=backend.seal.sign_run(result.id, former, "[[],{}]", ""))
    run_all()
    result.refresh()
    assert result.return_value == "found"


@pytest.mark.django_db
def test_a_deleted_task_is_shown_and_fails_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    result, beside = tasks.doomed.using(timeout=3).enqueue("a"), tasks.add.enqueue(1, 2)
    monkeypatch.delattr(tasks, "doomed")
    shown = default_task_backend.get_result(result.id)
    assert shown.task.module_path == "tests.app.tasks.doomed"
    assert shown.task.name == "doomed"
    assert (shown.args, shown.status) == (["a"], TaskResultStatus.READY)
    assert default_task_backend.get_result(result.id) == shown
    run_all()
    with with_options(SKEW_SECONDS=0):
        run_all(include_scheduled=True)
    shown.refresh(), beside.refresh()
    assert beside.return_value == 3
    assert shown.state == State.FAILED
    assert shown.errors[-1].exception_class is exceptions.TaskNotFound
    assert "'tests.app.tasks.doomed' cannot be found" in shown.errors[-1].traceback
    assert "aliases" in shown.reason
    # It comes back with the next release; an operator retries.
    monkeypatch.undo()
    assert shown.retry() == State.READY
    run_all()
    shown.refresh()
    assert shown.return_value == "a"


@pytest.mark.django_db
def test_a_removed_queue_is_shown_and_fails_with_what_is_missing() -> None:
    result, beside = tasks.add.using(queue_name="slow").enqueue(1, 2), tasks.add.enqueue(1, 2)
    with override_settings(TASKS={"default": {**MANTA, "QUEUES": ["default"], "OPTIONS": {"SKEW_SECONDS": 0}}}):
        assert default_task_backend.get_result(result.id).task.queue_name == "slow"
        run_all()
        result.refresh(), beside.refresh()
    assert beside.return_value == 3
    assert result.state == State.FAILED
    assert "Queue 'slow' is not among the QUEUES of TASKS['default']" in result.errors[-1].traceback


@pytest.mark.django_db
def test_a_removed_backend_alias_is_shown_and_fails_with_what_is_missing() -> None:
    with override_settings(TASKS={"default": MANTA, "second": MANTA}):
        result = tasks.add.using(backend="second").enqueue(1, 2)
    shown = default_task_backend.get_result(result.id)
    assert shown.backend == "second"
    shown.refresh()
    run_all()
    shown.refresh()
    assert "Backend 'second' is not configured in TASKS" in shown.reason
    assert shown.cancel() == State.CANCELLED


# -- middleware --------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_middleware_wraps_every_execution_first_one_outermost() -> None:
    tasks.TRAIL.clear()
    with with_options(MIDDLEWARE=["tests.app.tasks.outer", "tests.app.tasks.inner"]):
        result = tasks.add.enqueue(1, 2)
        run_all()
    result.refresh()
    assert tasks.TRAIL == ["outer in", "inner in", "inner out 3", "outer out 30"]
    assert result.return_value == 30


@pytest.mark.django_db
def test_what_a_middleware_raises_counts_as_raised_by_the_task() -> None:
    with with_options(MIDDLEWARE=["tests.app.tasks.refusing"]):
        result = tasks.add.enqueue(1, 2)
        run_all()
    result.refresh()
    assert result.errors[0].exception_class is PermissionError


@pytest.mark.django_db
def test_enqueue_middleware_sees_one_and_many() -> None:
    with with_options(ENQUEUE_MIDDLEWARE=["tests.app.tasks.stamp"]):
        one = tasks.echo.enqueue(1)
        many = tasks.echo.map([1, 2])
    assert [result.metadata for result in (one, *many)] == [{"stamped": n} for n in (1, 2, 2)]


@pytest.mark.django_db
def test_a_missing_middleware_is_a_clear_error_at_the_door() -> None:
    with (
        with_options(ENQUEUE_MIDDLEWARE=["tests.nowhere.stamp"]),
        pytest.raises(ImproperlyConfigured, match="ENQUEUE_MIDDLEWARE: 'tests.nowhere.stamp'"),
    ):
        tasks.echo.enqueue(1)


# -- recovery ----------------------------------------------------------------------------------------


def recover() -> int:
    return caretaker.recover(default_task_backend, default_task_backend.ledger)


@pytest.mark.django_db
def test_what_a_vanished_worker_held_is_taken_over() -> None:
    result = tasks.add.enqueue(1, 2)
    default_task_backend.ledger.claim("vanished", ["default"], 1)
    assert recover() == 1
    run_all()
    result.refresh()
    assert result.return_value == 3
    assert [attempt.outcome for attempt in result.history] == ["LOST", "SUCCESSFUL"]
    never_twice = tasks.add.using(max_losses=0).enqueue(1, 2)
    default_task_backend.ledger.claim("vanished", ["default"], 1)
    recover()
    never_twice.refresh()
    assert never_twice.state == State.LOST
    assert never_twice.errors[-1].exception_class is exceptions.TaskLost


@pytest.mark.django_db
def test_a_run_enqueued_inside_a_run_inherits_its_deadline() -> None:
    from datetime import timedelta

    outer = tasks.enqueue_another.using(deadline=timedelta(minutes=5)).enqueue()
    run_all()
    outer.refresh()
    assert default_task_backend.get_result(outer.return_value).deadline == outer.deadline


# -- what a hostile review found ---------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_a_task_leaves_open_swallows_nothing() -> None:
    leaking = tasks.leave_a_transaction_open.enqueue()
    writing = [tasks.write_line.enqueue(f"line {n}", n) for n in range(3)]
    run_all()
    connections.close_all()
    leaking.refresh()
    assert leaking.state == State.FAILED
    assert "left a transaction open on default" in leaking.reason
    for result in writing:
        result.refresh()
        assert result.state == State.SUCCESSFUL
    assert Ledgerline.objects.count() == 3


@pytest.mark.django_db(transaction=True)
def test_a_success_in_writing_is_taken_back_if_a_transaction_was_left_open() -> None:
    tasks.leave_a_transaction_open.enqueue()
    [claim] = default_task_backend.ledger.claim("worker", ["default"], 1)  # type: ignore[attr-defined]
    settlement = execute(claim, executor="host:1", in_writing=True).settlement
    connections.close_all()
    assert isinstance(settlement, Settlement)
    assert settlement.outcome is Outcome.FAILED
    assert "left a transaction open on default" in settlement.reason


@pytest.mark.django_db
def test_a_tasks_module_that_cannot_be_imported_hurts_only_its_own_runs() -> None:
    backend: Any = task_backends["default"]
    broken, beside = tasks.add.enqueue(1, 2), tasks.add.enqueue(1, 2)
    path = "tests.broken.some_task"
    alter(broken.id, task=path, signature=backend.seal.sign_run(broken.id, path, "[[1,2],{}]", ""))
    assert default_task_backend.get_result(broken.id).task.module_path == path
    run_all()
    broken.refresh(), beside.refresh()
    assert broken.reason == "Task 'tests.broken.some_task' cannot be imported: RuntimeError: this module is broken."
    assert beside.return_value == 3


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (tasks.fail.using(retry_on=[".x"], max_attempts=2), ValueError),
        (tasks.fail.using(retry_on=["tests.broken.Error"], max_attempts=2), ValueError),
        (tasks.fail_unprintably, tasks.Unprintable),
        (tasks.tell_nonsense, ValueError),
    ],
)
@pytest.mark.django_db
def test_nothing_escapes_the_executor(task: Any, error: type[BaseException]) -> None:
    result, beside = task.enqueue(), tasks.add.enqueue(1, 2)
    run_all(max_runs=10)
    result.refresh(), beside.refresh()
    assert (result.state, result.attempts) == (State.FAILED, 1)
    assert result.errors[0].exception_class is error
    assert beside.return_value == 3


@pytest.mark.parametrize(
    "columns",
    [{"progress": "5"}, {"progress": '{"x": 1}'}, {"result": "not json"}, {"state": "NONSENSE"}, {"metadata": "7"}],
)
@pytest.mark.django_db
def test_rows_edited_by_hand_are_still_shown(columns: dict[str, str]) -> None:
    result = tasks.add.enqueue(1, 2)
    run_all()
    alter(result.id, **columns)
    shown = default_task_backend.get_result(result.id)
    assert shown.args == [1, 2]


@pytest.mark.django_db
def test_metadata_that_cannot_be_read_fails_its_own_run_only() -> None:
    result, beside = tasks.add.enqueue(1, 2), tasks.add.enqueue(1, 2)
    alter(result.id, metadata="9" * 5000)
    run_all()
    beside.refresh()
    assert beside.return_value == 3
    assert default_task_backend.get_result(result.id).state == State.FAILED
