"""
PostgreSQL goes away.

A server of the storm's own is restarted, stopped for twice a lease, crashes, and has its connections cut, each
while workers drain runs: all succeed, no worker process ends, nobody is declared lost by the outage.

When it crashes it forgets what it had not written to the disk: claims, settlements and enqueues are never among that,
but what was told to dependents is. So it crashes while runs wait for runs.
"""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from django.db import connections, transaction

from chaos import tasks, world
from scripts import postgres
from tests.databases import parse

CUT_EVERY_SECONDS = 0.5


class Server:
    """A PostgreSQL that can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"postgresql://postgres@/postgres?host={directory}&port=5432"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = postgres.start(self.directory)
        postgres.wait_until_ready(self.process, self.directory)

    def stop(self, number: int = signal.SIGINT) -> None:
        """As ``pg_ctl stop --mode=fast`` does."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(60)

    def restart(self, number: int = signal.SIGINT) -> None:
        self.stop(number)
        self.start()


@contextmanager
def own_server() -> Iterator[Server]:
    """A server of its own, to which the storm and its workers are turned for as long as the block."""
    database = connections.settings["default"]
    before = {name: database[name] for name in ("HOST", "PORT", "USER", "PASSWORD", "OPTIONS")}
    url = os.environ["DATABASE_URL"]
    with tempfile.TemporaryDirectory(prefix="manta-chaos-postgres-") as name:
        os.environ.setdefault("XDG_RUNTIME_DIR", name)
        server = Server(Path(name))
        server.start()
        try:
            connections["default"].close()
            database.update({key: parse(server.url)[key] for key in before})
            os.environ["DATABASE_URL"] = urlsplit(server.url).geturl()
            with world.scratch():
                yield server
        finally:
            connections["default"].close()
            database.update(before)
            os.environ["DATABASE_URL"] = url
            with suppress(subprocess.TimeoutExpired):
                server.stop(signal.SIGQUIT)


def storm(weather: world.Weather, report: world.Report) -> None:
    runs = 3_000 if weather.quick else 10_000
    away, lease = (10.0, 5) if weather.quick else (60.0, 30)
    cutting = 5.0 if weather.quick else 20.0
    outages: dict[str, tuple[float, Callable[[Server], object]]] = {
        "restarted": (0.004, lambda server: _restart_thrice(server, runs)),
        "stopped": (0.002, lambda server: _stop_for(server, away)),
        "cut": (cutting * 2 * world.SLOTS / runs, lambda server: _cut(cutting)),
        "crashed": (0.004, lambda server: _crash(server, runs, random.Random(weather.seed))),
    }
    figures: dict[str, object] = {}
    lost = findings = exited = declared = 0
    with own_server() as server:
        for name, (nap, outage) in outages.items():
            world.empty()
            if name == "crashed":
                _enqueue_joins(runs, nap)
            else:
                tasks.nap.map([nap] * runs)
            began = time.monotonic()
            with world.workers(LEASE_SECONDS=lease) as start:
                pair = world.fresh_workers(start)
                world.wait_for(lambda: world.successful() > runs / 20, 60, "the workers work")
                figures[name] = outage(server)
                world.drained(300)
                exited += sum(not worker.alive for worker in pair)
                for worker in pair:
                    worker.signal(signal.SIGTERM)
                codes = [worker.wait(60) for worker in pair]
            figures[f"{name}_drain"] = f"{time.monotonic() - began:.0f}s"
            report.expect(codes == [0, 0], f"{name}: the workers left with {codes}")
            outcomes = world.by_outcome()
            report.expect(outcomes.keys() <= {"SUCCESSFUL", "RETURNED"}, f"{name}: attempts ended {outcomes}")
            figures[f"{name}_returned"] = outcomes.get("RETURNED", 0)
            declared += world.lost_workers()
            world.judge(report, runs)
            lost += report.figures["lost"]
            findings += report.figures["fsck"]
    report.figures = {
        "runs": len(outages) * runs,
        "lost": lost,
        "exited": exited,
        "declared_lost": declared,
        **figures,
        "fsck": findings,
    }
    report.expect(exited == 0, f"{exited} worker processes ended by themselves")
    report.expect(declared == 0, f"{declared} workers were declared lost")


def _restart_thrice(server: Server, runs: int) -> str:
    for share in (0.15, 0.4, 0.65):
        world.wait_for(lambda share=share: world.successful() >= share * runs, 120, "the workers go on")
        server.restart()
    return "3x"


#: Runs that each of the joins waits for, and how often the server crashes meanwhile.
PARTS = 4
CRASHES = 8


def _enqueue_joins(runs: int, nap: float) -> None:
    """So many runs, of which every fifth waits for the four before it."""
    for _ in range(runs // (PARTS + 1)):
        with transaction.atomic():
            tasks.nap.using(after=tasks.nap.map([nap] * PARTS)).enqueue(nap)


def _crash(server: Server, runs: int, dice: random.Random) -> str:
    """As ``pg_ctl stop --mode=immediate`` does: nothing is written any more, and the log is played when it starts."""
    for place in range(CRASHES):
        share = (place + dice.uniform(0.3, 1.0)) / (CRASHES + 1)
        world.wait_for(lambda share=share: world.successful() >= share * runs, 120, "the workers go on")
        server.restart(signal.SIGQUIT)
    return f"{CRASHES}x"


def _stop_for(server: Server, seconds: float) -> str:
    server.stop()
    time.sleep(seconds)
    server.start()
    return f"{seconds:g}s"


def _cut(seconds: float) -> str:
    """Cut every client's connection, this one's excepted, twice a second."""
    cuts = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        cuts += world.number(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        time.sleep(CUT_EVERY_SECONDS)
    return f"{cuts}x"
