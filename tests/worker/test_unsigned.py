"""A worker beside rows that nobody signed, and modules that end their process: it goes on, and imports nothing."""

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.tasks import task_backends

from django_manta import State
from django_manta.ledger import Ledger
from django_manta.models import Run
from tests.app import tasks
from tests.ledger.given import enqueue, sql, worker_record
from tests.worker.conftest import Start, ended, marked, wait_for

#: A module of the standard library that ends its process when it is imported.
EXITS = "unittest.__main__.x"

#: Settings of a project with an app of its own, in a directory beside them.
SETTINGS = """
from tests.settings import *

INSTALLED_APPS = [*INSTALLED_APPS, {apps}]
"""


def sign(run_id: object, path: str) -> None:
    seal = task_backends["default"].seal  # type: ignore[attr-defined]
    pk = str(run_id) if connection.vendor == "postgresql" else str(run_id).replace("-", "")
    values = [path, seal.sign_run(str(run_id), path, "[[1,2],{}]", ""), pk]
    sql(Ledger(), "UPDATE manta_run SET task = %s, signature = %s WHERE id = %s", values)


@pytest.fixture
def project(tmp_path: Path, subprocess_environment: dict[str, str]) -> Callable[..., dict[str, str]]:
    """An environment whose project has an app for each of these ``tasks`` modules."""

    def make(**modules: str) -> dict[str, str]:
        for app, text in modules.items():
            (tmp_path / app).mkdir()
            (tmp_path / app / "__init__.py").touch()
            (tmp_path / app / "tasks.py").write_text(text)
        (tmp_path / "their_settings.py").write_text(SETTINGS.format(apps=", ".join(map(repr, modules))))
        path = f"{tmp_path}:{subprocess_environment.get('PYTHONPATH', '')}".rstrip(":")
        return {"PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "their_settings"}

    return make


def test_rows_that_nobody_signed_import_nothing_and_end_no_worker(
    start_worker: Start, project: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    ledger = Ledger()
    # Two that a lost worker had, among one that was signed.
    orphaned = tasks.add.enqueue(1, 1)
    enqueue(ledger, task=EXITS)
    enqueue(ledger, task="tests.unwanted.wanted")
    seen_at = ledger.register(worker_record("vanished"))
    assert len(ledger.claim("vanished", ["default"], 10)) == 3
    assert ledger.mark_lost("vanished", seen_at)
    for columns in (
        {"task": EXITS},
        {"task": "tests.unwanted.wanted"},
        {"overrides": '{"backoff":"tests.unwanted.give_up"}'},
        {"overrides": f'{{"backoff":"{EXITS}"}}'},
    ):
        enqueue(ledger, **columns)
    # Signed, but its module ends the process; as does that of an app.
    exits = tasks.add.enqueue(1, 2)
    sign(exits.id, "tests.exits.task")
    good = tasks.add.starmap([(n, 1) for n in range(20)])
    environment = project(exiting='raise SystemExit("set BAR")') | {"MANTA_TEST_MARK": str(marks)}
    worker = start_worker("--processes", "1", environment=environment, LEASE_SECONDS=2, SKEW_SECONDS=2).ready()
    ended(orphaned, *good, worker=worker)
    assert {run.state for run in (orphaned, *good)} == {State.SUCCESSFUL}
    wait_for(lambda: Run.objects.finished().count() == Run.objects.count(), 30, worker.tell)
    refused = Run.objects.filter(state=State.FAILED)
    assert refused.filter(reason__contains="does not match").count() == 4
    assert refused.get(pk=exits.id).reason.endswith("SystemExit: set FOO.")
    assert Run.objects.filter(state=State.LOST).count() == 2, "nobody can say how often those may be lost"
    assert not marks.exists(), "somebody has imported what nobody signed"
    log = worker.log.read_text()
    assert "The module exiting.tasks cannot be imported." in log
    assert "ImportFailed: SystemExit: set BAR" in log
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0, worker.tell()


def test_the_modules_of_tasks_are_imported_before_any_run_asks_for_them(
    start_worker: Start, project: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    write = f"import os\nwith open({str(marks)!r}, 'a') as marks:\n    marks.write(f'{{os.getpid()}} ')\n"
    worker = start_worker(environment=project(heavy=write)).ready()
    wait_for(lambda: marks.exists() and str(worker.pid) in marks.read_text().split(), 20, worker.tell)


def test_a_worker_ends_with_a_thread_that_it_cannot_do_without(
    start_worker: Start, project: Callable[..., dict[str, str]]
) -> None:
    """A receiver raises SystemExit in the caretaker, which expects exceptions only."""
    environment = project(
        fatal="import threading\n"
        "from django_manta.signals import run_settled\n"
        "def leave(**told):\n"
        "    if threading.current_thread().name == 'manta-caretaker':\n"
        "        raise SystemExit\n"
        "run_settled.connect(leave, weak=False)\n"
    )
    staying = tasks.stay_at_first.enqueue("staying")
    worker = start_worker("--processes", "1", environment=environment).ready()
    marked("staying", worker)
    tasks.add.using(expires=timedelta(seconds=-1)).enqueue(1, 2)
    assert worker.wait(30) == 1, worker.tell()
    assert any("The thread manta-caretaker died; the worker ends." in line for line in worker.lines())
    staying.refresh()
    assert (staying.state, staying.history[0].outcome) == (State.READY, "INTERRUPTED")
