"""
Everything at once, for a while.

Mixed work (plain, atomic, tried again, workflows, cancelled, scheduled, expiring) while dice decide what happens
next to whom: kill -9, SIGSTOP for a moment or past the lease, SIGTERM with a successor, connections cut, the leader
stopped. The dice are thrown before it begins: the same seed has the same plan, which is printed. Of every run it is
known how it may end, and a witness (witness.py) has seen every move.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from textwrap import fill
from typing import Any
from uuid import UUID

from django.tasks import default_task_backend

from chaos import tasks, witness, world
from django_manta import value_of, workflow
from django_manta.ringing import CANCEL, ring_after_commit

SOAK_SECONDS = 900.0
WORKERS = 3
LEASE_SECONDS = 2
STOP_TIMEOUT_SECONDS = 3
TICK_SECONDS = 0.2

#: No more is enqueued while so many have not ended.
ENOUGH = 2_000

#: Between two faults so many seconds of ordinary work.
CALM_SECONDS = (0.5, 3.0)

#: How long a worker is stopped, by the fault.
STOPPED_SECONDS = {
    "pause": (0.1, LEASE_SECONDS / 2),
    "stop": (LEASE_SECONDS + 1.0, LEASE_SECONDS * 2.0),
    "change_leader": (LEASE_SECONDS + 2.0, LEASE_SECONDS + 2.0),
}
LIMIT_SECONDS = 120

#: What becomes of a connection, a child or a lease may cost any run an attempt; none shall run out of them.
OPTIONS = {
    "LEASE_SECONDS": LEASE_SECONDS,
    "STOP_TIMEOUT": STOP_TIMEOUT_SECONDS,
    "TASK_DEFAULTS": {"max_attempts": 50, "max_losses": 1_000, "backoff": 0.2},
}

_STARTS = """
SELECT count(*)
FROM manta_run AS run
JOIN (SELECT run_id, count(*) AS starts FROM chaos_start GROUP BY run_id) AS marks ON marks.run_id = run.id
WHERE marks.starts > run.attempts
"""

_EFFECTS = """
SELECT count(*)
FROM manta_run AS run
WHERE
    run.task = 'chaos.tasks.mark_effect'
    AND (SELECT count(*) FROM chaos_effect AS effect WHERE effect.run_id = run.id)
        <> (run.state = 'SUCCESSFUL')::integer
"""


def storm(weather: world.Weather, report: world.Report) -> None:
    plan = draw(weather.lasting(SOAK_SECONDS, 60.0), random.Random(weather.seed + 1))
    print(fill(f"soak: {len(plan)} faults: {', '.join(map(str, plan))}", 118, subsequent_indent=" " * 13), flush=True)
    world.empty()
    work = Work(random.Random(weather.seed))
    with (
        witness.watching(),
        world.workers({"MANTA_CHAOS_PRUNE_SECONDS": "0.5"}, **OPTIONS) as start,
    ):
        faults = Faults(start, work)
        for fault in plan:
            faults.strike(fault)
        work.quiet = True
        world.wait_for(lambda: not world.unfinished(), LIMIT_SECONDS, "every run has ended", _explain)
        faults.leave(report)
        world.judge_ledger(report)
        _judge(report, work, faults, plan)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens after a while of ordinary work, and to whom."""

    calm: float
    name: str
    #: Whose turn it is, and for how long it is stopped, if it is that.
    place: int
    seconds: float
    #: Of the dice for what cannot be known before: which of the connections there are then.
    seed: int

    def __str__(self) -> str:
        return f"{self.calm:.2f} {self.name} {self.place} {self.seconds:.2f} {self.seed}"


def draw(seconds: float, dice: random.Random) -> list[Fault]:
    """All that will happen in so long, as far as it is known how long it takes: everything once, then anything."""
    plan: list[Fault] = []
    first = dice.sample(list(FAULTS), len(FAULTS))
    while sum(fault.calm + fault.seconds for fault in plan) < seconds:
        name = first.pop() if first else dice.choice(list(FAULTS))
        calm, stopped = dice.uniform(*CALM_SECONDS), dice.uniform(*STOPPED_SECONDS.get(name, (0.0, 0.0)))
        plan.append(Fault(calm, name, dice.randrange(WORKERS), stopped, dice.randrange(1_000_000)))
    return plan


