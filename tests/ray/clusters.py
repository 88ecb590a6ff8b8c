"""Real Ray clusters on this machine, for the tests and the storms: a head, nodes to kill, and processes to find."""

import contextlib
import functools
import os
import random
import socket
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

# Before Ray is imported. Nobody but this machine reaches it, and Ray's default may become another one.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray is polite to whatever else a machine does (15). Here it is what the machine does.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")

# A dead node is known to be dead after a few seconds, not half a minute.
os.environ.setdefault("RAY_health_check_initial_delay_ms", "1000")
os.environ.setdefault("RAY_health_check_period_ms", "1000")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

#: Ray starts processes by the second, and a busy machine by the half minute.
SLOW_SECONDS = 120

#: ``ray stop`` waits so long for each kind of processes, a third of its grace period, before it kills them.
STOP_SECONDS = 16 / 3


def new_cluster(num_cpus: int = 2, port: int | None = None) -> Any:
    """A head, which nodes may join; at a port that is known beforehand, if somebody waits there."""
    from ray.cluster_utils import Cluster

    be_patient()
    cluster = Cluster()
    at = {} if port is None else {"gcs_server_port": port}
    add_node(cluster, num_cpus=num_cpus, include_dashboard=False, **at)
    return cluster


def new_cluster_with_dashboard(num_cpus: int = 2) -> tuple[Any, str]:
    """A head that takes jobs, which needs ``ray[default]``; and where its dashboard is."""
    from ray.cluster_utils import Cluster

    be_patient()
    cluster = Cluster()
    at = {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": free_port()}
    add_node(cluster, num_cpus=num_cpus, **at)
    return cluster, f"http://{cluster.webui_url}"


def free_port() -> int:
    """
    A free port that nobody is given by chance before its owner takes it: neither by the kernel, for a connection
    (from 32,768 on), nor by Ray, for its workers (up to 19,999).
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("", port))
            return port


def add_node(cluster: Any, **arguments: Any) -> Any:
    # Ports that Ray would choose are the same for every cluster of a machine, and without its port an agent is silent:
    # its node goes down some seconds later.
    ports = {name: free_port() for name in ("runtime_env_agent_port", "dashboard_agent_listen_port")}
    return cluster.add_node(object_store_memory=100 * 2**20, **ports, **arguments)


@functools.cache
def be_patient() -> None:
    """
    A node has 30 seconds to start, and its agent 15 to tell its ports, neither of which can be configured: a
    machine that many use needs more. Without ``ray[default]`` there are no such ports, and without a dashboard nobody
    needs them: that can be told at once.
    """
    from ray._private import services
    from ray._private.node import Node

    has_agents = find_spec("grpc") is not None and find_spec("opencensus") is not None
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
        if has_agents and self._ray_params.include_dashboard:
            return start_raylet(self, *args, **kwargs)
        for name in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"):
            (Path(self.get_session_dir_path()) / f"{name}_{self.node_id}").write_text("-1")
        return start_raylet(self, *args, **kwargs)

    services.get_node = get_node_patiently
    Node.start_raylet = start_raylet_prepared


def stop_node(cluster: Any, node: Any, *, raylet_first: bool) -> None:
    """
    SIGTERM to all processes of a node, and SIGKILL to those that stay: to its raylet first, as ``ray stop`` does, or
    last, as a process manager may that knows nothing of Ray.
    """
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    others = raylet.children(recursive=True)
    for group in ([raylet], others) if raylet_first else (others, [raylet]):
        for process in group:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(group, STOP_SECONDS)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    cluster.remove_node(node, allow_graceful=False)


def foremen() -> list[psutil.Process]:
    """The processes of foremen, youngest first."""
    return named("ray::Foreman")


def named(name: str) -> list[psutil.Process]:
    """Processes of that name on the clusters that this process has started, youngest first; nobody else's."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:1] == [name] or process.name().startswith(name):
                found.append(process)
    return sorted(found, key=lambda process: process.create_time(), reverse=True)
