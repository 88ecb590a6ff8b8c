"""
The tasks. Each run simulates one seed's share of the work and returns a few numbers.

A task is an ordinary function; what the queue should know about it stands in the decorator.
"""

from collections.abc import Iterable
from random import Random
from typing import TypedDict

from django_manta import TaskContext, exponential, task

from montecarlo import mishaps, simulation
from montecarlo.models import SimulatedYear


class Sums(TypedDict):
    """What is needed of a sample to add it to others: its size, its sum, its sum of squares."""

    samples: int
    total: float
    squares: float


@task
def price_option(seed: int, paths: int) -> Sums:
    """Nothing but work."""
    return _sums(simulation.payoffs(seed, paths))


@task(takes_context=True, max_attempts=3, backoff=exponential(first=0.2), retry_on=[ConnectionError])
def time_to_exit(context: TaskContext, seed: int, walks: int) -> Sums:
    """Needs something that is not always there: tried three times, a little later each time."""
    mishaps.connection_drops(seed, context.attempt)
    return _sums(simulation.exit_times(seed, walks))


@task(queue_name="records", takes_context=True, atomic=True, max_attempts=3, backoff=exponential(first=0.2))
def record_years(context: TaskContext, seed: int, *, years: int) -> int:
    """Writes rows. They commit together with the run's success, or not at all: exactly once."""
    SimulatedYear.objects.bulk_create(
        SimulatedYear(seed=seed, number=number, profit=profit)
        for number, profit in enumerate(simulation.profits(seed, years))
    )
    mishaps.process_stumbles(seed, context.attempt)
    return years


class ValueAtRisk(TypedDict):
    """The estimate, and the ends of an interval that holds the true value with 95 % probability."""

    value: float
    low: float
    high: float


@task(queue_name="records", takes_context=True)
def value_at_risk(context: TaskContext, resamples: int) -> ValueAtRisk:
    """Takes a while, and tells how far it is: the bootstrap, on all years that were recorded."""
    profits = list(SimulatedYear.objects.order_by("seed", "number").values_list("profit", flat=True))
    random = Random("bootstrap")
    losses = sorted(
        simulation.loss_exceeded_rarely(random.choices(profits, k=len(profits)))
        for _ in context.track(range(resamples), message="resamples")
    )
    return {
        "value": simulation.loss_exceeded_rarely(profits),
        "low": losses[int(0.025 * resamples)],
        "high": losses[int(0.975 * resamples)],
    }


def _sums(values: Iterable[float]) -> Sums:
    samples, total, squares = 0, 0.0, 0.0
    for value in values:
        samples += 1
        total += value
        squares += value * value
    return {"samples": samples, "total": total, "squares": squares}
