"""The runner ``ray_job``, on a real cluster with its dashboard. Needs ``ray[default]``."""

import contextlib
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import settings
from django.test import override_settings

from django_manta import State
from django_manta.execution import envelope
from django_manta.execution.runners.ray.dashboard import Dashboard
from django_manta.ledger import Ledger, fsck
from django_manta.models import Attempt, Run, Worker
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.conftest import DATABASE
from tests.ray.clusters import SLOW_SECONDS, free_port, new_cluster_with_dashboard
from tests.ray.conftest import PASSED_ON, claimed_by, has_had_its_chance, marked, said
from tests.worker.conftest import Start, WorkerProcess, ended, outcomes, wait_for

pytestmark = pytest.mark.skipif(
    DATABASE == "sqlite", reason="needs postgres: what SQLite does differently is seen elsewhere"
)

type StartJobs = Callable[..., WorkerProcess]


@pytest.fixture(scope="module")
def dashboard() -> Iterator[Dashboard]:
    # Who ignores SIGINT passes that on to every Ray process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cluster, url = new_cluster_with_dashboard()
    there = Dashboard(url)
    wait_for(lambda: _answers(there), SLOW_SECONDS)
    yield there
    with contextlib.suppress(Exception):
        cluster.shutdown()


def _answers(there: Dashboard) -> bool:
    with contextlib.suppress(Exception):
        return bool(there.session())
    return False


@pytest.fixture
def start_jobs(dashboard: Dashboard, start_worker: Start, subprocess_environment: dict[str, str]) -> StartJobs:
    """Start a worker with the runner ``ray_job``; ``ray`` changes its RAY setting, ``variables`` its jobs'."""

    def start(ray: dict[str, Any] | None = None, **variables: str) -> WorkerProcess:
        passed = {name: subprocess_environment[name] for name in PASSED_ON if name in subprocess_environment}
        given = {
            "QUEUE_OPTIONS": {"default": {"runner": "ray_job"}},
            "RAY": {"DASHBOARD": dashboard.url, "RUNTIME_ENV": "tests"} | (ray or {}),
            "RUNTIME_ENVS": {"tests": {"env_vars": passed | variables}},
            "LEASE_SECONDS": 2,
        }
        return start_worker("--runner", "ray_job", **given)

    return start


def tasks_with(options: dict[str, Any]) -> dict[str, Any]:
    return {"default": {**settings.TASKS["default"], "OPTIONS": options}}


def job_of(run: Any) -> str:
    row = Run.objects.get(pk=run.id)
    token = row.token or Attempt.objects.filter(run_id=run.id).latest("number").token
    return envelope.name_of(row.pk, token)


def lateness_of_heartbeat(worker: WorkerProcess, while_: Callable[[], bool]) -> float:
    """The longest that the lease of a worker was not renewed, by what its row says, until ``while_`` is false."""
    seen: list[Any] = []
    worst = 0.0
    deadline = time.monotonic() + SLOW_SECONDS
    while while_() and time.monotonic() < deadline:
        now = Worker.objects.filter(pid=worker.pid).values_list("seen_at", flat=True).first()
        if now is not None and (not seen or seen[-1] != now):
            seen.append(now)
        time.sleep(0.05)
    for before, after in pairwise(seen):
        worst = max(worst, (after - before).total_seconds())
    return worst


