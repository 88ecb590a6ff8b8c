"""Enqueues the runs of the demonstration, and executes them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from django.db import transaction
from django.tasks import task_backends
from django_manta import TaskResult
from django_manta.execution.runners import inline
from django_manta.ledger import Claimed, Ledger, Settlement

from montecarlo.tasks import price_option, record_years, time_to_exit, value_at_risk

#: How much one run of each task does: some hundredths of a second.
PATHS, WALKS, YEARS, RESAMPLES = 1_000, 500, 100, 200


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


def enqueue(runs: int) -> Work:
    """Enqueue all but the report: ``runs`` less one, in one transaction, so all of them or none."""
    walks = years = runs // 4
    previews = max(runs // 20, 1)
    prices = runs - 1 - walks - years
    with transaction.atomic():
        return Work(
            prices=price_option.starmap((seed, PATHS) for seed in range(previews, prices)),
            walks=time_to_exit.starmap((seed, WALKS) for seed in range(walks)),
            years=record_years.enqueue_many(((seed,), {"years": YEARS}) for seed in range(years)),
            # Enqueued after the others and executed before them: somebody waits for a first impression.
            previews=price_option.using(priority=50).starmap((seed, PATHS) for seed in range(previews)),
            reports=[],
        )


def enqueue_report(work: Work) -> None:
    """The report reads the rows of ``record_years``, so it is enqueued when they are there."""
    work.reports.append(value_at_risk.enqueue(RESAMPLES))


def most_troubled(work: Work) -> TaskResult:
    """The run that took the most attempts; the atomic ones have more to tell."""
    return max([*work.years, *work], key=lambda result: len(result.history))


def drain(settled: Callable[[Claimed, Settlement], None]) -> None:
    """
    Execute until nothing is left, also what waits for its next attempt. ``settled`` is told of each attempt.

    In a project of yours workers do this, in processes of their own. Here one process is enough.
    """
    ledger: Ledger = task_backends["default"].ledger  # type: ignore[attr-defined]
    while True:
        inline.drain(on_settled=settled)
        due = ledger.next_due()
        if due is None:
            return
        time.sleep(max(due.total_seconds(), 0.001))
