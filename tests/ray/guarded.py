"""
A Ray of one node that wants a token and has a client server: ``python -m tests.ray.guarded PORT``, until stdin ends.

In a process of its own, because what Ray is told by the environment it reads once, when it is imported.
"""

import sys

from tests.ray import clusters


def main() -> None:
    from ray.cluster_utils import Cluster

    clusters._be_patient()
    cluster = Cluster()
    clusters.add_node(cluster, num_cpus=2, include_dashboard=False, ray_client_server_port=int(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
