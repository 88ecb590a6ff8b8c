"""A real Ray: one cluster for all tests of a session, and workers that use it."""

import contextlib
import functools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.app.models import Ledgerline
from tests.worker.conftest import Start, WorkerProcess, start_worker, wait_for

__all__ = ["Start", "WorkerProcess", "start_worker"]

# Before Ray is imported. Nobody but this machine reaches it, and Ray's default may become another one.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray is polite to whatever else a machine does (15). Here it is what the machine does.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")

#: Ray starts processes by the second, and a busy machine by the half minute.
SLOW_SECONDS = 120
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        import ray  # noqa: F401
    except ImportError:
        for item in items:
            if "tests/ray/" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason="ray is not installed"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head with two processors. Tests add the nodes that they kill."""
    # Who ignores SIGINT passes that on to every Ray process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = new_cluster()
    yield started
    with contextlib.suppress(Exception):
        started.shutdown()


def new_cluster(**arguments: Any) -> Any:
    """A head of two processors."""
    from ray.cluster_utils import Cluster

    _be_patient()
    cluster = Cluster()
    add_node(cluster, num_cpus=2, include_dashboard=False, **arguments)
    return cluster


def add_node(cluster: Any, **arguments: Any) -> Any:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    return cluster.add_node(object_store_memory=100 * 2**20, runtime_env_agent_port=port, **arguments)


@functools.cache
def _be_patient() -> None:
    """
    A node has 30 seconds to start, and its agent 15 to tell its ports, neither of which can be configured: a
    machine that many use needs more. Without ``ray[default]`` there are no such ports, which can be told at once.
    """
    from ray._private import services
    from ray._private.node import Node

    get_node, start_raylet = services.get_node, Node.start_raylet

    def get_node_patiently(*args: Any) -> Any:
        deadline = time.monotonic() + SLOW_SECONDS
        while True:
            try:
                return get_node(*args)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def start_raylet_prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"):
            (Path(self.get_session_dir_path()) / f"{name}_{self.node_id}").write_text("-1")
        return start_raylet(self, *args, **kwargs)

    services.get_node = get_node_patiently
    if find_spec("grpc") is None or find_spec("opencensus") is None:
        Node.start_raylet = start_raylet_prepared


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


def foremen() -> list[psutil.Process]:
    """The processes of foremen, youngest first."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:1] == ["ray::Foreman"] or process.name().startswith("ray::Foreman"):
                found.append(process)
    return sorted(found, key=lambda process: process.create_time(), reverse=True)


def unique_version() -> dict[str, str]:
    """A release of its own: a foreman, and processes, that no other test has."""
    return {"VERSION": f"test-{time.monotonic_ns()}"}