def fingerprint(plan: Sequence[Fault]) -> str:
    """The same for the same plan."""
    return sha256("\n".join(map(repr, plan)).encode()).hexdigest()[:8]


def _explain() -> str:
    return str(world.by_state())


def _judge(report: world.Report, work: "Work", faults: "Faults", plan: Sequence[Fault]) -> None:
    crimes = witness.crimes()
    ended = dict(world.look("SELECT id, state FROM manta_run"))
    unexpected = [(str(each), ended.get(each)) for each, fate in work.fates.items() if ended.get(each) not in fate]
    wrong = {
        "lost": witness.lost() + witness.enqueued() - len(ended),
        "unexpected_ends": len(unexpected),
        "wrong_sums": work.wrong_sums(),
        "effects_not_once": world.number(_EFFECTS),
        "starts_beyond_attempts": world.number(_STARTS),
        **crimes,
    }
    report.figures = {
        "runs": witness.enqueued(),
        "attempts": world.number("SELECT count(*) FROM manta_attempt"),
        "plan": fingerprint(plan),
        **{name: faults.struck[name] for name in FAULTS},
        **wrong,
        "ends": ",".join(f"{state.lower()}:{count}" for state, count in world.by_state().items()),
        "fsck": report.figures["fsck"],
    }
    for name, times in wrong.items():
        report.expect(not times, f"{times} {name.replace('_', ' ')}")
    report.expect(not unexpected, f"ended as they may not: {unexpected[:5]}")
    report.expect(faults.struck.total() == len(plan), f"of {len(plan)} faults there were {faults.struck.total()}")


