"""A scenario of the storm `ray-field`: its workers, the starts of user code, what it found, and what was promised."""

from collections import Counter
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from chaos import gate, memory, ray_nodes, world
from tests.ray.clusters import foremen

LIMIT_SECONDS = 180.0

#: Long enough that no worker is declared lost because the machine is busy.
LEASE_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Start:
    """User code was started: of which run, in which process, and when."""

    run: str
    pid: int
    at: float


@dataclass(slots=True)
class Promised:
    """Which attempts may end otherwise than well: their outcomes, and for each run how many."""

    outcomes: Set[str] = frozenset()
    runs: Counter[str] = field(default_factory=Counter)
    #: Any run may have such an attempt that ended before user code was started.
    unstarted: bool = False


@dataclass(slots=True)
class Setup:
    """What all scenarios share."""

    nodes: ray_nodes.Nodes
    #: The ways to the database: that of the nodes, and that of the workers.
    nodes_gate: gate.Gate
    workers_gate: gate.Gate
    quick: bool

    def count(self, usual: int, quick: int) -> int:
        return quick if self.quick else usual


class Scenario:
    """What one scenario uses, and what comes of it."""

    def __init__(self, name: str, setup: Setup, begin: Callable[..., world.WorkerProcess]) -> None:
        self.name = name
        self.setup = setup
        self.starts_file = str(world.LOGS / f"{name}.starts")
        self.workers: list[world.WorkerProcess] = []
        self.figures: dict[str, Any] = {}
        self.broken: list[str] = []
        self.promised = Promised()
        self._begin = begin

    # -- workers ---------------------------------------------------------------------------------

    def start_worker(self, queue: str = "default") -> world.WorkerProcess:
        worker = self.begin_worker({"DATABASE_URL": self.setup.workers_gate.url}, queue)
        world.wait_for(lambda: world.ids_of(worker), 60, "a worker has registered")
        return worker

    def begin_worker(self, environment: Mapping[str, str], queue: str = "default") -> world.WorkerProcess:
        # A VERSION of its own: it shares no foreman and no process with another scenario.
        ray = {"ADDRESS": self.setup.nodes.address, "VERSION": self.name}
        options: dict[str, Any] = {"LEASE_SECONDS": LEASE_SECONDS, "QUEUE_OPTIONS": {queue: {"runner": "ray"}}}
        worker = self._begin("--runner", "ray", "--queues", queue, environment=environment, RAY=ray, **options)
        self.workers.append(worker)
        return worker

    @property
    def is_alive(self) -> bool:
        return all(worker.alive for worker in self.workers)

    def driver_of(self, worker: world.WorkerProcess) -> psutil.Process:
        found: list[psutil.Process] = world.wait_for(lambda: memory.drivers(worker.pid), 60, "a worker has a driver")
        return found[0]

    def foreman(self) -> psutil.Process:
        """The youngest."""
        found: list[psutil.Process] = world.wait_for(foremen, 60, "there is a foreman")
        return found[0]

    # -- what is known ---------------------------------------------------------------------------

    def starts(self, suffix: str = "") -> list[Start]:
        """What tasks have written into the file of starts, or into that with this suffix."""
        path = Path(self.starts_file + suffix)
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [Start(run, int(pid), float(at)) for run, pid, at in map(str.split, lines)]

    def expect(self, kept: object, otherwise: str) -> None:
        if not kept:
            self.broken.append(otherwise)

    def wait_until_done(self, count: int) -> None:
        what = f"{count} runs have succeeded"
        world.wait_for(
            lambda: world.successful() >= count or not self.is_alive, LIMIT_SECONDS, what, lambda: str(world.by_state())
        )
        if not self.is_alive:
            raise world.Broken("a worker ended")

    def let_end(self, limit: float = LIMIT_SECONDS, unfinished: Callable[[], int] = world.unfinished) -> None:
        """Wait until every run has ended, or a worker has, or the time is over."""
        with suppress(world.Broken):
            world.wait_for(lambda: not unfinished() or not self.is_alive, limit, "every run has ended")
