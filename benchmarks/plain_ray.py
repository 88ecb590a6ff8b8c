"""Plain Ray, to measure against: a process with a Ray of its own that does so many no-ops for each line it reads."""

import os
import sys
import time
from typing import Any

CPUS = 2


def main() -> None:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(address="local", num_cpus=CPUS, include_dashboard=False, log_to_driver=False)

    @ray.remote(max_retries=0)
    def nothing(number: int) -> int:
        return number

    remote: Any = nothing
    ray.get([remote.remote(number) for number in range(2_000)])
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        began = time.perf_counter()
        ray.get([remote.remote(number) for number in range(count)])
        print(time.perf_counter() - began, flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