class Work:
    """What is enqueued, and how each of it may end."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.fates: dict[UUID, set[str]] = {}
        self.sums: list[tuple[UUID, int]] = []
        self.quiet = False
        self._next = 0.0

    def tick(self) -> None:
        """A little of everything, if it is time."""
        now = time.monotonic()
        if self.quiet or now < self._next or world.unfinished() > ENOUGH:
            return
        self._next = now + TICK_SECONDS
        self._add(tasks.mark_start.map([0.001] * 10))
        self._add(tasks.mark_effect.map([0.002] * 5))
        self._add(tasks.stumble.map([self._failures() for _ in range(5)]))
        soon = timedelta(seconds=self.dice.uniform(0.1, 5.0))
        self._add(tasks.mark_start.using(run_after=soon).map([0.0] * 5))
        self._add(tasks.mark_start.using(run_after=soon * 20, expires=soon).map([0.0] * 2), "EXPIRED")
        with workflow("soak") if self.dice.random() < 0.5 else nullcontext():
            self._compute()
            self._fail()
        self._cancel()

    def _failures(self) -> int:
        """How often one fails that fails each time with a chance of three in ten."""
        failures = 0
        while self.dice.random() < 0.3:
            failures += 1
        return failures

    def _compute(self) -> None:
        """A workflow whose answer is known."""
        numbers = [self.dice.randrange(1_000) for _ in range(5)]
        parts = tasks.double.map(numbers)
        total = tasks.total.enqueue(value_of(parts))
        self._add([*parts, total])
        self.sums.append((UUID(total.id), 2 * sum(numbers)))

    def _fail(self) -> None:
        """One that fails for good, and those that wait for it."""
        bad = tasks.stumble.using(max_attempts=1).enqueue(1_000_000)
        self._add([bad], "FAILED")
        self._add([tasks.mark_start.using(after=[bad]).enqueue(0.0)], "UPSTREAM_FAILED")
        self._add([tasks.mark_start.using(after=[bad], when="all_finished").enqueue(0.0)])

    def _cancel(self) -> None:
        """Some that have just been enqueued, and what may have been at any stage of its life."""
        ledger = default_task_backend.ledger  # type: ignore[attr-defined]
        config = default_task_backend.config  # type: ignore[attr-defined]
        mine = [UUID(each.id) for each in tasks.mark_start.map([0.05] * 4)]
        effects = [UUID(each.id) for each in tasks.mark_effect.map([0.02] * 2)]
        for each in (*mine, *effects):
            self.fates[each] = {"SUCCESSFUL", "CANCELLED"}
        if self.dice.random() < 0.5:
            time.sleep(self.dice.uniform(0.0, 0.05))
        ledger.cancel([*mine, *effects])
        ring_after_commit("default", config.cluster, CANCEL)

    def _add(self, results: Iterable[Any], *ends: str) -> None:
        for each in results:
            self.fates[UUID(each.id)] = set(ends or ("SUCCESSFUL",))

    def wrong_sums(self) -> int:
        found = dict(world.look("SELECT id, result FROM manta_run WHERE task = 'chaos.tasks.total'"))
        return sum(found.get(run_id) != str(value) for run_id, value in self.sums)


class Faults:
    """What happens to the workers."""

    def __init__(self, start: Callable[..., world.WorkerProcess], work: Work) -> None:
        self.start = start
        self.work = work
        self.crew = world.fresh_workers(start, WORKERS)
        self.leaving: list[world.WorkerProcess] = []
        self.struck: Counter[str] = Counter()

    def strike(self, fault: Fault) -> None:
        """A while of ordinary work, and then a fault."""
        self._work(fault.calm)
        FAULTS[fault.name](self, fault)
        self.struck[fault.name] += 1

    def kill(self, fault: Fault) -> None:
        self.crew[fault.place].kill()
        self._replace(fault.place)

    def pause(self, fault: Fault) -> None:
        """Shorter than the lease."""
        self._stopped(self.crew[fault.place], fault.seconds)

    def stop(self, fault: Fault) -> None:
        """Longer than the lease."""
        self._stopped(self.crew[fault.place], fault.seconds)

    def change_leader(self, fault: Fault) -> None:
        """Whoever it is then."""
        led = world.look(
            "SELECT worker.pid FROM manta_cluster AS cluster JOIN manta_worker AS worker ON worker.id = cluster.leader"
        )
        pids = {row[0] for row in led}
        leaders = [worker for worker in self.crew if worker.pid in pids] or self.crew[:1]
        self._stopped(leaders[0], fault.seconds)

    def deploy(self, fault: Fault) -> None:
        former = self.crew[fault.place]
        self._listens(former)
        self._replace(fault.place)
        former.signal(signal.SIGTERM)
        self.leaving.append(former)

    def cut(self, fault: Fault) -> None:
        """Half of all connections but our own."""
        found = world.look(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        pids = sorted(row[0] for row in found)
        victims = random.Random(fault.seed).sample(pids, (len(pids) + 1) // 2)
        world.look("SELECT pg_terminate_backend(pid) FROM unnest(%s::integer[]) AS victim (pid)", victims)

    def leave(self, report: world.Report) -> None:
        """The rest leaves as it should; and all that left before have."""
        for worker in self.crew:
            self._listens(worker)
            worker.signal(signal.SIGTERM)
        codes = [worker.wait(STOP_TIMEOUT_SECONDS + 10) for worker in (*self.leaving, *self.crew)]
        report.expect(not any(codes), f"workers that were told to stop left with {sorted(set(codes))}")

    def _listens(self, worker: world.WorkerProcess) -> None:
        """A worker that is still loading Django would end of any signal, as every process does."""
        world.wait_for(lambda: world.ids_of(worker), LIMIT_SECONDS, "a worker has registered")

    def _replace(self, place: int) -> None:
        self.crew[place] = self.start()

    def _stopped(self, worker: world.WorkerProcess, seconds: float) -> None:
        worker.signal_group(signal.SIGSTOP)
        try:
            self._work(seconds)
        finally:
            worker.signal_group(signal.SIGCONT)

    def _work(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.work.tick()
            time.sleep(world.LOOK_SECONDS)


FAULTS: dict[str, Callable[[Faults, Fault], None]] = {
    "kill": Faults.kill,
    "pause": Faults.pause,
    "stop": Faults.stop,
    "deploy": Faults.deploy,
    "cut": Faults.cut,
    "change_leader": Faults.change_leader,
}
