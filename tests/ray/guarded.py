"""
A cluster in a process of its own, that lets in only who has a token: ``python -m tests.ray.guarded CLIENT_PORT``.

A process has one way to authenticate, from its first word to Ray to its last. So this one has the way that its
environment says, and tells its address on a line; it ends when its standard input does.
"""

import signal
import sys

from tests.ray.clusters import add_node, be_patient


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from ray.cluster_utils import Cluster

    be_patient()
    cluster = Cluster()
    add_node(cluster, num_cpus=2, include_dashboard=False, ray_client_server_port=int(sys.argv[1]))
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
