"""
Runs on their way through workers and one database, as events on a clock that nobody waits for.

    enqueuer ─▶ database ─▶ the queue ─▶ worker ─▶ children ─▶ worker ─▶ database
                                           │  or: foreman ─▶ slots of Ray nodes ─▶ foreman
                                           └─ one at a time: a claim, a settlement

Every part has processor time to spend (`Cores`) and the habits of the real one: windows, batches, lingering, the
doorbell's debounce, taken from the same modules. What a step costs comes from ``benchmarks.costs``. Not simulated:
locks between statements, the disk, the network's width, vacuum, retries, failures.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measure import percentile

# As in worker/dispatch.py, settling.py, lookout.py and afar.py, ringing.py, runners/processes.py; a test compares them.
WINDOW_SECONDS, WINDOW_RUNS, SLOW_SECONDS, FETCH_SECONDS = 0.03, 1024, 0.05, 0.015
FIRST_RUNS, GROWTH, NAP_RUNS, NAP_SECONDS = 64, 1.5, 16, 0.001
HELPING_RUNS, HELPING_SMALL, HELPING_SECONDS = 1_000, 256, 0.25
HELPING_LEFT, HELPING_LEFT_SECONDS = 20, 0.01
LINGER_SECONDS, BUSY_LINGER_SECONDS, WORTHWHILE, BATCH, MANY, BATCHES = 0.002, 0.02, 100, 1_000, 50, 2
CLAIM_LIMIT, LOOK_SECONDS, DEBOUNCE_SECONDS = 1_000, 1.0, 0.02
RAY_WINDOW_SECONDS, HANDFUL_SECONDS, CHUNK_SECONDS, CHUNK_RUNS = 0.25, 0.15, 0.15, 200
MAX_IN_FLIGHT, AHEAD = 2_000, 100

#: A core goes round among those who want it: nobody waits for another's whole task.
SLICE_SECONDS = 0.001

#: Statements that write nothing: a claim that finds nothing, and what a worker asks after a ring.
READS = ("nothing", "look")

type Then = Callable[[], None]


class Clock:
    """What happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._number = 0

    def after(self, seconds: float, then: Then) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, then))

    def run(self, until: Callable[[], bool]) -> None:
        while self._events and not until():
            self.now, _, then = heapq.heappop(self._events)
            then()


class Cores:
    """Processors that those who have work take turns on, first come, first served."""

    def __init__(self, clock: Clock, count: float, name: str) -> None:
        self.clock = clock
        self.count = count
        self.name = name
        self.used = 0.0
        self._busy = 0
        self._line: deque[tuple[float, Then]] = deque()

    def use(self, seconds: float, then: Then) -> None:
        if self._busy < self.count:
            self._busy += 1
            self._go_on(seconds, then)
        else:
            self._line.append((seconds, then))

    def _go_on(self, seconds: float, then: Then) -> None:
        piece = min(seconds, SLICE_SECONDS)
        self.clock.after(piece, lambda: self._pause(piece, seconds - piece, then))

    def _pause(self, piece: float, left: float, then: Then) -> None:
        self.used += piece
        if left > 1e-12:
            if not self._line:
                self._go_on(left, then)
                return
            self._line.append((left, then))
        if self._line:
            self._go_on(*self._line.popleft())
        else:
            self._busy -= 1
        if left <= 1e-12:
            then()

    def utilisation(self, seconds: float) -> float:
        return self.used / (self.count * seconds) if seconds else 0.0


