"""manta's tables in a second database: everything but promises 1 and 3 holds."""

import subprocess
import sys
from typing import Any

import pytest
from django.db import transaction
from django.tasks import default_task_backend
from django.tasks.exceptions import InvalidTask
from django.test import override_settings

from django_manta import State, workflow
from django_manta.ledger import fsck
from django_manta.models import Run, Workflow
from django_manta.testing import run_all
from tests.app import tasks
from tests.app.models import Ledgerline

BY_ROUTER = {"DATABASE_ROUTERS": ["tests.test_checks.ToOther"]}
BY_OPTION = {
    "TASKS": {"default": {"BACKEND": "django_manta.MantaBackend", "OPTIONS": {"DATABASE": "other"}}},
}


@pytest.mark.parametrize("settings", [BY_ROUTER, BY_OPTION], ids=["router", "option"])
@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_everything_works_when_the_tables_are_elsewhere(settings: dict[str, Any]) -> None:
    with override_settings(**settings):
        good = tasks.write_line.enqueue("line", 1)
        telling = tasks.tell_progress.enqueue(3)
        bad = tasks.fail.using(max_attempts=2, backoff=0).enqueue()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            survives = tasks.add.enqueue(1, 2)
            raise ZeroDivisionError
        assert Run.objects.using("default").count() == 0
        assert Run.objects.using("other").count() == 4
        run_all()
        for result in (good, telling, bad, survives):
            result.refresh()
        assert (good.state, bad.state, survives.state) == (State.SUCCESSFUL, State.FAILED, State.SUCCESSFUL)
        assert telling.progress is not None
        assert telling.metadata == {"seen": 3}
        assert bad.attempts == 2
        assert Run.objects.using("other").get(pk=good.id).result == good
        assert Ledgerline.objects.using("default").count() == 1
        assert bad.retry() == State.READY
        assert bad.cancel() == State.CANCELLED
        assert fsck.check(default_task_backend.ledger) == []


@pytest.mark.django_db(databases=["default", "other"])
def test_atomic_is_an_error_there() -> None:
    with (
        override_settings(**BY_ROUTER),
        pytest.raises(InvalidTask, match="atomic=True needs manta's tables in the database of your data"),
    ):
        tasks.write_atomically.enqueue("never", 1)


@pytest.mark.django_db(transaction=True)
def test_an_empty_default_database_is_none(subprocess_environment: dict[str, str]) -> None:
    def manage(*words: str) -> str:
        environment = {**subprocess_environment, "DJANGO_SETTINGS_MODULE": "tests.settings_elsewhere"}
        command = [sys.executable, "-m", "tests.manage", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "no issues" in manage("check")
    manage("shell", "-c", ENQUEUE)
    manage("manta", "worker", "--burst", "--processes", "1")
    assert [run.state for run in Run.objects.all()] == [State.SUCCESSFUL] * 3
    assert Ledgerline.objects.get().label == "atomic"


ENQUEUE = """
from django_manta import workflow
from tests.app import tasks
tasks.write_atomically.enqueue("atomic", 1)
with workflow("import") as flow:
    tasks.add.enqueue(tasks.add.enqueue(1, 2), 3)
assert flow.runs.count() == 2
"""


class ReadsElsewhere:
    """As if `other` were a replica of `default`."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


@pytest.mark.parametrize("settings", [BY_ROUTER, BY_OPTION], ids=["router", "option"])
@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_a_workflow_is_all_or_nothing_when_the_tables_are_elsewhere(settings: dict[str, Any]) -> None:
    with override_settings(**settings):
        with pytest.raises(ZeroDivisionError), workflow("import", unique_key="monday"):
            tasks.add.enqueue(1, 2)
            raise ZeroDivisionError
        assert (Run.objects.using("other").count(), Workflow.objects.using("other").count()) == (0, 0)
        with workflow("import", unique_key="monday") as flow:
            one = tasks.add.enqueue(1, 2)
            tasks.add.enqueue(one, 3)
        assert Workflow.objects.using("other").get().id == flow.id
        assert Workflow.objects.using("default").count() == 0
        assert flow.runs.count() == 2
        assert run_all().states == {State.SUCCESSFUL: 2}


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_what_a_workflow_could_not_undo_is_refused_inside_its_block() -> None:
    manta = "django_manta.MantaBackend"
    bulk = {"BACKEND": manta, "QUEUES": ["bulk"], "OPTIONS": {"DATABASE": "other"}}
    with override_settings(TASKS={"default": {"BACKEND": manta}, "bulk": bulk}):
        elsewhere = tasks.add.using(backend="bulk", queue_name="bulk")
        with pytest.raises(ValueError, match="open the block with using='other'"), workflow("import"):
            tasks.add.enqueue(1, 2)
            elsewhere.enqueue(1, 2)
        assert (Run.objects.using("default").count(), Run.objects.using("other").count()) == (0, 0)
        with workflow("import", using="other") as flow:
            elsewhere.enqueue(1, 2)
        assert flow.runs.count() == 1


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_the_runs_of_a_workflow_are_read_where_they_were_written() -> None:
    with override_settings(DATABASE_ROUTERS=["tests.test_routing.ReadsElsewhere"]):
        with workflow("import") as flow:
            tasks.add.enqueue(1, 2)
        assert flow.runs.count() == 1
