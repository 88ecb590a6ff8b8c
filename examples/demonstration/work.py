"""Enqueues the runs of the demonstration, and sees them through: a deploy, a crash, and the end."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.tasks import task_backends
from django_manta import Outcome, TaskResult
from django_manta.ledger import Ledger, house
from django_manta.models import Attempt, Run

from demonstration import starts
from demonstration.workers import Stop, WorkerProcess
from montecarlo.tasks import price_option, record_years, time_to_exit, value_at_risk

#: How much one run of each task does: some hundredths of a second; the report takes longer.
PATHS, WALKS, YEARS, RESAMPLES = 1_000, 500, 100, 150

#: And one run of ``record_years`` does so much that there is time to kill its worker in the middle of it.
MANY_YEARS, THEIR_SEED = 5_000, -1

#: How often the database is asked how far it is, and for how long nothing may end before we give up.
LOOK_SECONDS, PATIENCE_SECONDS = 0.02, 60


@dataclass(frozen=True, slots=True)
class Work:
    """The results of what was enqueued. A result is kept as one keeps a receipt: ``refresh()`` looks again."""

    previews: list[TaskResult]
    prices: list[TaskResult]
    walks: list[TaskResult]
    years: list[TaskResult]
    reports: list[TaskResult]

    def __iter__(self) -> Iterator[TaskResult]:
        for results in (self.previews, self.prices, self.walks, self.years, self.reports):
            yield from results

    def refresh(self) -> None:
        for result in self:
            result.refresh()


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker was killed: when, by the database's clock."""

    worker: WorkerProcess
    at: datetime


@dataclass(frozen=True, slots=True)
class Events:
    """What befell the workers, and the executions that the first two left behind, by their tokens."""

    deploy: Stop
    left_by_deploy: frozenset[int]
    crash: Kill
    left_by_crash: frozenset[int]
    end: Stop


@dataclass(frozen=True, slots=True)
class Watch:
    """Where it is shown how far the work is: ended runs and failed attempts, and a line now and then."""

    update: Callable[[int, int], None]
    say: Callable[[str], None]


# -- enqueueing --------------------------------------------------------------------------------------


def enqueue(runs: int) -> Work:
    """Enqueue ``runs`` less two, in one transaction, so all of them or none. The two follow in their time."""
    walks = years = runs // 4
    previews = max(runs // 20, 1)
    prices = runs - 2 - walks - years
    with transaction.atomic():
        return Work(
            prices=price_option.starmap((seed, PATHS) for seed in range(previews, prices)),
            walks=time_to_exit.starmap((seed, WALKS) for seed in range(walks)),
            years=record_years.enqueue_many(((seed,), {"years": YEARS}) for seed in range(years)),
            # Enqueued after the others and executed before them: somebody waits for a first impression.
            previews=price_option.using(priority=50).starmap((seed, PATHS) for seed in range(previews)),
            reports=[],
        )


def enqueue_many_years(work: Work) -> TaskResult:
    """A long run that writes, ahead of the others."""
    work.years.append(record_years.using(priority=50).enqueue(THEIR_SEED, years=MANY_YEARS))
    return work.years[-1]


def enqueue_report(work: Work) -> None:
    """The report reads the rows of ``record_years``, so it is enqueued when they are there."""
    work.reports.append(value_at_risk.enqueue(RESAMPLES))


# -- seeing it through -------------------------------------------------------------------------------


def see_through(work: Work, start: Callable[[], WorkerProcess], watch: Watch) -> Events:
    """
    Let workers execute it, one after the other as a single server would have them: after a third of the runs the
    first is stopped for a deploy, after two thirds the second is killed while it writes, the third has to cope.
    """
    runs = len(list(work)) + 2

    worker = _start(start, watch)
    _wait(lambda: _ended() >= runs // 3, worker, watch)
    deploy = worker.stop()
    left_by_deploy = _held_by(worker)
    watch.say(f"SIGTERM to {worker}, as in a deploy: it left {deploy.seconds:.2f} s later, exit code {deploy.code}.")

    worker = _start(start, watch)
    _wait(lambda: _ended() >= runs * 2 // 3, worker, watch)
    writing = enqueue_many_years(work)
    _wait(lambda: writing.id in starts.counted(), worker, watch)
    crash = _kill(worker)
    left_by_crash = _held_by(worker)
    watch.say(f"SIGKILL to {worker}, in the middle of a run that writes {MANY_YEARS:,} rows.")

    worker = _start(start, watch)
    _wait(lambda: _ended() == runs - 1, worker, watch)
    enqueue_report(work)
    _wait(lambda: _ended() == runs, worker, watch)
    return Events(deploy, left_by_deploy, crash, left_by_crash, worker.stop())


def _ended() -> int:
    return Run.objects.finished().count()


def _start(start: Callable[[], WorkerProcess], watch: Watch) -> WorkerProcess:
    worker = start()
    watch.say(f"Started {worker}: manage.py manta worker {' '.join(worker.flags)}")
    return worker


def _held_by(worker: WorkerProcess) -> frozenset[int]:
    held = Run.objects.running().filter(worker__startswith=f"demo-{worker.number}-")
    return frozenset(held.exclude(token=None).values_list("token", flat=True))


def _kill(worker: WorkerProcess) -> Kill:
    ledger: Ledger = task_backends["default"].ledger  # type: ignore[attr-defined]
    at = house.clock(ledger)
    worker.kill()
    return Kill(worker, at)


def _wait(condition: Callable[[], bool], worker: WorkerProcess, watch: Watch) -> None:
    """Wait until it is so, and show how far the work is; give up when nothing moves."""
    known, moved = -1, time.monotonic()
    while True:
        over = condition()
        ended = _ended()  # asked after the condition: what is shown last is never behind what it saw
        watch.update(ended, Attempt.objects.filter(outcome=Outcome.FAILED).count())
        if over:
            return
        if ended != known:
            known, moved = ended, time.monotonic()
        if worker.process.poll() is not None:
            sys.exit(f"demo: {worker} left by itself, exit code {worker.process.returncode}. Its log: {worker.log}")
        if time.monotonic() - moved > PATIENCE_SECONDS:
            sys.exit(f"demo: no run has ended for {PATIENCE_SECONDS} s. The workers' log: {worker.log}")
        time.sleep(LOOK_SECONDS)


# -- looking back ------------------------------------------------------------------------------------


def most_troubled(work: Work) -> TaskResult:
    """The run that took the most attempts; those that lost a worker, and the atomic ones, have more to tell."""
    return max([*work.years, *work], key=_trouble)


def _trouble(result: TaskResult) -> tuple[int, bool]:
    outcomes = [attempt.outcome for attempt in result.history]
    return len(outcomes), Outcome.LOST in outcomes
