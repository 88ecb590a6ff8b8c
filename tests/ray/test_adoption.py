"""Workers come and go; what runs on Ray goes on, and is settled by whoever is there."""

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from django_manta import State
from django_manta.execution.runners.ray import messages
from django_manta.ledger import Ledger, fsck
from django_manta.models import Attempt, Run, Worker
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.conftest import DATABASE
from tests.ray.clusters import SLOW_SECONDS, new_cluster
from tests.ray.conftest import StartOnRay, claimed_by, has_had_its_chance, marked, said, unique_version
from tests.worker.conftest import Start, WorkerProcess, ended, outcomes, wait_for

STAYING = 2


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Path]:
    """The file for which the runs stay."""
    yield tmp_path / "go"
    (tmp_path / "go").touch()


def begin(worker: WorkerProcess, go: Path) -> list[Any]:
    """Runs on Ray that have started, and stay; one will write and succeed in one transaction."""
    runs: list[Any] = [tasks.stay_on_ray.enqueue(f"run {n}", str(go)) for n in range(STAYING)]
    for n in range(STAYING):
        marked(f"run {n}", worker)
    if DATABASE == "postgres":
        # On SQLite it would keep everybody else from writing.
        runs.append(tasks.write_slowly_on_ray.enqueue("atomic", str(go)))
        wait_for(Path(f"{go} atomic").exists, SLOW_SECONDS, worker.tell)
    return runs


def adopted(runs: list[Any], worker: WorkerProcess) -> None:
    """Wait until all of them are this worker's."""
    ids = [run.id for run in runs]

    def are_all_its_own() -> bool:
        owners = set(Run.objects.filter(pk__in=ids).values_list("worker", flat=True))
        return owners == set(Worker.objects.filter(pid=worker.pid, lost_at=None).values_list("pk", flat=True))

    wait_for(are_all_its_own, SLOW_SECONDS, worker.tell)


def assert_none_was_started_twice(runs: list[Any]) -> None:
    assert {(run.state, *outcomes(run)) for run in runs} == {(State.SUCCESSFUL, "SUCCESSFUL")}
    assert Ledgerline.objects.filter(label__startswith="run").count() == STAYING
    assert Ledgerline.objects.filter(label="atomic").count() == (DATABASE == "postgres")
    assert not Attempt.objects.filter(outcome="LOST").exists()
    assert fsck.check(Ledger()) == []


def test_what_a_killed_worker_had_on_ray_is_settled_by_another(start_on_ray: StartOnRay, go: Path) -> None:
    first = start_on_ray().ready()
    runs = begin(first, go)
    first.signal(signal.SIGKILL)
    second = start_on_ray()
    adopted(runs, second)
    go.touch()
    ended(*runs, limit=SLOW_SECONDS, worker=second)
    assert_none_was_started_twice(runs)
    [adopter] = Worker.objects.filter(pid=second.pid).values_list("pk", flat=True)
    assert set(Attempt.objects.values_list("worker", flat=True)) == {adopter}


def test_what_a_worker_had_on_one_ray_is_left_alone_by_workers_of_another(
    cluster: Any, start_on_ray: StartOnRay, start_worker: Start, options: dict[str, Any], go: Path
) -> None:
    """Both Rays have foremen of the same name. Who asks the wrong one hears that it knows of nothing."""
    other = new_cluster()

    def start(there: Any) -> WorkerProcess:
        if there is cluster:
            return start_on_ray("--queues", "default")
        ray = options["RAY"] | {"ADDRESS": other.address}
        given = options | {"RAY": ray, "QUEUE_OPTIONS": {"urgent": {"runner": "ray"}}}
        return start_worker("--runner", "ray", "--queues", "urgent", **given)

    try:
        here, there = start(cluster), start(other)
        runs: list[Any] = [tasks.stay_on_ray.enqueue("run 0", str(go))]
        runs.append(tasks.stay_on_ray.using(queue_name="urgent").enqueue("run 1", str(go)))
        for n in range(STAYING):
            marked(f"run {n}", there)
        for how in (signal.SIGKILL, signal.SIGTERM):
            here.signal(how)
            has_had_its_chance(there, here)
            assert "to which no living worker speaks" in said("explain", runs[0].id)
            here = start(cluster)
            adopted([runs[0]], here)
        there.signal(signal.SIGKILL)
        has_had_its_chance(here, there)
        there = start(other)
        adopted([runs[1]], there)
        go.touch()
        ended(*runs, limit=SLOW_SECONDS, worker=there)
        assert {(run.state, *outcomes(run)) for run in runs} == {(State.SUCCESSFUL, "SUCCESSFUL")}
        assert Ledgerline.objects.filter(label__startswith="run").count() == STAYING
        assert not Attempt.objects.exclude(outcome="SUCCESSFUL").exists()
        assert fsck.check(Ledger()) == []
    finally:
        with contextlib.suppress(Exception):
            other.shutdown()


def test_a_worker_that_is_told_to_stop_leaves_its_runs_to_a_successor(start_on_ray: StartOnRay, go: Path) -> None:
    first = start_on_ray().ready()
    runs = begin(first, go)
    first.signal(signal.SIGTERM)
    # It does not wait for them.
    assert first.wait(15) == 0, first.tell()
    assert Run.objects.filter(state="RUNNING").count() == len(runs)
    second = start_on_ray()
    adopted(runs, second)
    go.touch()
    ended(*runs, limit=SLOW_SECONDS, worker=second)
    assert_none_was_started_twice(runs)


