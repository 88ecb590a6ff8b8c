"""--reload: the worker is started anew whenever a source file of the project changes."""

import importlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_manta import State
from django_manta.models import Worker
from tests.worker.conftest import Start, WorkerProcess, ended, wait_for

TASKS = """
from django_manta import task


@task
def version() -> int:
    return {version}
"""


class Project:
    """A project of its own: the tests' settings, and an app whose code changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "changing").mkdir(parents=True)
        (folder / "changing_settings.py").write_text(
            "from tests.settings import *\n\nINSTALLED_APPS = [*INSTALLED_APPS, 'changing']\n"
        )
        self.write("__init__.py", "")
        self.write("tasks.py", TASKS.format(version=1))

    def write(self, name: str, code: str) -> None:
        (self.folder / "changing" / name).write_text(code)

    def environment(self, inherited: dict[str, str]) -> dict[str, str]:
        path = f"{self.folder}:{inherited.get('PYTHONPATH', '')}".rstrip(":")
        return {"PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "changing_settings", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    yield Project(tmp_path / "project")
    for name in [name for name in sys.modules if name.partition(".")[0] == "changing"]:
        del sys.modules[name]


@pytest.fixture
def version(project: Project, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The task, for this process to enqueue; what it returns is the worker's business."""
    monkeypatch.syspath_prepend(str(project.folder))
    # Bytecode of a file that changes within the second, and not in length, would be taken for fresh.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return importlib.import_module("changing.tasks").version


def present(worker: WorkerProcess) -> int:
    """The process of the worker that is there now."""
    [pid] = wait_for(lambda: list(Worker.objects.values_list("pid", flat=True)), 30, worker.tell)
    return int(pid)


def test_a_worker_is_started_anew_when_code_changes_and_ends_when_told(
    start_worker: Start, project: Project, version: Any, subprocess_environment: dict[str, str]
) -> None:
    worker = start_worker("--reload", environment=project.environment(subprocess_environment))
    first = version.enqueue()
    ended(first, worker=worker)
    assert first.return_value == 1
    process = present(worker)

    project.write("tasks.py", TASKS.format(version=2))
    wait_for(lambda: not Worker.objects.filter(pid=process).exists(), 30, worker.tell)
    second = version.enqueue()
    ended(second, worker=worker)
    assert second.return_value == 2
    assert present(worker) != process

    project.write("__init__.py", "this is no Python")
    wait_for(lambda: "Waiting for a change" in worker.tell(), 30, worker.tell)
    assert "SyntaxError" in worker.tell()
    third = version.enqueue()
    project.write("tasks.py", TASKS.format(version=3))
    project.write("__init__.py", "")
    ended(third, worker=worker)
    assert (third.state, third.return_value) == (State.SUCCESSFUL, 3)

    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0, worker.tell()
    assert worker.processes() == []
    assert not Worker.objects.exists()


def test_ctrl_c_ends_a_reloading_worker_and_its_processes(
    start_worker: Start, project: Project, subprocess_environment: dict[str, str]
) -> None:
    worker = start_worker("--reload", environment=project.environment(subprocess_environment))
    wait_for(Worker.objects.exists, 30, worker.tell)
    worker.signal_group(signal.SIGINT)
    assert worker.wait(20) == 0, worker.tell()
    assert worker.processes() == []
    assert not Worker.objects.exists()


def test_a_reloading_worker_that_is_done_leaves(
    start_worker: Start, project: Project, version: Any, subprocess_environment: dict[str, str]
) -> None:
    run = version.enqueue()
    worker = start_worker("--reload", "--burst", environment=project.environment(subprocess_environment))
    assert worker.wait(30) == 0, worker.tell()
    ended(run)
    assert run.return_value == 1