def test_jobs_settle_their_runs_and_keep_their_logs(start_jobs: StartJobs, dashboard: Dashboard) -> None:
    worker = start_jobs().ready()
    good = tasks.add.enqueue(1, 2)
    failing = tasks.fail.enqueue("with its own words")
    retried = tasks.fail_first.enqueue()
    atomic = tasks.write_atomically.enqueue("atomic", 5)
    killer = tasks.exit_with.enqueue(3)
    slow = tasks.swallow_its_timeout.enqueue()
    runs = [good, failing, retried, atomic, killer, slow]
    late = lateness_of_heartbeat(
        worker, lambda: Run.objects.filter(pk__in=[run.id for run in runs]).finished().count() < len(runs)
    )
    ended(*runs, limit=SLOW_SECONDS, worker=worker)
    assert (good.state, good.return_value, outcomes(good)) == (State.SUCCESSFUL, 3, ["SUCCESSFUL"])
    assert good.history[0].log_ref == f"ray-job:{job_of(good)}"
    assert dashboard.look(job_of(good))["status"] == "SUCCEEDED"  # type: ignore[index]
    # As on one machine: the class, the words and the frames of the task.
    [error] = failing.errors
    assert (failing.state, error.exception_class_path) == (State.FAILED, "builtins.ValueError")
    assert "tests/app/tasks.py" in error.traceback
    assert "ValueError: with its own words" in error.traceback
    assert dashboard.look(job_of(failing))["status"] == "FAILED"  # type: ignore[index]
    assert (retried.state, outcomes(retried)) == (State.SUCCESSFUL, ["FAILED", "SUCCESSFUL"])
    assert (atomic.state, Ledgerline.objects.filter(label="atomic").count()) == (State.SUCCESSFUL, 1)
    assert atomic.history[0].log_ref == f"ray-job:{job_of(atomic)}"
    # Its process is gone, and its last words are in the log.
    assert (killer.state, outcomes(killer)) == (State.QUARANTINED, ["CRASHED"] * 3)
    assert killer.history[0].output == "last words"
    assert killer.history[0].log_ref.startswith("ray-job:manta-")
    assert (slow.state, outcomes(slow)) == (State.FAILED, ["TIMED_OUT"])
    assert fsck.check(Ledger()) == []
    with override_settings(TASKS=tasks_with({"RAY": {"DASHBOARD": dashboard.url}})):
        assert "\nlast words\n" in said("logs", str(killer.id))
        assert "manta: " not in said("logs", str(killer.id))
    # Without Ray, what was stored of it.
    assert said("logs", str(killer.id), "--attempt", "1") == "last words\n"
    # A beat is due every LEASE_SECONDS / 3.
    print(f"the heart was at most {late:.2f} s apart")
    assert late < 2.0


def test_a_job_that_cannot_reach_the_database_is_settled_by_the_worker(start_jobs: StartJobs) -> None:
    nowhere = f"postgresql://postgres@127.0.0.1:{free_port()}/nowhere"
    worker = start_jobs(DATABASE_URL=nowhere).ready()
    good, failing = tasks.add.enqueue(1, 2), tasks.fail.enqueue("far away")
    # Random bytes as text: they are not made much smaller.
    large, too_large = tasks.random_text.enqueue(2_500_000), tasks.random_text.enqueue(6_000_000)
    ended(good, failing, large, too_large, limit=SLOW_SECONDS, worker=worker)
    assert (good.state, good.return_value) == (State.SUCCESSFUL, 3)
    assert (failing.state, outcomes(failing)) == (State.FAILED, ["FAILED"])
    assert "ValueError: far away" in failing.errors[0].traceback
    # The end of what it printed, too: here the log's own words about the database are not part of it.
    assert failing.history[0].log_ref.startswith("ray-job:")
    assert (large.state, len(large.return_value)) == (State.SUCCESSFUL, 2 * 2_500_000)
    assert (too_large.state, outcomes(too_large)) == (State.FAILED, ["FAILED"])
    assert "through its log at most 4 MiB are sent. Let the job reach the database" in too_large.reason


def test_a_job_is_cancelled_when_nothing_of_it_runs_any_more(start_jobs: StartJobs, dashboard: Dashboard) -> None:
    worker = start_jobs().ready()
    asleep = tasks.stay.enqueue("asleep", "asleep")
    deaf = tasks.stay.enqueue("deaf", "stubborn")
    marked("asleep", worker)
    marked("deaf", worker)
    never = tasks.stay.using(ray={"num_cpus": 1000}).enqueue("never", "asleep")
    wait_for(lambda: Run.objects.filter(pk=never.id, state="RUNNING").exists(), SLOW_SECONDS, worker.tell)
    for run in (asleep, deaf, never):
        run.cancel()
    ended(asleep, deaf, never, limit=SLOW_SECONDS, worker=worker)
    assert {run.state for run in (asleep, deaf, never)} == {State.CANCELLED}
    assert (outcomes(asleep), outcomes(deaf), outcomes(never)) == (["CANCELLED"], ["CANCELLED"], [])
    for run in (asleep, deaf):
        assert dashboard.look(job_of(run))["status"] == "STOPPED"  # type: ignore[index]
    assert not Ledgerline.objects.filter(label="never").exists()
    assert fsck.check(Ledger()) == []


def entry_process(job: str) -> psutil.Process:
    """The process of a job, which Ray has started on this machine."""
    [found] = [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"{envelope.LOG_REF}{job}" in (process.info["cmdline"] or ())
    ]
    return found


