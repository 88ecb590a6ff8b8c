"""What a row names that nobody signed is neither imported nor obeyed, whoever looks at it."""

import sys
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection
from django.tasks import default_task_backend, task_backends
from django.tasks.exceptions import InvalidTask
from django.tasks.signals import task_finished

from django_manta import State, exceptions
from django_manta.execution import announce
from django_manta.execution.admission import resolve
from django_manta.ledger import Ledger
from django_manta.models import Run
from django_manta.testing import run_all
from django_manta.worker import afar, caretaker, jobs
from tests.app import tasks
from tests.ledger.given import enqueue, sql
from tests.worker.test_bad_rows import without_checks

pytestmark = pytest.mark.django_db

MODULE = "tests.unwanted"
BACKOFF = '{"backoff":"tests.unwanted.give_up"}'


@pytest.fixture(autouse=True)
def not_loaded() -> Iterator[None]:
    sys.modules.pop(MODULE, None)
    yield
    sys.modules.pop(MODULE, None)


def forged(**columns: Any) -> UUID:
    [run_id] = enqueue(Ledger(), **{"signature": "forged", **columns})
    return run_id


def signed(path: str, arguments: str = "[[5],{}]", overrides: str = "") -> UUID:
    """As an application does that has the task."""
    backend: Any = task_backends["default"]
    [run_id] = enqueue(Ledger(), task=path, arguments=arguments, overrides=overrides)
    signature = backend.seal.sign_run(str(run_id), path, arguments, overrides)
    pk = str(run_id) if connection.vendor == "postgresql" else run_id.hex
    sql(Ledger(), "UPDATE manta_run SET signature = %s WHERE id = %s", [signature, pk])
    return run_id


@pytest.mark.parametrize(
    "columns", [{"task": "tests.unwanted.wanted"}, {"overrides": BACKOFF}], ids=["its task", "its backoff"]
)
def test_looking_at_a_forged_row_imports_nothing(columns: dict[str, str]) -> None:
    run_id = forged(**columns)
    backend: Any = task_backends["default"]
    result = default_task_backend.get_result(str(run_id))
    result.refresh()
    assert result.task.module_path == columns.get("task", "tests.app.tasks.add")
    call_command("manta", "show", str(run_id), "--format", "json")
    call_command("manta", "explain", str(run_id))
    [claim] = backend.ledger.claim("vanished", ["default"], 1)
    with pytest.raises(exceptions.BadTaskSignature):
        resolve(claim)
    call_command("manta", "explain", str(run_id))
    announce.ended(backend, [run_id])
    assert caretaker.recover(backend, backend.ledger) == 1
    result.retry() if Run.objects.get(pk=run_id).state == State.LOST else None
    run_all()
    assert Run.objects.get(pk=run_id).result.cancel() is State.CANCELLED
    assert MODULE not in sys.modules


def test_options_that_nobody_signed_do_not_hold() -> None:
    run_id = forged(overrides='{"timeout":99,"max_attempts":7}')
    shown: Any = default_task_backend.get_result(str(run_id)).task
    assert (shown.timeout, shown.max_attempts) == (tasks.add.timeout, tasks.add.max_attempts)
    kept: Any = default_task_backend.get_result(tasks.add.using(timeout=9).enqueue(1, 2).id).task
    assert kept.timeout == 9


def test_ray_is_asked_for_nothing_that_nobody_signed() -> None:
    forged(overrides='{"ray":{"num_gpus":64}}')
    backend: Any = task_backends["default"]
    [claim] = backend.ledger.claim("worker", ["default"], 1)
    for needs in (afar._needs, jobs._needs):
        with pytest.raises(exceptions.BadTaskSignature):
            needs(backend.config, claim)
    # Nor because somebody has signed the same for another run.
    tasks.add.using(ray={"num_gpus": 64}).enqueue(1, 2)
    [good] = backend.ledger.claim("worker", ["default"], 1)
    assert afar._needs(backend.config, good)[0]["num_gpus"] == jobs._needs(backend.config, good)["num_gpus"] == 64
    with pytest.raises(exceptions.BadTaskSignature):
        afar._needs(backend.config, claim)


def test_the_task_of_a_signed_row_is_imported_by_who_looks_at_it() -> None:
    run_id = signed("tests.unwanted.wanted", overrides=BACKOFF)
    result = default_task_backend.get_result(str(run_id))
    assert result.task.func.__module__ == MODULE
    assert result.task.backoff.__name__ == "give_up"  # type: ignore[attr-defined]
    run_all()
    result.refresh()
    assert result.return_value == 5


def test_a_module_that_exits_when_it_is_imported_ends_nobody() -> None:
    run_id = signed("tests.exits.task")
    shown = default_task_backend.get_result(str(run_id))
    assert shown.task.module_path == "tests.exits.task"
    run_all()
    shown.refresh()
    assert shown.state is State.SCHEDULED  # type: ignore[attr-defined]
    assert Run.objects.get(pk=run_id).reason == "Task 'tests.exits.task' cannot be imported: SystemExit: set FOO."
    call_command("manta", "explain", str(run_id))


def test_a_task_that_only_a_row_knows_is_not_enqueued() -> None:
    shown = default_task_backend.get_result(str(forged(task="tests.unwanted.wanted")))
    with pytest.raises(InvalidTask, match="tests.unwanted.wanted is not known to this process"):
        shown.task.enqueue(5)
    with pytest.raises(exceptions.TaskNotFound, match="tests.unwanted.wanted"):
        shown.task.call(5)
    assert MODULE not in sys.modules


def test_an_object_that_is_no_task_is_not_touched() -> None:
    touched = []

    class Lazy:
        @property
        def __class__(self) -> Any:
            touched.append(self)
            return type(tasks.add)

    sys.modules[MODULE] = type(sys)(MODULE)
    sys.modules[MODULE].lazy = Lazy()  # type: ignore[attr-defined]
    assert default_task_backend.get_result(str(forged(task=f"{MODULE}.lazy"))).task.name == "lazy"
    assert not touched


def test_a_row_that_cannot_be_read_does_not_keep_the_ends_of_others_from_being_told() -> None:
    unreadable, *others = [tasks.fail.enqueue() for _ in range(3)]
    run_all()
    pk = unreadable.id if connection.vendor == "postgresql" else unreadable.id.replace("-", "")
    sql(Ledger(), "UPDATE manta_attempt SET outcome = 'NONSENSE' WHERE run_id = %s", [pk])
    told = []

    def finished(task_result: Any, **kwargs: Any) -> None:
        told.append(task_result.id)

    task_finished.connect(finished)
    try:
        announce.ended(task_backends["default"], [UUID(run.id) for run in (unreadable, *others)])
    finally:
        task_finished.disconnect(finished)
    assert set(told) >= {run.id for run in others}


@pytest.mark.postgres("SQLite has no moment that its driver cannot read as text")
def test_nor_does_one_that_the_driver_cannot_read() -> None:
    unreadable, *others = [tasks.fail.enqueue() for _ in range(3)]
    run_all()
    without_checks("UPDATE manta_run SET started_at = 'infinity' WHERE id = %s", unreadable.id)
    told = []

    def finished(task_result: Any, **kwargs: Any) -> None:
        told.append(task_result.id)

    task_finished.connect(finished)
    try:
        announce.ended(task_backends["default"], [UUID(run.id) for run in (unreadable, *others)])
    finally:
        task_finished.disconnect(finished)
    assert told == [run.id for run in others]
