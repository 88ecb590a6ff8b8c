"""The verbs as people and probes give them: in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from django_manta import State
from django_manta.models import Run
from tests.app import tasks
from tests.commands.conftest import ROOT, Done
from tests.worker.conftest import WorkerProcess, start_worker, wait_for

__all__ = ["start_worker"]  # a fixture

type Manta = Callable[..., Done]

UNREACHABLE = {
    "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing",
    "MANTA_TEST_FILE": "/nonexistent/nothing.sqlite3",
}


def test_djangos_flags_are_accepted_after_the_verb(run_manta: Manta) -> None:
    result = tasks.add.enqueue(1, 2)
    done = run_manta("list", "--format", "json", "-v", "0", "--settings", "tests.settings", "--no-color")
    assert (done.code, done.err) == (0, "")
    assert [run["id"] for run in done.data] == [result.id]
    assert run_manta("show", result.id, "--traceback").code == 0


def test_errors_are_sentences_and_exit_codes(run_manta: Manta) -> None:
    done = run_manta("show", "12")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("CommandError: '12' is not the id of a run. An id looks like ")
    assert run_manta("cancel").code == 1
    assert run_manta("list", "--state", "nope").code == 1


def test_runs_are_moved_and_committed(run_manta: Manta) -> None:
    tasks.add.starmap([(n, n) for n in range(5)])
    done = run_manta("cancel", "--queue", "default", "--since", "1h")
    assert (done.code, done.out) == (0, "Cancelled 5 runs: 5 CANCELLED.\n")
    assert set(Run.objects.values_list("state", flat=True)) == {State.CANCELLED}


def test_fsck_and_doctor_have_exit_codes(run_manta: Manta) -> None:
    assert run_manta("fsck").code == 0
    assert run_manta("doctor").code == 0
    tasks.add.enqueue(1, 1)
    done = run_manta("doctor", "--format", "json")
    assert (done.code, done.data["ok"]) == (1, False)


def test_a_database_that_is_away_is_told_in_a_sentence(run_manta: Manta) -> None:
    health = run_manta("health", **UNREACHABLE)
    assert (health.code, health.err) == (1, "")
    assert len(health.lines) == 1
    assert health.out.startswith("unhealthy: ")
    listing = run_manta("list", **UNREACHABLE)
    assert listing.code == 1
    assert listing.err.startswith("CommandError: The database refused: ")
    assert "Traceback" not in listing.err
    doctor = run_manta("doctor", **UNREACHABLE)
    assert doctor.code == 1
    assert [line.split()[:2] for line in doctor.lines] == [["ok", "settings"], ["wrong", "database"]]


def test_watching_ends_with_ctrl_c(transactional_db: None, subprocess_environment: dict[str, str]) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "tests.manage", "manta", "info", "--watch", "0.05", "--format", "json"],
        cwd=ROOT,
        env={**subprocess_environment, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert watching.stdout is not None
        pictures = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0
    finally:
        watching.kill()
    assert pictures[0]["now"] < pictures[1]["now"]


def test_a_probe_of_a_real_worker(start_worker: Callable[..., WorkerProcess], run_manta: Manta) -> None:
    worker = start_worker("--name", "probed", "--processes", "1", LEASE_SECONDS=2).ready()
    lease = {"MANTA_TEST_OPTIONS": json.dumps({"LEASE_SECONDS": 2})}
    assert run_manta("health", "--worker", "probed", **lease).code == 0
    assert run_manta("health", "--worker", str(worker.pid), **lease).code == 0
    # An idle worker runs nothing, and a doctor finds nothing.
    assert run_manta("doctor", **lease).code == 0
    [seen] = run_manta("info", "--format", "json", **lease).data["workers"]
    assert (seen["name"], seen["pid"], seen["alive"], seen["running"]) == ("probed", worker.pid, True, 0)
    os.killpg(worker.pid, signal.SIGSTOP)
    try:
        limit = time.monotonic() + 20
        wait_for(lambda: run_manta("health", "--worker", "probed", **lease).code == 1, limit - time.monotonic())
    finally:
        os.killpg(worker.pid, signal.SIGCONT)


@pytest.mark.parametrize("verb", ["info", "cancel"])
def test_every_verb_has_help(run_manta: Manta, verb: str) -> None:
    assert "--format" in run_manta(verb, "--help").out
