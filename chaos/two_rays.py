"""
Two Rays behind one database, and the workers of both leave while their runs are out.

Each Ray has a queue of its own. Once all runs have begun, the worker of the first Ray is killed (-9) or told to stop
while that of the second looks on for three seconds, then the other way round, then both at once, the second successor
first. Then the runs may end. Each is settled by a worker of the Ray that it is on, and user code is started no second
time. The same with two dashboards, for the runner `ray_job`.
"""

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos import ray_world, tasks, world
from django_manta.execution.runners.ray.dashboard import Dashboard
from tests.ray.clusters import new_cluster_with_dashboard

#: Runs of each Ray: plain ones, and atomic ones.
RUNS = {"ray": (8, 2), "ray_job": (3, 1)}
CPUS = 10
LIMIT_SECONDS = 300.0

#: Whoever looks for what lost workers have left does so once a second.
CHANCE_SECONDS = 3.0


@dataclass
class Side:
    """A Ray, the queue of its runs, and its worker at present."""

    queue: str
    address: str
    dashboard: str
    worker: world.WorkerProcess | None = None

    def options(self, runner: str) -> dict[str, Any]:
        return {
            "LEASE_SECONDS": ray_world.LEASE_SECONDS,
            "QUEUE_OPTIONS": {self.queue: {"runner": runner}},
            "RAY": {"ADDRESS": self.address, "DASHBOARD": self.dashboard},
            "TASK_DEFAULTS": {"ray": {"num_cpus": 0.5}},
        }


def storm(weather: world.Weather, report: world.Report) -> None:
    total = dict.fromkeys(("runs", "lost", "fsck", "leaves", "extra_starts", "LOST", "other_attempts", "by_others"), 0)
    with _two_rays() as sides:
        for runner in RUNS:
            for leave in (_kill, _stop):
                found = _suffer(runner, leave, sides, report)
                total = {name: number + found[name] for name, number in total.items()}
    report.figures = total
    for name in ("extra_starts", "LOST", "other_attempts", "by_others"):
        report.expect(total[name] == 0, f"{name}: {total[name]}")


@contextmanager
def _two_rays() -> Iterator[list[Side]]:
    # Who ignores SIGINT passes that on to every Ray process, where nothing could be cancelled then.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    clusters, sides = [], []
    try:
        for queue in ("default", "io"):
            cluster, url = new_cluster_with_dashboard(CPUS)
            clusters.append(cluster)
            sides.append(Side(queue, cluster.address, url))
        for side in sides:
            world.wait_for(lambda side=side: _answers(side.dashboard), LIMIT_SECONDS, "a dashboard answers")
        yield sides
    finally:
        for cluster in clusters:
            ray_world.end(cluster)


def _answers(url: str) -> bool:
    with suppress(Exception):
        return bool(Dashboard(url).session())
    return False


def _suffer(
    runner: str, leave: Callable[[world.WorkerProcess], None], sides: list[Side], report: world.Report
) -> dict[str, int]:
    plain, atomic = RUNS[runner]
    runs = 2 * (plain + atomic)
    world.empty()
    with world.workers() as begin, tempfile.TemporaryDirectory() as directory:
        go = Path(directory) / "go"

        def start(side: Side) -> None:
            side.worker = begin("--runner", runner, "--queues", side.queue, **side.options(runner))

        for side in sides:
            start(side)
            tasks.stay.using(queue_name=side.queue).map([str(go)] * plain)
            tasks.stay_and_effect.using(queue_name=side.queue).map([str(go)] * atomic)
        begun = "SELECT count(*) FROM chaos_start"
        world.wait_for(lambda: world.number(begun) == runs, LIMIT_SECONDS, "all runs have begun")
        here, there = sides
        for leaving, looking in ((here, there), (there, here)):
            former = _leave(leaving, leave)
            _has_looked(looking, former)
            start(leaving)
            _has_adopted(leaving, plain + atomic)
        formers = [_leave(side, leave) for side in sides]
        start(there)
        _has_adopted(there, plain + atomic)
        _has_looked(there, formers[0])
        start(here)
        _has_adopted(here, plain + atomic)
        go.touch()
        world.drained(LIMIT_SECONDS)
        world.judge(report, runs)
        outcomes = world.by_outcome()
        effects = world.number("SELECT count(*) FROM chaos_effect")
        report.expect(effects == 2 * atomic, f"the atomic ones have left {effects} marks, not {2 * atomic}")
        return {
            "runs": runs,
            "lost": report.figures["lost"],
            "fsck": report.figures["fsck"],
            "leaves": 4,
            "extra_starts": world.number(begun) - runs,
            "LOST": outcomes.get("LOST", 0),
            "other_attempts": sum(outcomes.values()) - outcomes.get("SUCCESSFUL", 0) - outcomes.get("LOST", 0),
            "by_others": _settled_by_others(),
        }


def _leave(side: Side, leave: Callable[[world.WorkerProcess], None]) -> world.WorkerProcess:
    former = side.worker
    assert former is not None
    leave(former)
    return former


def _kill(worker: world.WorkerProcess) -> None:
    worker.kill()


def _stop(worker: world.WorkerProcess) -> None:
    worker.signal(signal.SIGTERM)
    if worker.wait(60) != 0:
        raise world.Broken("a worker that was told to stop did not leave in good order")


def _has_looked(side: Side, former: world.WorkerProcess) -> None:
    """The worker of this side has lived on for a while since the other one was declared lost."""
    assert side.worker is not None
    since = (
        "SELECT count(*) FROM manta_worker AS lost, manta_worker AS living WHERE lost.pid = %s AND living.pid = %s"
        " AND living.lost_at IS NULL AND living.seen_at > lost.lost_at + make_interval(secs => %s)"
    )
    pids = former.pid, side.worker.pid
    world.wait_for(lambda: world.number(since, *pids, CHANCE_SECONDS), LIMIT_SECONDS, "the other worker has looked")


def _has_adopted(side: Side, runs: int) -> None:
    assert side.worker is not None
    held = (
        "SELECT count(*) FROM manta_run AS run JOIN manta_worker AS worker ON worker.id = run.worker"
        " WHERE worker.pid = %s AND worker.lost_at IS NULL AND run.state = 'RUNNING' AND run.queue = %s"
    )
    pid = side.worker.pid
    world.wait_for(lambda: world.number(held, pid, side.queue) == runs, LIMIT_SECONDS, "the successor has all its runs")


def _settled_by_others() -> int:
    """Attempts of one queue that were settled by workers of the other."""
    return world.number(
        "SELECT count(*) FROM manta_attempt AS attempt JOIN manta_run AS run ON run.id = attempt.run_id"
        " LEFT JOIN manta_worker AS worker ON worker.id = attempt.worker"
        " WHERE worker.id IS NULL OR NOT worker.queues @> to_jsonb(run.queue)"
    )
