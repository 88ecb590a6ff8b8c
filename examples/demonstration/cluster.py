"""A small Ray cluster on this machine, for workers to give their runs to. It outlives each of them, not the demo."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from demonstration.workers import PROCESSES

#: For the settings of the workers, and of what runs on Ray.
ADDRESS = "DEMO_RAY_ADDRESS"

# Before Ray is imported, here and by all who use it.
QUIET = {
    # What Ray asks on systems where it knows no clusters: without them it listens on 127.0.0.1, and nowhere else.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Nobody but this machine reaches it, and Ray's default may become another one.
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray is polite to whatever else a machine does. Here somebody is waiting.
    "RAY_worker_niceness": "0",
}

OBJECT_STORE_BYTES = 100 * 2**20


@contextmanager
def ray_cluster() -> Iterator[None]:
    """
    One node, without dashboard; its address is in the environment, and what it starts inherits the rest of that. Not
    `'local'`, which is a Ray of one worker's own and ends with it: here a worker is killed, and what it had goes on.
    """
    if find_spec("ray") is None:
        sys.exit("demo: the runner ray needs Ray: pip install 'django-manta[ray]'")
    os.environ.update(QUIET)
    from ray.cluster_utils import Cluster

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Who ignores SIGINT, as what a script starts in the background does, passes that on to every Ray process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cluster = Cluster()
    try:
        cluster.add_node(
            num_cpus=PROCESSES,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
        )
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray has put its own there
        os.environ[ADDRESS] = cluster.address
        yield
    finally:
        with contextlib.suppress(Exception):
            cluster.shutdown()