class Serial:
    """A process with one thread: what it has to do it does one after the other."""

    def __init__(self, cores: Cores) -> None:
        self.cores = cores
        self.used = 0.0
        self._busy = False
        self._line: deque[tuple[float, Then]] = deque()

    def use(self, seconds: float, then: Then) -> None:
        self._line.append((seconds, then))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._line)
        if self._line:
            seconds, then = self._line.popleft()
            self.used += seconds
            self.cores.use(seconds, lambda: self._done(then))

    def _done(self, then: Then) -> None:
        then()
        self._next()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be predicted."""

    workers: int = 1
    #: Of each worker, for the runner `processes`.
    processes: int = 2
    #: Above 0: the runner `ray`, on so many nodes.
    nodes: int = 0
    node_cores: int = 8
    task_seconds: float = 0.0
    #: How much shorter or longer single runs are, as a share: those of equal length end together, and are settled so.
    spread: float = 0.0
    #: Whether the task computes, or waits.
    busy: bool = False
    #: Runs a second that come in; 0: `runs` are there at the beginning.
    rate: float = 0.0
    runs: int = 20_000
    seconds: float = 5.0
    #: Runs of one enqueue, and processes that enqueue, each of which rings for itself.
    batch: int = 1
    enqueuers: int = 1
    database_cores: int = 2
    #: Of the machine of each worker. 0: enough for all that it starts.
    worker_cores: int = 0
    #: Above 0: everything is on one machine with so many, the database and who enqueues too.
    shared_cores: int = 0
    #: Between worker and database, beyond what is measured within one machine.
    network_seconds: float = 0.0
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    settled: int
    throughput: float
    pickup_p50: float
    pickup_p99: float
    #: Processor seconds of the database for each run that was settled.
    database_run: float
    #: Of each part, from 0 to 1, of workers the busiest: of its processors (database, workers, machine), or of its
    #: time, waiting included (a worker's loop, its children, the foreman, the slots on Ray).
    utilisation: dict[str, float]
    #: Runs that were ready and not claimed at the end: if that grows with time, the rate is too high.
    left: int

    @property
    def bottleneck(self) -> str:
        """What is shared first: those who wait for it are busy too."""
        for name in ("machine", "database", "foreman", "slots", "children"):
            if self.utilisation.get(name, 0.0) >= 0.9:
                return name
        return max(self.utilisation, key=lambda name: self.utilisation[name])


@dataclass(slots=True, eq=False)
class Run:
    ready_at: float


class Database:
    """Statements spend processor time there; a commit waits for the disk, which many do at once."""

    def __init__(self, clock: Clock, cores: Cores, costs: Mapping[str, Any], network: float) -> None:
        self.clock = clock
        self.cores = cores
        self.costs = costs["database"]
        self.network = costs["moments"]["round_trip"] + network
        self.wait = costs["moments"]["commit"] + self.network
        self.queue: deque[Run] = deque()
        self.used = 0.0

    def send(self, kind: str, runs: int, then: Then) -> None:
        cost = self.costs[kind]
        seconds = cost["statement"] + runs * cost["run"]
        self.used += seconds
        wait = self.network if kind in READS else self.wait
        self.cores.use(seconds, lambda: self.clock.after(wait, then))


@dataclass(slots=True, eq=False)
class Child:
    """Executes what it holds, one after the other."""

    held: deque[Run] = field(default_factory=deque)
    began: float = 0.0
    #: The run under way is about to end: the next one may be fetched.
    ending: bool = False


_FREE = {"statement": 0.0, "run": 0.0}


class Worker:
    """The control process: claims first, then settles, one statement at a time; many are settled while it goes on."""

    def __init__(self, world: "World", cores: Cores, control: Mapping[str, Any]) -> None:
        self.world = world
        self.clock = world.clock
        self.cores = cores
        self.control = control
        self.executors: Executors = world.executors_of(self)
        self.used = 0.0
        self.outcomes: deque[float] = deque()
        #: Claimed, and not settled.
        self.in_hand = 0
        self.hungry = True
        self.full = False
        self._busy = False
        #: Batches that a thread of its own settles, one after the other.
        self._writing = 0
        self._line: deque[int] = deque()
        self._claimed = False
        self._rung = False
        self._wake_at: float | None = None

    def look(self) -> None:
        """What an idle worker does every second."""
        self.hungry = self.hungry or bool(self.world.database.queue)
        self.clock.after(LOOK_SECONDS, self.look)
        self.step()

    def hear(self) -> None:
        """The doorbell: look now, and once more when its silence is over."""
        self.clock.after(DEBOUNCE_SECONDS, self.look_again)
        self.look_again()

    def look_again(self) -> None:
        self.hungry = self._rung = True
        self.step()

    def ended(self, count: int = 1) -> None:
        self.outcomes.extend([self.clock.now] * count)
        self.step()

    def step(self) -> None:
        if self._busy:
            return
        if self._claimed and self._is_due():
            # After every claim, whatever is due: who is always hungry settles too.
            self._settle()
        elif self.hungry and (room := min(CLAIM_LIMIT, self.executors.room())) > 0:
            self._claim(room)
        elif self._is_due():
            self._settle()
        elif self._rung:
            self._rung = False
            self._do("look", 0, lambda: None)
        elif self.outcomes and not self._writing:
            self._sleep_until(self.outcomes[0] + self._linger())

    def _linger(self) -> float:
        return BUSY_LINGER_SECONDS if self.full else LINGER_SECONDS

    def _is_due(self) -> bool:
        if not self.outcomes:
            return False
        if self._writing:
            return self._writing < BATCHES and len(self.outcomes) >= WORTHWHILE
        waited = self.clock.now - self.outcomes[0]
        return len(self.outcomes) >= WORTHWHILE or waited >= self._linger() - 1e-9 or not self.executors.busy()

    def _sleep_until(self, moment: float) -> None:
        if self._wake_at is None or moment < self._wake_at or self._wake_at <= self.clock.now:
            self._wake_at = moment
            self.clock.after(moment - self.clock.now, self.step)

    def _claim(self, room: int) -> None:
        queue = self.world.database.queue
        taken = [queue.popleft() for _ in range(min(room, len(queue)))]
        self.full = self.hungry = len(taken) == room

        def claimed() -> None:
            self.in_hand += len(taken)
            self.executors.give(taken)

        self._do("claim" if taken else "nothing", len(taken), claimed)

    def _settle(self) -> None:
        count = min(BATCH, len(self.outcomes))
        for _ in range(count):
            self.outcomes.popleft()
        if count >= MANY:
            self._write(count)
        else:
            self._do("settle", count, lambda: self._settled(count))

    def _settled(self, count: int) -> None:
        self.in_hand -= count
        self.executors.settled(count)
        self.world.settle(count)

    def _write(self, count: int) -> None:
        """Many are settled by a thread of their own: the process pays for it, and does not wait for the database."""
        self._busy, self._claimed, self._writing = True, False, self._writing + 1
        cost = self.control.get("settle", _FREE)
        seconds = cost["statement"] + count * cost["run"]

        def done() -> None:
            self._writing -= 1
            self._settled(self._line.popleft())
            if self._line:
                self.world.database.send("settle", self._line[0], done)
            self.step()

        def sent() -> None:
            self.used += seconds
            self._busy = False
            self._line.append(count)
            if len(self._line) == 1:
                self.world.database.send("settle", count, done)
            self.step()

        self.cores.use(seconds, sent)

    def _do(self, kind: str, count: int, then: Then) -> None:
        self._busy, self._claimed = True, kind in ("claim", "nothing")
        # To look is in what a claim costs it: it was measured so.
        cost, began = self.control.get("claim" if kind == "nothing" else kind, _FREE), self.clock.now
        seconds = cost["statement"] + count * cost["run"]

        def done() -> None:
            # Also while it waits for the database: it does nothing else meanwhile.
            self.used += self.clock.now - began
            self._busy = False
            then()
            self.step()

        self.cores.use(seconds, lambda: self.world.database.send(kind, count, done))


class Executors:
    """What a worker gives its runs to."""

    def room(self) -> int:
        raise NotImplementedError

    def settled(self, count: int) -> None:
        """So many of the worker's runs were settled."""

    def give(self, runs: Iterable[Run]) -> None:
        raise NotImplementedError

    def busy(self) -> bool:
        raise NotImplementedError


