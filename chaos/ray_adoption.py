"""
Workers leave while their runs are on Ray.

Fifty runs of ten seconds, some of them atomic, are under way when their worker is killed (-9), told to stop, or told to
stop and followed by another release. Whoever comes next settles them from the attempts that are running: user code is
started no second time.
"""

import signal
from collections.abc import Callable

from chaos import ray_world, tasks, world

PLAIN, ATOMIC = 40, 10
RUNS = PLAIN + ATOMIC
NAP_SECONDS = 10.0
LIMIT_SECONDS = 240.0


def storm(weather: world.Weather, report: world.Report) -> None:
    starts, outcomes, effects, lost, findings = [], [], [], 0, 0
    with ray_world.cluster(num_cpus=RUNS) as cluster:
        for leave, successor in ((_kill, "1"), (_stop, "1"), (_stop, "2")):
            world.empty()
            with ray_world.workers(cluster.address) as start:
                _under_way(start("1"), leave)
                start(successor)
                world.drained(LIMIT_SECONDS)
            world.judge(report, RUNS)
            lost += report.figures["lost"]
            findings += report.figures["fsck"]
            starts.append(world.number("SELECT count(*) FROM chaos_start"))
            outcomes.append(world.by_outcome())
            effects.append(world.number("SELECT count(*) FROM chaos_effect"))
    report.figures = {
        "runs": 3 * RUNS,
        "lost": lost,
        "starts(killed/stopped/released)": "/".join(map(str, starts)),
        "attempts": "/".join(str(sum(each.values())) for each in outcomes),
        "LOST": sum(each.get("LOST", 0) for each in outcomes),
        "atomic_effects": "/".join(map(str, effects)),
        "fsck": findings,
    }
    report.expect(starts == [RUNS] * 3, f"user code was started {starts} times, not {RUNS} each")
    report.expect(outcomes == [{"SUCCESSFUL": RUNS}] * 3, f"there are other attempts than one success each: {outcomes}")
    report.expect(effects == [ATOMIC] * 3, f"the atomic ones have left {effects} marks, not {ATOMIC} each")


def _under_way(worker: world.WorkerProcess, leave: Callable[[world.WorkerProcess], None]) -> None:
    """Have all runs started, and the worker leave."""
    # So that there is a process for each, with Django loaded, before it counts.
    tasks.meet.map([RUNS] * RUNS)
    world.drained(LIMIT_SECONDS)
    world.empty_runs()
    tasks.mark_start.map([NAP_SECONDS] * PLAIN)
    tasks.mark_start_and_effect.map([NAP_SECONDS] * ATOMIC)
    world.wait_for(
        lambda: world.number("SELECT count(*) FROM chaos_start") == RUNS, LIMIT_SECONDS, "all runs have started"
    )
    leave(worker)


def _kill(worker: world.WorkerProcess) -> None:
    worker.kill()
    ended = world.successful()
    if ended:
        raise world.Broken(f"{ended} runs had ended before their worker was killed: this machine is too slow")


def _stop(worker: world.WorkerProcess) -> None:
    worker.signal(signal.SIGTERM)
    if worker.wait(30) != 0:
        raise world.Broken("a worker that was told to stop did not leave in good order")
