"""
What dies on Ray while a worker's runs are there.

Each time there are 1,000 runs on a head and a node, and something of Ray is killed in the middle: nothing, for a start;
processes that execute runs, the node, the foreman, the head, which is then started anew. Every run ends successful;
what was under way where something died has started once more.
"""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import psutil

from chaos import ray_world, tasks, world
from tests.ray.clusters import add_node, foremen, named, new_cluster

RUNS = 1_000
NAP_SECONDS = 0.04
KILLS = 5
LIMIT_SECONDS = 180.0


class Ray:
    """A cluster to mistreat: a head, and a node."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.killed = 0
        self.cluster = new_cluster()
        self.port = int(self.cluster.address.rpartition(":")[2])
        self.node = add_node(self.cluster, num_cpus=2)

    def kill_nothing(self) -> None:
        """So short that they travel by the hundred: none of them is executed twice."""

    def kill_processes(self) -> None:
        for nth in range(KILLS):
            _wait_until_done((nth + 1) * RUNS // (KILLS + 2))
            executing = named("ray::manta:") or named("ray::execute")
            with contextlib.suppress(psutil.Error, IndexError):
                self.dice.choice(executing).kill()
                self.killed += 1

    def kill_node(self) -> None:
        _wait_until_done(RUNS // 3)
        self.cluster.remove_node(self.node, allow_graceful=False)
        self.node = add_node(self.cluster, num_cpus=2)

    def kill_foreman(self) -> None:
        _wait_until_done(RUNS // 3)
        foremen()[0].kill()

    def kill_head(self) -> None:
        _wait_until_done(RUNS // 3)
        ray_world.end(self.cluster)
        self.cluster = new_cluster(port=self.port)
        self.node = add_node(self.cluster, num_cpus=2)


def storm(weather: world.Weather, report: world.Report) -> None:
    ray = Ray(random.Random(weather.seed))
    runs = lost = findings = 0
    told: dict[str, str] = {}
    try:
        with ray_world.workers(ray.cluster.address) as start:
            world.empty()
            worker = start("1")
            for fault in (ray.kill_nothing, ray.kill_processes, ray.kill_node, ray.kill_foreman, ray.kill_head):
                runs += RUNS
                name = fault.__name__.removeprefix("kill_")
                told[name] = _suffer(fault, 0.0 if fault == ray.kill_nothing else NAP_SECONDS)
                world.judge(report, RUNS)
                lost += report.figures["lost"]
                findings += report.figures["fsck"]
                if fault == ray.kill_nothing:
                    report.expect(told[name] == "extra_starts:0,", f"without any fault: {told[name]}")
                if fault == ray.kill_processes:
                    report.expect(ray.killed > 0, "no process was hit")
                    told[name] += f",killed:{ray.killed}"
                report.expect(worker.alive, f"the worker did not live through the death of the {name}")
    finally:
        ray_world.end(ray.cluster)
    report.figures = {"runs": runs, "lost": lost, "fsck": findings, **told}


def _suffer(fault: Callable[[], None], nap: float) -> str:
    """What one fault cost: starts of user code beyond the first, and the attempts that did not succeed."""
    world.empty_runs()
    tasks.mark_start.map([nap] * RUNS)
    fault()
    world.drained(LIMIT_SECONDS)
    extra = world.number("SELECT count(*) - count(DISTINCT run_id) FROM chaos_start")
    others: dict[str, Any] = {name: count for name, count in world.by_outcome().items() if name != "SUCCESSFUL"}
    return f"extra_starts:{extra}," + ",".join(f"{name}:{count}" for name, count in others.items())


def _wait_until_done(count: int) -> None:
    world.wait_for(lambda: world.successful() >= count, LIMIT_SECONDS, f"{count} runs have succeeded")