class Children(Executors):
    """The runner `processes`."""

    def __init__(self, world: "World", worker: Worker, cores: Cores, count: int) -> None:
        self.world = world
        self.worker = worker
        self.cores = cores
        self.children = [Child() for _ in range(count)]
        self.occupied = 0.0
        self.backlog: deque[Run] = deque()
        self.each = world.costs["child_run"]
        self.known = self.each + world.plan.task_seconds
        self.most = FIRST_RUNS
        #: How many of the present backlog were settled, and since when there has been more than the first helping.
        self._settled = 0
        self._limited_since: float | None = None
        self._left_since: float | None = None
        #: How many there was room for when a claim was last thought of.
        self.asked = 0
        #: Ends that the worker has not looked at yet: it naps while there are many to come.
        self._unheard = 0

    @property
    def window(self) -> int:
        return max(1, min(self.most, int(WINDOW_SECONDS / max(self.known, 1e-6))))

    def room(self) -> int:
        room = max(0, sum(self._free(child) for child in self.children) - len(self.backlog))
        self.asked = self._limited(room)
        return self.asked

    def _limited(self, room: int) -> int:
        in_hand, now = self.worker.in_hand, self.world.clock.now
        left = max(0, HELPING_RUNS - self._settled - in_hand)
        if self._settled >= HELPING_RUNS or left >= room or in_hand + room <= HELPING_SMALL:
            return room
        if self._limited_since is None:
            self._limited_since = now
        if self._left_since is None and self._settled >= HELPING_RUNS - HELPING_LEFT:
            self._left_since = now
        return room if now >= self.helped_at() else left

    def helped_at(self) -> float:
        """When the first helping is not waited for any more."""
        limits = (self._limited_since, HELPING_SECONDS), (self._left_since, HELPING_LEFT_SECONDS)
        return min((since + seconds for since, seconds in limits if since is not None), default=0.0)

    def settled(self, count: int) -> None:
        self._settled += count

    def _free(self, child: Child) -> int:
        holds = len(child.held)
        if not holds:
            return self.window
        if child.ending:
            return 1
        return 0 if holds > self.window // 2 or self.known >= SLOW_SECONDS else self.window - holds

    def busy(self) -> bool:
        return any(child.held for child in self.children)

    def give(self, runs: Iterable[Run]) -> None:
        given = list(runs)
        if asked := min(self.asked, CLAIM_LIMIT):
            is_filled = 2 * len(given) >= asked
            self.most = min(WINDOW_RUNS, int(GROWTH * self.most)) if is_filled else FIRST_RUNS
            if not is_filled:
                self._settled, self._limited_since, self._left_since = -self.worker.in_hand, None, None
        self.backlog.extend(given)
        self._dispatch()

    def _dispatch(self) -> None:
        window = self.window
        while self.backlog:
            child = min(self.children, key=lambda child: len(child.held))
            if child.held and (len(child.held) >= window or window == 1):
                return
            child.held.append(self.backlog.popleft())
            if len(child.held) == 1:
                self._start(child)

    def _start(self, child: Child) -> None:
        plan, task = self.world.plan, self.world.duration()
        self.world.start(child.held[0], self.each / 2)
        child.ending, child.began = False, self.world.clock.now
        if plan.task_seconds >= FETCH_SECONDS:
            run = child.held[0]
            self.world.clock.after(plan.task_seconds - FETCH_SECONDS, lambda: self._fetch(child, run))
        if plan.busy:
            self.cores.use(self.each + task, lambda: self._end(child))
        elif task:
            self.cores.use(self.each, lambda: self.world.clock.after(task, lambda: self._end(child)))
        else:
            self.cores.use(self.each, lambda: self._end(child))

    def _fetch(self, child: Child, run: Run) -> None:
        if len(child.held) == 1 and child.held[0] is run:
            child.ending = True
            self.worker.step()

    def _end(self, child: Child) -> None:
        child.held.popleft()
        child.ending = False
        self.occupied += self.world.clock.now - child.began
        if child.held:
            self._start(child)
        self._dispatch()
        self._unheard += 1
        if len(child.held) < NAP_RUNS:
            self._hear()
        elif self._unheard == 1:
            self.world.clock.after(NAP_SECONDS, self._hear)

    def _hear(self) -> None:
        if self._unheard:
            count, self._unheard = self._unheard, 0
            self.worker.ended(count)


