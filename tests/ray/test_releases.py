"""Releases with different protocols beside each other: what runs is taken over, and what cannot go on is told."""

import signal
from pathlib import Path
from typing import Any

import pytest

from django_manta import State
from django_manta.ledger import Ledger, fsck
from django_manta.models import Attempt, Run, Worker
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.ray.clusters import SLOW_SECONDS
from tests.ray.conftest import marked, said, unique_version
from tests.ray.releases import ANY_PROTOCOL, release, worker_of
from tests.worker.conftest import Start, WorkerProcess, ended, outcomes, wait_for

#: A release that writes claims in another form than this one.
OTHER_CLAIMS = (
    ("execution/runners/ray/messages.py", "    return dump(plain)\n", '    return dump({"claim": plain})\n'),
    (
        "execution/runners/ray/messages.py",
        "    kept = json.loads(written)\n",
        '    kept = json.loads(written)["claim"]\n',
    ),
)


#: A release that tells of outcomes in another form than this one.
OTHER_OUTCOMES = (
    (
        "execution/runners/ray/messages.py",
        "        return [row.duration, row.told, row.text]\n",
        '        return {"outcome": [row.duration, row.told, row.text]}\n',
    ),
    (
        "execution/runners/ray/messages.py",
        "    if len(told) == _WELL:\n",
        '    told = told["outcome"] if isinstance(told, dict) else told\n    if len(told) == _WELL:\n',
    ),
)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return release(tmp_path / "release", ANY_PROTOCOL)


def begin(worker: WorkerProcess, go: Path) -> list[Any]:
    runs: list[Any] = [tasks.stay_on_ray.enqueue(f"run {n}", str(go)) for n in range(2)]
    for n in range(2):
        marked(f"run {n}", worker)
    return runs


def owned_by(worker: WorkerProcess, run: Any) -> bool:
    owner = Run.objects.get(pk=run.id).worker
    return Worker.objects.filter(pk=owner, pid=worker.pid, lost_at=None).exists()


def assert_none_was_started_twice(runs: list[Any]) -> None:
    assert {(run.state, *outcomes(run)) for run in runs} == {(State.SUCCESSFUL, "SUCCESSFUL")}
    assert Ledgerline.objects.filter(label__startswith="run").count() == len(runs)
    assert not Attempt.objects.exclude(outcome="SUCCESSFUL").exists()
    assert fsck.check(Ledger()) == []


@pytest.mark.parametrize("protocols", [(4, 5), (5, 4)], ids=["newer", "older"])
def test_a_release_with_another_protocol_takes_over_what_runs(
    start_worker: Start, options: dict[str, Any], code: Path, tmp_path: Path, protocols: tuple[int, int]
) -> None:
    version, go = unique_version(), tmp_path / "go"
    former, latter = (worker_of(options, code, version, protocol=each) for each in protocols)
    first = start_worker("--runner", "ray", **former).ready()
    runs = begin(first, go)
    first.signal(signal.SIGTERM)
    assert first.wait(15) == 0, first.tell()
    second = start_worker("--runner", "ray", **latter)
    more = tasks.add.enqueue(1, 2)
    wait_for(lambda: all(owned_by(second, run) for run in runs), SLOW_SECONDS, second.tell)
    # One is told over the protocol's border that it is not wanted any more.
    runs[0].cancel()
    ended(runs[0], limit=SLOW_SECONDS, worker=second)
    assert (runs[0].state, outcomes(runs[0])) == (State.CANCELLED, ["CANCELLED"])
    go.touch()
    ended(runs[1], more, limit=SLOW_SECONDS, worker=second)
    assert (runs[1].state, outcomes(runs[1])) == (State.SUCCESSFUL, ["SUCCESSFUL"])
    assert more.state is State.SUCCESSFUL
    assert Ledgerline.objects.filter(label__startswith="run").count() == len(runs)
    assert not Attempt.objects.filter(outcome="LOST").exists()


