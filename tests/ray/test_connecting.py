"""How a worker comes to its Ray: with a token, and through Ray's client server."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from django_manta import State
from tests.app import tasks
from tests.conftest import DATABASE
from tests.ray.clusters import SLOW_SECONDS, free_port
from tests.ray.conftest import PASSED_ON, said
from tests.worker.conftest import Start, ended, outcomes, wait_for

pytestmark = pytest.mark.skipif(DATABASE == "sqlite", reason="needs postgres: one test of Ray on SQLite is enough")


class Guarded(NamedTuple):
    address: str
    client_address: str
    token: dict[str, str]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """A cluster that wants a token, and has a server for clients from elsewhere."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ray.guarded", str(port)],
        env=os.environ | token,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address, "the cluster did not start"
    yield Guarded(address, f"ray://127.0.0.1:{port}", token)
    process.stdin.close()
    process.wait(60)


def given(guarded: Guarded, environment: dict[str, str], address: str) -> dict[str, Any]:
    variables = {name: environment[name] for name in PASSED_ON if name in environment}
    variables["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    return {
        "QUEUE_OPTIONS": {"default": {"runner": "ray"}},
        "RAY": {"ADDRESS": address, "RUNTIME_ENV": "tests"},
        "RUNTIME_ENVS": {"tests": {"env_vars": variables}},
        "LEASE_SECONDS": 2,
    }


def test_a_token_opens_the_door_and_nothing_else_does(
    guarded: Guarded, start_worker: Start, subprocess_environment: dict[str, str]
) -> None:
    options = given(guarded, subprocess_environment, guarded.address)
    run = tasks.add.enqueue(1, 2)
    wrong = guarded.token | {"RAY_AUTH_TOKEN": "0" * 64}
    stranger = start_worker("--runner", "ray", environment=wrong, **options).ready()
    wait_for(lambda: "Ray is away" in stranger.log.read_text(), SLOW_SECONDS, stranger.tell)
    assert "Ray is away" in said("doctor")
    stranger.signal(signal.SIGTERM)
    assert stranger.wait(30) == 0, stranger.tell()
    worker = start_worker("--runner", "ray", environment=guarded.token, **options).ready()
    ended(run, limit=SLOW_SECONDS, worker=worker)
    assert (run.state, outcomes(run)) == (State.SUCCESSFUL, ["SUCCESSFUL"])


def test_a_worker_outside_the_cluster_comes_in_through_its_client_server(
    guarded: Guarded, start_worker: Start, subprocess_environment: dict[str, str]
) -> None:
    options = given(guarded, subprocess_environment, guarded.client_address)
    worker = start_worker("--runner", "ray", environment=guarded.token, **options).ready()
    runs = tasks.add.starmap([(n, 1) for n in range(50)])
    ended(*runs, limit=SLOW_SECONDS, worker=worker)
    assert {(run.state, *outcomes(run)) for run in runs} == {(State.SUCCESSFUL, "SUCCESSFUL")}