class Nodes:
    """Ray: one foreman for all workers, and slots on nodes that execute chunks of runs."""

    def __init__(self, world: "World", cores: Cores, foreman: Cores, slots: int) -> None:
        self.world = world
        self.cores = cores
        self.costs = world.costs["ray"]
        self.foreman = Serial(foreman)
        self.free = slots
        self.slots = slots
        self.occupied = 0.0
        self.waiting: deque[tuple[list[Run], OnRay]] = deque()
        self.each = self.costs["process_run"] + self.costs["rest_run"]
        self.known = self.each + world.plan.task_seconds
        self.chunk = max(1, min(CHUNK_RUNS, int(CHUNK_SECONDS / max(self.known, 1e-6))))
        #: What a pickup on Ray takes that no processor accounts for.
        self.hops = max(0.0, self.costs["pickup"] - sum(self.costs[f"{part}_run"] for part in ("foreman", "process")))

    def submit(self, runs: list[Run], worker: "OnRay") -> None:
        def arrived() -> None:
            for first in range(0, len(runs), self.chunk):
                self.waiting.append((runs[first : first + self.chunk], worker))
            self._launch()

        # On the way to a process, in which the processes are busy with others.
        self.foreman.use(len(runs) * self.costs["foreman_run"] / 2, lambda: self.world.clock.after(self.hops, arrived))

    def _launch(self) -> None:
        while self.free and self.waiting:
            self.free -= 1
            runs, worker = self.waiting.popleft()
            self._next(deque(runs), worker)

    def _next(self, left: deque[Run], worker: "OnRay") -> None:
        if not left:
            self.free += 1
            self._launch()
            return
        self.world.start(left.popleft(), self.each / 2)
        busy, task, began = self.world.plan.busy, self.world.duration(), self.world.clock.now

        def end() -> None:
            self.occupied += self.world.clock.now - began
            self.foreman.use(self.costs["foreman_run"] / 2, worker.ended)
            self._next(left, worker)

        if busy:
            self.cores.use(self.each + task, end)
        else:
            self.cores.use(self.each, lambda: self.world.clock.after(task, end))


