"""What attempts print on Ray, and how it is found again."""

import json
from pathlib import Path
from typing import Any

from django_manta import State
from django_manta.execution.runners.ray import printed, reader
from tests.app import tasks
from tests.ray.clusters import SLOW_SECONDS
from tests.ray.conftest import StartOnRay, marked, said
from tests.worker.conftest import ended, wait_for

WRITTEN = "ray: task=0f node=c4 log=/tmp/some where/session_1/logs/worker-ab-01000000-4711 out=3-310 err=0-"


def test_a_reference_says_which_part_of_which_files() -> None:
    found = printed.Reference.parse(WRITTEN)
    assert found is not None
    assert found == ("0f", "c4", "/tmp/some where/session_1/logs/worker-ab-01000000-4711", (3, 310), (0, None))
    assert found.link("http://ray:8265/") == "http://ray:8265/#/jobs/01000000/tasks/0f"


def test_what_is_no_reference_is_none() -> None:
    for text in ("", "ray-job:manta-1", "ray: task=0f", "ray: task=0f node=c4 log=/tmp/x out=a-b err=0-"):
        assert printed.Reference.parse(text) is None


def test_of_two_files_the_parts_are_read_without_the_marks_of_ray(tmp_path: Path) -> None:
    log = str(tmp_path / "worker-ab-01000000-4711")
    Path(f"{log}.out").write_text("another's\n:task_name:manta:1\nours\nanother's")
    Path(f"{log}.err").write_text("öurs, too\n")
    assert printed.read(log, (10, 34), (0, None)) == "ours\nöurs, too\n"
    assert printed.read(log, (10, 34), (0, None), most=6) == "\nours\n, too\n"
    assert printed.read(str(tmp_path / "gone"), (0, 1), (0, None)) is None


def test_the_words_of_each_run_are_found_on_ray(start_on_ray: StartOnRay, cluster: Any, tmp_path: Path) -> None:
    worker = start_on_ray().ready()
    # The first is new to the foreman; the others share chunks, and their words share files.
    runs = [tasks.speak.enqueue(f"number {n}") for n in range(30)]
    ended(*runs, limit=SLOW_SECONDS, worker=worker)
    assert {run.state for run in runs} == {State.SUCCESSFUL}
    for n, run in enumerate(runs):
        assert said("logs", str(run.id)) == f"number {n}, aloud\nnumber {n}, aside\n"
    killer = tasks.exit_with.enqueue(3)
    ended(killer, limit=SLOW_SECONDS, worker=worker)
    assert said("logs", str(killer.id), "--attempt", "1").startswith("last words\n")

    # On another machine the node is asked.
    reference = printed.Reference.parse(runs[7].history[-1].log_ref)
    assert reference is not None
    with reader._driver(cluster.address):
        assert reader._read_there(reference) == "number 7, aloud\nnumber 7, aside\n"
        assert reader._read_there(reference._replace(log="/nowhere/worker-1-2-3")) is None


def test_a_run_under_way_can_be_listened_to(
    start_on_ray: StartOnRay, options: dict[str, Any], settings: Any, tmp_path: Path
) -> None:
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": options}}
    worker = start_on_ray().ready()
    run = tasks.speak_and_stay.enqueue("stays", str(tmp_path / "go"))
    marked("stays", worker)
    wait_for(lambda: said("logs", str(run.id)) == "so far\n", SLOW_SECONDS, worker.tell)
    (tmp_path / "go").touch()
    ended(run, limit=SLOW_SECONDS, worker=worker)
    assert json.loads(said("logs", str(run.id), "--format", "json"))["log"] == "so far\nand on\n"
