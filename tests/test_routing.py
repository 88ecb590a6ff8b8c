"""manta's tables in a second database: everything but promises 1 and 3 holds."""

from typing import Any

import pytest
from django.db import transaction
from django.tasks import default_task_backend
from django.tasks.exceptions import InvalidTask
from django.test import override_settings

from django_manta import State
from django_manta.ledger import fsck
from django_manta.models import Run
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