class OnRay(Executors):
    """The runner `ray` of one worker: the envoy, and how much is abroad."""

    def __init__(self, world: "World", worker: Worker, cores: Cores) -> None:
        self.worker = worker
        self.nodes = world.nodes
        self.envoy = Serial(cores)
        self.each = self.nodes.costs["envoy_run"] / 2
        self.abroad = 0
        known, slots = max(self.nodes.known, 1e-6), self.nodes.slots
        self.most = min(MAX_IN_FLIGHT, max(slots + AHEAD, int(slots * RAY_WINDOW_SECONDS / known)))
        # What is submitted together is executed together: not for a run or two, where runs are short.
        self.handful = max(1, min(self.most // 4, int(HANDFUL_SECONDS / known)))

    def room(self) -> int:
        free = self.most - self.abroad
        return free if free >= self.handful else 0

    def busy(self) -> bool:
        return self.abroad > 0

    def give(self, runs: Iterable[Run]) -> None:
        taken = list(runs)
        self.abroad += len(taken)
        if taken:
            self.envoy.use(len(taken) * self.each, lambda: self.nodes.submit(taken, self))

    def ended(self) -> None:
        self.envoy.use(self.each, self._heard)

    def _heard(self) -> None:
        self.abroad -= 1
        self.worker.ended()


class World:
    """One plan, from its first run to its last."""

    def __init__(self, plan: Plan, costs: Mapping[str, Any]) -> None:
        self.plan = plan
        self.costs = costs
        self.clock = Clock()
        self.dice = random.Random(plan.seed)
        shared = Cores(self.clock, plan.shared_cores, "machine") if plan.shared_cores else None
        self._shared = shared
        self.pools: list[Cores] = [shared] if shared else []
        self.database = Database(
            self.clock, shared or self._pool(plan.database_cores, "database"), costs, plan.network_seconds
        )
        # Who enqueues is not what is planned: there are enough of them, elsewhere.
        cores = shared or Cores(self.clock, 10**9, "enqueuers")
        self.enqueuers = [Serial(cores) for _ in range(plan.enqueuers)]
        self._last_rings = [-1.0] * plan.enqueuers
        if plan.nodes:
            foreman = shared or self._pool(1, "foreman")
            slots = plan.nodes * plan.node_cores
            self.nodes = Nodes(self, shared or self._pool(slots, "nodes"), foreman, slots)
        self.workers = [self._worker() for _ in range(plan.workers)]
        self.settled: list[tuple[float, int]] = []
        self.done = 0
        self.pickups: list[tuple[float, float]] = []

    def _pool(self, count: int, name: str) -> Cores:
        self.pools.append(Cores(self.clock, count, name))
        return self.pools[-1]

    def _worker(self) -> Worker:
        plan = self.plan
        control: Any = self.costs["worker"]
        if plan.nodes:
            # Measured on Ray as a whole: what it is more than in a drain by children is paid by run.
            drained = self.costs["drain"]["control_cpu_a_run"]
            more = max(0.0, self.costs["ray"]["control_run"] - drained) / 2
            control = {kind: {**cost, "run": cost["run"] + more} for kind, cost in control.items()}
        cores = plan.worker_cores or (2 if plan.nodes else plan.processes + 1)
        return Worker(self, self._shared or self._pool(cores, "workers"), control)

    def executors_of(self, worker: Worker) -> Executors:
        if self.plan.nodes:
            return OnRay(self, worker, worker.cores)
        return Children(self, worker, worker.cores, self.plan.processes)

    # -- what happens ----------------------------------------------------------------------------

    def duration(self) -> float:
        """Of the next run's own code."""
        plan = self.plan
        return plan.task_seconds * (1 + plan.spread * self.dice.uniform(-1, 1) if plan.spread else 1)

    def start(self, run: Run, before_first_line: float) -> None:
        self.pickups.append((run.ready_at, self.clock.now + before_first_line - run.ready_at))

    def settle(self, count: int) -> None:
        self.done += count
        self.settled.append((self.clock.now, count))

    def _arrive(self, enqueuer: int) -> None:
        plan = self.plan
        mean = plan.batch * plan.enqueuers / plan.rate
        self.clock.after(self.dice.expovariate(1 / mean), lambda: self._arrive(enqueuer))
        cost = self.costs["enqueuer"]

        def committed() -> None:
            self.database.queue.extend(Run(self.clock.now) for _ in range(plan.batch))
            if self.clock.now - self._last_rings[enqueuer] >= DEBOUNCE_SECONDS:
                self._last_rings[enqueuer] = self.clock.now
                for worker in self.workers:
                    self.clock.after(self.costs["moments"]["ring"], worker.hear)

        self.enqueuers[enqueuer].use(
            cost["statement"] + plan.batch * cost["run"], lambda: self.database.send("enqueue", plan.batch, committed)
        )

    def predict(self) -> Prediction:
        plan = self.plan
        for number, worker in enumerate(self.workers):
            # Not all at the same moment.
            self.clock.after(number * 1e-4, worker.look)
        if plan.rate:
            for enqueuer in range(plan.enqueuers):
                self.clock.after(0.0, lambda enqueuer=enqueuer: self._arrive(enqueuer))
            begin, end = plan.seconds * 0.2, plan.seconds
            self.clock.run(lambda: self.clock.now >= end)
        else:
            self.database.queue.extend(Run(0.0) for _ in range(plan.runs))
            self.clock.run(lambda: self.done >= plan.runs)
            begin, end = 0.0, self.clock.now
        return self._summary(begin, end)

    def _summary(self, begin: float, end: float) -> Prediction:
        count = sum(count for moment, count in self.settled if begin <= moment <= end)
        waits = [wait for ready, wait in self.pickups if ready >= begin] or [0.0]
        utilisation: dict[str, float] = {}
        for pool in self.pools:
            if pool.name in ("foreman", "nodes"):
                continue  # told below, with what it waits for
            utilisation[pool.name] = max(utilisation.get(pool.name, 0.0), pool.utilisation(end))
        utilisation["a worker's loop"] = max(worker.used for worker in self.workers) / end
        if self.plan.nodes:
            utilisation["foreman"] = self.nodes.foreman.used / end
            utilisation["slots"] = self.nodes.occupied / end / self.nodes.slots
        else:
            each = [worker.executors.occupied for worker in self.workers if isinstance(worker.executors, Children)]
            utilisation["children"] = max(each) / end / self.plan.processes
        return Prediction(
            settled=self.done,
            throughput=count / (end - begin),
            pickup_p50=percentile(waits, 0.5),
            pickup_p99=percentile(waits, 0.99),
            database_run=self.database.used / max(1, self.done),
            utilisation=utilisation,
            left=len(self.database.queue),
        )


def predict(plan: Plan, costs: Mapping[str, Any]) -> Prediction:
    return World(plan, costs).predict()