def test_a_new_release_settles_what_the_old_one_began_and_the_old_foreman_is_left_alone(
    start_on_ray: StartOnRay, go: Path
) -> None:
    first = start_on_ray(ray=unique_version()).ready()
    runs = begin(first, go)
    first.signal(signal.SIGTERM)
    assert first.wait(15) == 0, first.tell()
    second = start_on_ray(ray=unique_version())
    more = tasks.add.enqueue(1, 2)
    adopted(runs, second)
    go.touch()
    ended(*runs, more, limit=SLOW_SECONDS, worker=second)
    assert_none_was_started_twice(runs)
    [row] = Worker.objects.filter(pid=second.pid)
    # Whoever finds this worker lost would have asked both.
    assert row.foremen.count("manta:default:test-") == 2


def test_what_never_reached_ray_is_given_back(start_on_ray: StartOnRay) -> None:
    """A worker that claimed and died before it could submit: its runs are not on Ray, and never will be."""
    worker = start_on_ray().ready()
    wait_for(lambda: Worker.objects.exclude(foremen="[]").exists(), SLOW_SECONDS, worker.tell)
    row = Worker.objects.get(pid=worker.pid)
    worker.signal(signal.SIGSTOP)
    run = tasks.add.enqueue(1, 2)
    claimed_by(row.pk, run)
    worker.signal(signal.SIGKILL)
    second = start_on_ray()
    ended(run, limit=SLOW_SECONDS, worker=second)
    assert [attempt.outcome for attempt in run.history] == ["RETURNED", "SUCCESSFUL"]
    assert run.attempts == 1


def test_a_foreman_refuses_what_a_fenced_worker_sends(cluster: Any, start_on_ray: StartOnRay, go: Path) -> None:
    import ray

    version = unique_version()
    worker = start_on_ray(ray=version).ready()
    run = tasks.stay_on_ray.enqueue("run", str(go))
    marked("run", worker)
    [row] = Worker.objects.filter(pid=worker.pid)
    claim = Ledger().fetch([Run.objects.get(pk=run.id).pk])[0]
    worker.signal(signal.SIGSTOP)
    second = start_on_ray(ray=version)
    wait_for(lambda: Run.objects.exclude(worker=row.pk).filter(pk=run.id).exists(), SLOW_SECONDS, second.tell)
    ray.init(address=cluster.address, namespace="tests", log_to_driver=False, ignore_reinit_error=True)
    try:
        [[name, incarnation]] = json.loads(row.foremen)
        foreman = ray.get_actor(name, "manta")
        assert claim.token is not None
        # What the one that sleeps may have said before it fell asleep: an execution that nobody knows, and the rest.
        submission = {
            "incarnation": incarnation,
            "environment": {"settings": "tests.settings", "path": []},
            "kinds": [{"options": {"num_cpus": 0.05}, "alone": True}],
            "fields": messages.FIELDS,
            "orders": [[0, None, claim.id.hex, claim.token + 1_000, claim.task]],
        }
        late = [messages.say("submit", "[]", worker=row.pk, **submission)]
        keys = [messages.key_of(claim.id.hex, claim.token)]
        late += [messages.say("cancel", worker=row.pk, keys=keys, doom=["CANCELLED", ""])]
        late += [messages.say(verb, worker=row.pk, keys=keys) for verb in ("adopt", "settled")]
        for message in late:
            assert messages.hear(ray.get(foreman.speak.remote(message)))["refused"] == "fenced"
        unknown = messages.dump({"protocol": 99, "verb": "submit"})
        assert "protocol 99" in messages.hear(ray.get(foreman.speak.remote(unknown)))["refused"]
    finally:
        ray.shutdown()
    go.touch()
    ended(run, limit=SLOW_SECONDS, worker=second)
    # The one that was asleep wakes, finds its lease lost, and goes on under another name.
    worker.signal(signal.SIGCONT)
    again = [tasks.add.enqueue(n, 1) for n in range(20)]
    ended(*again, limit=SLOW_SECONDS, worker=worker)
    wait_for(lambda: Worker.objects.filter(pid=worker.pid, lost_at=None).exists(), 30, worker.tell)
    assert (run.state, outcomes(run)) == (State.SUCCESSFUL, ["SUCCESSFUL"])
    assert Ledgerline.objects.filter(label="run").count() == 1
    assert fsck.check(Ledger()) == []


def test_an_outcome_in_the_hands_of_a_worker_that_has_lost_its_lease_is_not_lost(
    start_on_ray: StartOnRay, go: Path
) -> None:
    worker = start_on_ray(ray=unique_version()).ready()
    runs = begin(worker, go)
    [row] = Worker.objects.filter(pid=worker.pid)
    worker.signal(signal.SIGSTOP)
    go.touch()
    # Its envoy hears how they end, and it does not.
    time.sleep(3)
    row.refresh_from_db()
    assert Ledger().mark_lost(row.pk, row.seen_at)
    worker.signal(signal.SIGCONT)
    # It cannot settle them any more, and must not say that nobody needs them: under another name it does.
    ended(*runs, limit=SLOW_SECONDS, worker=worker)
    assert_none_was_started_twice(runs)
    assert Worker.objects.filter(pid=worker.pid, lost_at=None).exclude(pk=row.pk).exists()


def test_what_a_worker_adopted_from_another_release_survives_its_envoy(start_on_ray: StartOnRay, go: Path) -> None:
    first = start_on_ray(ray=unique_version()).ready()
    runs = begin(first, go)
    first.signal(signal.SIGKILL)
    second = start_on_ray(ray=unique_version())
    adopted(runs, second)
    [envoy] = [child for child in psutil.Process(second.pid).children() if "envoy" in " ".join(child.cmdline())]
    envoy.kill()
    go.touch()
    ended(*runs, limit=SLOW_SECONDS, worker=second)
    assert_none_was_started_twice(runs)
