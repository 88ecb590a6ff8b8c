"""A real Ray: one cluster for all tests of a session, and workers that use it."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from django_manta.ledger import Ledger
from django_manta.models import Run, Worker
from tests.app.models import Ledgerline
from tests.conftest import DATABASE
from tests.ray.clusters import SLOW_SECONDS, new_cluster
from tests.worker.conftest import Start, WorkerProcess, start_worker, wait_for

__all__ = ["Start", "WorkerProcess", "start_worker"]

#: What the processes on Ray need to find the test's database.
PASSED_ON = (
    "DJANGO_SETTINGS_MODULE",
    "DATABASE_URL",
    "MANTA_TEST_DATABASE",
    "MANTA_TEST_FILE",
    "MANTA_TEST_OTHER",
    "MANTA_TEST_QUEUES",
)

type StartOnRay = Callable[..., WorkerProcess]


# Before xdist looks at the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/ray/" in item.nodeid:
            # One process runs them all, on one cluster (pytest -n 2 --dist loadgroup).
            item.add_marker(pytest.mark.xdist_group("ray"))
            needs_cluster = "cluster" in getattr(item, "fixturenames", ())
            if DATABASE == "sqlite" and needs_cluster and "test_runs.py" not in item.nodeid:
                # Minutes, for the same foreman: what SQLite does differently is seen with any runner.
                item.add_marker(pytest.mark.skip(reason="needs postgres: one test of Ray on SQLite is enough"))
    # The longest first: the other process does the rest meanwhile.
    items.sort(key=lambda item: "tests/ray/" not in item.nodeid)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head with two processors. Tests add the nodes that they kill."""
    # Who ignores SIGINT passes that on to every Ray process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = new_cluster()
    yield started
    with contextlib.suppress(Exception):
        started.shutdown()


@pytest.fixture
def options(cluster: Any, subprocess_environment: dict[str, str]) -> dict[str, Any]:
    """The settings of a worker on that cluster; processes there are kept from test to test."""
    variables = {name: subprocess_environment[name] for name in PASSED_ON if name in subprocess_environment}
    variables["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    return {
        "QUEUE_OPTIONS": {"default": {"runner": "ray"}},
        "RAY": {"ADDRESS": cluster.address, "RUNTIME_ENV": "tests"},
        "RUNTIME_ENVS": {"tests": {"env_vars": variables}},
        "LEASE_SECONDS": 2,
    }


@pytest.fixture
def start_on_ray(start_worker: Start, options: dict[str, Any]) -> StartOnRay:
    """Start a worker with the runner ``ray``; ``ray`` changes its RAY setting."""

    def start(*flags: str, ray: dict[str, Any] | None = None) -> WorkerProcess:
        given = options | {"RAY": options["RAY"] | (ray or {})}
        return start_worker("--runner", "ray", *flags, **given)

    return start


def marked(label: str, worker: WorkerProcess) -> None:
    """Wait until a task has left this mark, which it does when it has started."""
    wait_for(lambda: Ledgerline.objects.filter(label=label).exists(), SLOW_SECONDS, worker.tell)


def has_had_its_chance(bystander: WorkerProcess, gone: WorkerProcess) -> None:
    """
    Wait until ``gone`` is declared lost and ``bystander``, who looks for what lost workers have left once a second,
    has lived on for three seconds since.
    """

    def is_known() -> bool:
        lost = Worker.objects.filter(pid=gone.pid).values_list("lost_at", flat=True).first()
        seen = Worker.objects.filter(pid=bystander.pid, lost_at=None).values_list("seen_at", flat=True).first()
        return lost is not None and seen is not None and (seen - lost).total_seconds() > 3

    wait_for(is_known, SLOW_SECONDS, bystander.tell)


def claimed_by(worker: str, result: Any) -> Run:
    """
    The run, claimed for a worker that was stopped: here, or by a claim that it had sent when it was stopped and that
    the server executed after the enqueue.
    """
    Ledger().claim(worker, ["default"], 1)
    wait_for(lambda: Run.objects.running().filter(pk=result.id, worker=worker).exists(), 10)
    return Run.objects.get(pk=result.id)


def said(*arguments: str) -> str:
    """What a command prints."""
    output = StringIO()
    with contextlib.suppress(SystemExit):
        call_command("manta", *arguments, stdout=output)
    return output.getvalue()


def unique_version() -> dict[str, str]:
    """A release of its own: a foreman, and processes, that no other test has."""
    return {"VERSION": f"test-{time.monotonic_ns()}"}