def test_what_another_release_wrote_in_words_of_its_own_goes_on_until_a_worker_of_it_comes(
    start_worker: Start, options: dict[str, Any], tmp_path: Path
) -> None:
    code = release(tmp_path / "release", ANY_PROTOCOL, *OTHER_CLAIMS)
    version, go = unique_version(), tmp_path / "go"
    newer = worker_of(options, code, version, protocol=5)
    first = start_worker("--runner", "ray", **newer).ready()
    runs = begin(first, go)
    first.signal(signal.SIGTERM)
    assert first.wait(15) == 0, first.tell()
    ours = start_worker("--runner", "ray", **options | {"RAY": options["RAY"] | version})
    words = "were begun by another release, in words that this one cannot read"
    wait_for(lambda: Worker.objects.filter(pid=ours.pid, troubles__contains=words).exists(), SLOW_SECONDS, ours.tell)
    assert words in said("doctor")
    assert words in said("health")
    assert words in said("explain", runs[0].id)
    # It has nothing else to wait for, and works.
    more = tasks.add.enqueue(1, 2)
    ended(more, limit=SLOW_SECONDS, worker=ours)
    assert Run.objects.filter(state="RUNNING").count() == len(runs)
    second = start_worker("--runner", "ray", **newer)
    wait_for(lambda: all(owned_by(second, run) for run in runs), SLOW_SECONDS, second.tell)
    go.touch()
    ended(*runs, limit=SLOW_SECONDS, worker=second)
    assert_none_was_started_twice([*runs])
    wait_for(lambda: Worker.objects.filter(pid=ours.pid, troubles="{}").exists(), SLOW_SECONDS, ours.tell)


def test_an_outcome_in_words_of_another_release_is_kept_until_a_worker_of_it_comes(
    start_worker: Start, options: dict[str, Any], tmp_path: Path
) -> None:
    code = release(tmp_path / "release", ANY_PROTOCOL, *OTHER_OUTCOMES)
    version, go = unique_version(), tmp_path / "go"
    newer = worker_of(options, code, version, protocol=5)
    first = start_worker("--runner", "ray", **newer).ready()
    runs = begin(first, go)
    first.signal(signal.SIGTERM)
    assert first.wait(15) == 0, first.tell()
    ours = start_worker("--runner", "ray", **options | {"RAY": options["RAY"] | version})
    wait_for(lambda: all(owned_by(ours, run) for run in runs), SLOW_SECONDS, ours.tell)
    go.touch()
    words = "of another release tells of it in words that this worker cannot read"
    wait_for(lambda: all(words in said("explain", run.id) for run in runs), SLOW_SECONDS, ours.tell)
    assert Run.objects.filter(state="RUNNING").count() == len(runs)
    ours.signal(signal.SIGTERM)
    assert ours.wait(15) == 0, ours.tell()
    second = start_worker("--runner", "ray", **newer)
    ended(*runs, limit=SLOW_SECONDS, worker=second)
    assert_none_was_started_twice(runs)


def test_a_foreman_on_an_older_head_node_is_told_of_and_nothing_is_claimed(
    start_worker: Start, options: dict[str, Any], code: Path
) -> None:
    run = tasks.add.enqueue(1, 2)
    given = worker_of(options, code, unique_version(), protocol=5, on_ray=4)
    worker = start_worker("--runner", "ray", **given).ready()
    words = "it runs django-manta with protocol 4, and this worker has protocol 5"
    wait_for(lambda: words in said("doctor"), SLOW_SECONDS, worker.tell)
    assert "claims nothing" in said("doctor")
    assert words in said("health")
    assert words in said("explain", run.id)
    row = Run.objects.get(pk=run.id)
    assert (row.state, row.attempts) == ("READY", 0)
    assert worker.log.read_text().count("refuses this worker") == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait(15) == 0, worker.tell()


def test_a_node_with_an_older_release_gives_runs_back_and_is_told_of(
    start_worker: Start, options: dict[str, Any], code: Path, tmp_path: Path
) -> None:
    given = worker_of(options, code, unique_version(), protocol=5)
    given["TASK_OPTIONS"] = {"tests.app.tasks.add": {"ray": {"runtime_env": "older"}}}
    worker = start_worker("--runner", "ray", **given).ready()
    run = tasks.add.enqueue(1, 2)
    words = "A node of Ray has another version of django-manta than the head node."
    wait_for(lambda: words in said("doctor"), SLOW_SECONDS, worker.tell)
    assert words in said("health")
    wait_for(lambda: Attempt.objects.filter(run_id=run.id).count() > 1, SLOW_SECONDS, worker.tell)
    assert set(Attempt.objects.values_list("outcome", flat=True)) == {"RETURNED"}
    row = Run.objects.get(pk=run.id)
    assert (row.failures, row.crashes, row.losses) == (0, 0, 0)
    # The others go on.
    (tmp_path / "go").touch()
    beside = tasks.stay_on_ray.enqueue("beside", str(tmp_path / "go"))
    ended(beside, limit=SLOW_SECONDS, worker=worker)
    assert beside.state is State.SUCCESSFUL
