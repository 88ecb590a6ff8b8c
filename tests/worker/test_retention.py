"""Each run is kept as its own alias says, whoever removes it."""

import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS
from django.tasks import task_backends
from django.test import override_settings

from django_manta.ledger import DjangoSession, Ledger
from django_manta.models import Cluster, Run
from django_manta.states import State, When
from django_manta.worker import retention
from django_manta.worker.caretaker import Caretaker
from tests.commands.conftest import manta, manta_json
from tests.ledger.given import dependent, enqueue, sql
from tests.worker.conftest import wait_for

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


def backend(**kept: timedelta | None) -> dict[str, Any]:
    return {"BACKEND": "django_manta.MantaBackend", "QUEUES": [], "OPTIONS": {"RETENTION": kept}}


#: By whichever alias a worker is started, all of these rules hold.
RULES = {"default": backend(CANCELLED=None), "hour": backend(CANCELLED=timedelta(hours=1)), "month": backend()}

#: What is here is of an alias that is gone from the settings, or is it older than its alias keeps it?
AGES = {"default": 900, "hour": 2, "month": 2, "gone": 900}


class Recording(Ledger):
    """Remembers how many it looked at in each step."""

    def __init__(self) -> None:
        super().__init__(DjangoSession(DEFAULT_DB_ALIAS))
        self.looked: list[int] = []

    def prunable(self, *given: Any, **more: Any) -> Any:
        found = super().prunable(*given, **more)
        self.looked.append(len(found))
        return found


def ended(alias: str, count: int = 1, hours: int | None = None) -> None:
    """Cancelled runs of an alias, so many hours ago."""
    ledger = Ledger()
    ids = enqueue(ledger, count, backend=alias)
    ledger.cancel(ids)
    run = Run.objects.get(pk=ids[0])
    assert run.finished_at is not None
    then = ledger.dialect.moment(run.finished_at - timedelta(hours=AGES[alias] if hours is None else hours))
    for run_id in ids:
        sql(ledger, "UPDATE manta_run SET finished_at = %s WHERE id = %s", [then, run_id.hex])


def left() -> Counter[str]:
    return Counter(Run.objects.values_list("backend", flat=True))


@pytest.mark.parametrize("leader", RULES)
def test_each_run_is_kept_as_its_own_alias_says_whoever_leads(leader: str) -> None:
    with override_settings(TASKS=RULES):
        for alias in AGES:
            ended(alias, 3)
        ended("month", 1, hours=900)
        backend: Any = task_backends[leader]
        Cluster.objects.create(name=backend.config.cluster, key_fingerprint="")
        caretaker = Caretaker(backend, "worker-1", "processes", on_death=lambda: None)
        caretaker._prune_at = time.monotonic()
        caretaker._do_duties(Ledger())
        assert left() == {"default": 3, "month": 3, "gone": 3}


def test_the_command_removes_by_the_same_rules_and_tells_what_nobody_removes() -> None:
    with override_settings(TASKS=RULES):
        for alias in AGES:
            ended(alias, 3)
        words = "Kept 3 runs of the alias 'gone', which TASKS does not name."
        assert manta("prune", "--dry-run").lines == ["Would remove 3 runs: 3 CANCELLED.", words]
        assert manta("prune", "--backend", "month").lines == ["Removed 3 runs: 3 CANCELLED.", words]
        assert manta_json("prune")["kept"] == {"gone": 3}
        assert left() == {"default": 3, "month": 3, "gone": 3}
        [line] = [line for line in manta_json("doctor")["checks"] if line["check"] == "retention"]
        assert line["status"] == "warning"
        assert line["message"].startswith("at least 3 runs that ended are of the alias 'gone'")
    with override_settings(TASKS=RULES | {"gone": backend(CANCELLED=DAY)}):
        assert manta("prune").lines == ["Removed 3 runs: 3 CANCELLED."]
        [line] = [line for line in manta_json("doctor")["checks"] if line["check"] == "retention"]
        assert line["status"] == "ok"


def test_what_was_passed_over_once_is_not_read_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    monkeypatch.setattr(retention, "REST_TIMES", 100_000)
    with override_settings(TASKS={"default": backend(CANCELLED=None), "hour": backend(CANCELLED=timedelta(hours=1))}):
        ended("default", 95)
        ended("hour", 10)
        house, ledger, removed = retention.Retention(DEFAULT_DB_ALIAS), Recording(), dict[State, int]()
        house.go_on(ledger, removed)
        assert (sum(ledger.looked), removed[State.CANCELLED]) == (105, 10)
        # Later more is old enough.
        ledger.looked.clear()
        ended("hour", 5, hours=1)
        house.go_on(ledger, removed)
        assert (sum(ledger.looked), removed[State.CANCELLED]) == (5, 15)
        # Whoever leads next, or comes to its turn, begins anew.
        ledger.looked.clear()
        retention.Retention(DEFAULT_DB_ALIAS).go_on(ledger, removed)
        assert sum(ledger.looked) == 95


def test_other_duties_have_their_turn_while_much_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    with override_settings(TASKS={"default": backend(CANCELLED=DAY)}):
        ended("default", 35)
        turns: list[int] = []
        house, ledger, removed = retention.Retention(DEFAULT_DB_ALIAS), Recording(), dict[State, int]()
        house.go_on(ledger, removed, between=lambda: turns.append(removed[State.CANCELLED]))
        assert turns == [10, 20, 30]
        assert left() == {}


def test_what_had_to_stay_is_found_when_one_begins_anew() -> None:
    with override_settings(TASKS={"default": backend(CANCELLED=DAY)}):
        ended("default")
        [needed] = Run.objects.values_list("pk", flat=True)
        [held] = enqueue(Ledger(), hold=True)
        waiting = dependent(Ledger(), needed, held, when=When.ALL_FINISHED)
        house, ledger, removed = retention.Retention(DEFAULT_DB_ALIAS), Recording(), dict[State, int]()
        house.go_on(ledger, removed)
        assert removed[State.CANCELLED] == 0
        Ledger().cancel([waiting, held])

        def is_gone() -> bool:
            house.go_on(ledger, removed)
            return removed[State.CANCELLED] == 1

        wait_for(is_gone)
        assert set(Run.objects.values_list("pk", flat=True)) == {waiting, held}
