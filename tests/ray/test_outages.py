"""A Ray that is not there, that comes, goes, and comes again: the worker lives, and loses nothing."""

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_manta import State
from django_manta.ledger import Ledger, fsck
from django_manta.models import Run, Worker
from tests.app import tasks
from tests.ray.clusters import SLOW_SECONDS, new_cluster
from tests.ray.conftest import StartOnRay, marked
from tests.worker.conftest import ended, outcomes, states, wait_for

type StartRay = Callable[[int], Any]


@pytest.fixture
def start_ray() -> Iterator[StartRay]:
    """Start a Ray whose head listens at a port; what is left of it ends with the test."""
    started = []

    def start(port: int) -> Any:
        started.append(new_cluster(port=port))
        return started[-1]

    yield start
    for cluster in started:
        with contextlib.suppress(Exception):
            cluster.shutdown()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_without_ray_the_worker_lives_keeps_its_lease_and_claims_nothing(start_on_ray: StartOnRay) -> None:
    run = tasks.add.enqueue(1, 2)
    worker = start_on_ray(ray={"ADDRESS": f"127.0.0.1:{free_port()}"}).ready()
    wait_for(lambda: "Ray is away" in worker.log.read_text(), 60, worker.tell)
    [seen] = Worker.objects.filter(pid=worker.pid).values_list("seen_at", flat=True)
    until = time.monotonic() + 6
    wait_for(lambda: time.monotonic() > until, 10)
    [row] = Worker.objects.filter(pid=worker.pid)
    assert row.lost_at is None
    assert (row.seen_at - seen).total_seconds() > 4
    assert worker.log.read_text().count("Ray is away") == 1
    assert states() == {"READY": 1}
    worker.signal(signal.SIGTERM)
    assert worker.wait(15) == 0, worker.tell()
    run.refresh()
    assert run.attempts == 0


@pytest.mark.slow
def test_a_worker_resumes_when_ray_comes_and_when_its_head_was_lost(
    start_on_ray: StartOnRay, start_ray: StartRay, tmp_path: Path
) -> None:
    port = free_port()
    first = tasks.add.enqueue(1, 2)
    address = socket.gethostbyname(socket.gethostname())
    worker = start_on_ray(ray={"ADDRESS": f"{address}:{port}"}).ready()
    wait_for(lambda: "Ray is away" in worker.log.read_text(), 60, worker.tell)
    ray = start_ray(port)
    ended(first, limit=SLOW_SECONDS, worker=worker)
    runs = [tasks.stay_on_ray.enqueue(f"run {n}", str(tmp_path / "go")) for n in range(3)]
    for n in range(3):
        marked(f"run {n}", worker)
    ray.shutdown()
    (tmp_path / "go").touch()
    until = time.monotonic() + 10
    wait_for(lambda: time.monotonic() > until, 20)
    start_ray(port)
    ended(*runs, limit=2 * SLOW_SECONDS, worker=worker)
    assert {(run.state, *outcomes(run)) for run in runs} <= {
        (State.SUCCESSFUL, "LOST", "SUCCESSFUL"),
        # It was told to go before the cluster was.
        (State.SUCCESSFUL, "SUCCESSFUL"),
        (State.SUCCESSFUL, "CRASHED", "SUCCESSFUL"),
    }
    assert Worker.objects.filter(pid=worker.pid).count() == 1
    assert not Run.objects.exclude(losses=0).exists()
    assert fsck.check(Ledger()) == []
