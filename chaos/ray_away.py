"""
A Ray that is not there.

A worker is started before its Ray; when that has come it begins 1,000 runs, in the middle of which the whole cluster is
away for 90 s. The worker lives, keeps its lease, loses nothing, and goes on within five seconds of Ray's return: of
the moment at which a plain driver, started when the cluster is up, has had its first task executed.
"""

import socket
import subprocess
import sys
import time

from chaos import ray_world, tasks, world
from tests.ray.clusters import free_port, new_cluster

RUNS = 1_000
NAP_SECONDS = 0.02
OUTAGE_SECONDS, QUICK_SECONDS = 90.0, 20.0
EARLY_SECONDS = 5.0

_PLAIN = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
ray.get(ray.remote(lambda: 1).remote())
"""

#: After Ray is back the worker has so long to have a foreman and a first run that succeeds.
RESUME_SECONDS = 5.0
LIMIT_SECONDS = 180.0


def storm(weather: world.Weather, report: world.Report) -> None:
    outage = QUICK_SECONDS if weather.quick else OUTAGE_SECONDS
    address, port = socket.gethostbyname(socket.gethostname()), free_port()
    world.empty()
    tasks.mark_start.map([NAP_SECONDS] * RUNS)
    with ray_world.workers(f"{address}:{port}") as start:
        [worker] = world.fresh_workers(lambda: start("1"), 1)
        time.sleep(EARLY_SECONDS)
        report.expect(world.by_state() == {"READY": RUNS}, f"without Ray, runs were claimed: {world.by_state()}")
        ray = new_cluster(port=port)
        try:
            first = _until_one_succeeds()
            world.wait_for(lambda: world.successful() > RUNS // 2, LIMIT_SECONDS, "half of the runs have succeeded")
            ray_world.end(ray)
            time.sleep(outage)
            report.expect(worker.alive, "the worker ended when Ray was away")
            report.expect(len(world.ids_of(worker)) == 1, "the worker lost its lease when Ray was away")
            ray = new_cluster(port=port)
            returned, again = _race(f"{address}:{port}")
            world.drained(LIMIT_SECONDS)
        finally:
            ray_world.end(ray)
        leases = world.number("SELECT count(*) FROM manta_worker WHERE lost_at IS NOT NULL")
    world.judge(report, RUNS)
    extra = world.number("SELECT count(*) - count(DISTINCT run_id) FROM chaos_start")
    report.figures = {"runs": RUNS} | report.figures
    report.figures |= {
        "away": f"{outage:g}s",
        "lost_leases": leases,
        "extra_starts": extra,
        "first_success_after_start": f"{first:.1f}s",
        "plain_task_after_return": f"{returned:.1f}s",
        "first_success_after_return": f"{again:.1f}s",
    }
    report.expect(leases == 0, "a lease was lost")
    late = again - returned
    report.expect(late <= RESUME_SECONDS, f"it resumed {late:.1f} s after Ray was back, more than {RESUME_SECONDS:g} s")


def _race(address: str) -> tuple[float, float]:
    """Seconds until a plain driver has had a task executed, and until another run has succeeded."""
    began, known, returned = time.monotonic(), world.successful(), 0.0
    plain = subprocess.Popen([sys.executable, "-c", _PLAIN, address], stderr=subprocess.DEVNULL)

    def is_over() -> bool:
        nonlocal returned
        if not returned and plain.poll() is not None:
            returned = time.monotonic() - began
        return world.successful() > known

    world.wait_for(is_over, LIMIT_SECONDS, "another run has succeeded")
    again = time.monotonic() - began
    plain.wait(LIMIT_SECONDS)
    return returned or time.monotonic() - began, again


def _until_one_succeeds() -> float:
    """Seconds until a run has succeeded."""
    began = time.monotonic()
    world.wait_for(world.successful, LIMIT_SECONDS, "a run has succeeded")
    return time.monotonic() - began