def test_a_job_whose_process_is_told_to_end_is_interrupted_and_executed_again(
    start_jobs: StartJobs, tmp_path: Path
) -> None:
    worker = start_jobs().ready()
    go = tmp_path / "go"
    again = tasks.stay_on_ray.enqueue("again", str(go))
    once = tasks.stay_on_ray.using(max_losses=0).enqueue("once", str(go))
    for label in ("again", "once"):
        marked(label, worker)
    for run in (again, once):
        entry_process(job_of(run)).send_signal(signal.SIGTERM)
    wait_for(lambda: Attempt.objects.filter(outcome="INTERRUPTED").count() == 2, SLOW_SECONDS, worker.tell)
    go.touch()
    ended(again, once, limit=SLOW_SECONDS, worker=worker)
    assert (again.state, outcomes(again)) == (State.SUCCESSFUL, ["INTERRUPTED", "SUCCESSFUL"])
    assert (once.state, outcomes(once)) == (State.LOST, ["INTERRUPTED"])
    assert not Run.objects.exclude(failures=0, crashes=0, losses=0).exists()
    assert fsck.check(Ledger()) == []


def test_a_job_that_a_person_stops_on_ray_is_cancelled(
    start_jobs: StartJobs, dashboard: Dashboard, tmp_path: Path
) -> None:
    worker = start_jobs().ready()
    run = tasks.stay_on_ray.enqueue("stopped", str(tmp_path / "go"))
    marked("stopped", worker)
    dashboard.stop(job_of(run))
    ended(run, limit=SLOW_SECONDS, worker=worker)
    assert (run.state, outcomes(run), run.reason) == (State.CANCELLED, ["CANCELLED"], "Its Ray job was stopped.")


def test_a_job_that_outlives_its_worker_is_settled_by_the_next(start_jobs: StartJobs, tmp_path: Path) -> None:
    first = start_jobs().ready()
    staying = tasks.stay_on_ray.enqueue("stays", str(tmp_path / "go"))
    marked("stays", first)
    first.signal(signal.SIGKILL)
    second = start_jobs()
    wait_for(
        lambda: Worker.objects.filter(
            pid=second.pid, pk__in=Run.objects.filter(pk=staying.id).values("worker")
        ).exists(),
        SLOW_SECONDS,
        second.tell,
    )
    (tmp_path / "go").touch()
    ended(staying, limit=SLOW_SECONDS, worker=second)
    assert (staying.state, outcomes(staying), staying.attempts) == (State.SUCCESSFUL, ["SUCCESSFUL"], 1)
    assert Ledgerline.objects.filter(label="stays").count() == 1
    assert fsck.check(Ledger()) == []


def test_a_job_that_ended_while_no_worker_was_there_is_settled_from_its_log(
    start_jobs: StartJobs, tmp_path: Path
) -> None:
    nowhere = f"postgresql://postgres@127.0.0.1:{free_port()}/nowhere"
    first = start_jobs(DATABASE_URL=nowhere).ready()
    run = tasks.stay_beside.enqueue(str(tmp_path / "begun"), str(tmp_path / "go"))
    wait_for((tmp_path / "begun").exists, SLOW_SECONDS, first.tell)
    first.signal(signal.SIGKILL)
    (tmp_path / "go").touch()
    second = start_jobs()
    ended(run, limit=SLOW_SECONDS, worker=second)
    assert (run.state, outcomes(run), run.return_value) == (State.SUCCESSFUL, ["SUCCESSFUL"], "done")


def test_a_job_is_submitted_once_however_often_one_tries(
    start_jobs: StartJobs, dashboard: Dashboard, tmp_path: Path
) -> None:
    worker = start_jobs().ready()
    run = tasks.stay_on_ray.enqueue("once", str(tmp_path / "go"))
    marked("once", worker)
    job = job_of(run)
    found = dashboard.look(job)
    assert found is not None
    again = {name: found[name] for name in ("submission_id", "entrypoint", "runtime_env", "metadata")}
    assert dashboard.submit(again) is False
    # What stands on its command line is the claim, and only under our signature.
    sealed = shlex.split(found["entrypoint"])[-1]
    assert str(envelope.unseal(sealed).claim.id) == run.id
    with pytest.raises(Exception, match="was not written with this project's SECRET_KEY"):
        envelope.unseal(f"{sealed[:-2]}AA")
    (tmp_path / "go").touch()
    ended(run, limit=SLOW_SECONDS, worker=worker)
    assert (outcomes(run), Ledgerline.objects.filter(label="once").count()) == (["SUCCESSFUL"], 1)


def test_a_job_of_one_ray_is_left_alone_by_workers_of_another(
    start_jobs: StartJobs, start_worker: Start, tmp_path: Path
) -> None:
    """The other dashboard knows no such job, and its session is another one: for its workers that job would be lost."""
    cluster, url = new_cluster_with_dashboard()
    try:
        wait_for(lambda: _answers(Dashboard(url)), SLOW_SECONDS)
        queue = {"urgent": {"runner": "ray_job"}}
        there = start_worker("--runner", "ray_job", "--queues", "urgent", QUEUE_OPTIONS=queue, RAY={"DASHBOARD": url})
        here = start_jobs()
        run = tasks.stay_on_ray.enqueue("stays", str(tmp_path / "go"))
        marked("stays", here)
        for how in (signal.SIGKILL, signal.SIGTERM):
            here.signal(how)
            has_had_its_chance(there, here)
            assert "to which no living worker speaks" in said("explain", run.id)
            here = start_jobs()
            is_its_own = Worker.objects.filter(pid=here.pid, pk__in=Run.objects.filter(pk=run.id).values("worker"))
            wait_for(is_its_own.exists, SLOW_SECONDS, here.tell)
        (tmp_path / "go").touch()
        ended(run, limit=SLOW_SECONDS, worker=here)
        assert (run.state, [attempt.outcome.value for attempt in run.history]) == (State.SUCCESSFUL, ["SUCCESSFUL"])
        assert Ledgerline.objects.filter(label="stays").count() == 1
        assert fsck.check(Ledger()) == []
    finally:
        with contextlib.suppress(Exception):
            cluster.shutdown()


def test_what_never_became_a_job_is_given_back_and_cannot_become_one_later(
    start_jobs: StartJobs, dashboard: Dashboard
) -> None:
    first = start_jobs().ready()
    wait_for(lambda: Worker.objects.exclude(foremen="[]").exists(), SLOW_SECONDS, first.tell)
    row = Worker.objects.get(pid=first.pid)
    first.signal(signal.SIGSTOP)
    run = tasks.add.enqueue(1, 2)
    claim = claimed_by(row.pk, run)
    second = start_jobs()
    ended(run, limit=SLOW_SECONDS, worker=second)
    assert [attempt.outcome for attempt in run.history] == ["RETURNED", "SUCCESSFUL"]
    late = {"submission_id": envelope.name_of(claim.pk, claim.token), "entrypoint": "echo too late"}
    assert dashboard.submit(late) is False
    first.signal(signal.SIGKILL)


def test_a_job_that_no_node_can_begin_is_told_and_fails_after_a_while(start_jobs: StartJobs) -> None:
    worker = start_jobs(ray={"PENDING_SECONDS": 20}).ready()
    run = tasks.stay.using(ray={"num_cpus": 1000}).enqueue("never", "asleep")
    wait_for(lambda: Worker.objects.filter(troubles__contains=run.id).exists(), SLOW_SECONDS, worker.tell)
    assert "Ray has not begun its job." in said("explain", run.id)
    ended(run, limit=SLOW_SECONDS, worker=worker)
    assert (run.state, outcomes(run)) == (State.FAILED, ["FAILED"])
    [error] = run.errors
    assert error.exception_class_path == "django_manta.exceptions.NoSuchResources"
    assert "It waited longer than PENDING_SECONDS (20 s)." in error.traceback
    assert not Ledgerline.objects.filter(label="never").exists()


def test_without_a_dashboard_the_worker_lives_and_claims_nothing(start_jobs: StartJobs) -> None:
    run = tasks.add.enqueue(1, 2)
    worker = start_jobs(ray={"DASHBOARD": f"http://127.0.0.1:{free_port()}"}).ready()
    wait_for(lambda: "Ray is away" in worker.log.read_text(), 60, worker.tell)
    wait_for(lambda: "Ray is away: Ray's dashboard does not answer" in said("doctor"), 60, worker.tell)
    assert Run.objects.filter(pk=run.id, state="READY").exists()
    worker.signal(signal.SIGTERM)
    assert worker.wait(15) == 0, worker.tell()
