"""Adds up what the runs returned: three answers, each with the value that theory knows."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from django_manta import TaskResult

from demonstration.work import Work
from montecarlo import simulation
from montecarlo.models import SimulatedYear
from montecarlo.tasks import ValueAtRisk


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, its standard error, and how many samples it is the mean of."""

    mean: float
    error: float
    samples: int

    @property
    def margin(self) -> float:
        """The true value is within this distance with 95 % probability."""
        return 1.96 * self.error


@dataclass(frozen=True, slots=True)
class Mean:
    """A question whose answer is a mean: the estimate after the first run, after the first two, and so on."""

    estimates: list[Estimate]
    true_value: float

    @property
    def last(self) -> Estimate:
        return self.estimates[-1]

    @property
    def distance(self) -> float:
        """From the true value, in standard errors: above 4 once in 16,000 times."""
        return abs(self.last.mean - self.true_value) / self.last.error


@dataclass(frozen=True, slots=True)
class Answers:
    option_value: Mean
    exit_time: Mean
    risk: ValueAtRisk
    true_risk: float
    #: The rows that the atomic task wrote.
    profits: list[float]


def answers(work: Work) -> Answers:
    """The answers of work whose runs all succeeded."""
    return Answers(
        option_value=Mean(_converge([*work.previews, *work.prices]), simulation.true_option_value()),
        exit_time=Mean(_converge(work.walks), simulation.true_exit_time()),
        risk=work.reports[0].return_value,
        true_risk=simulation.true_value_at_risk(),
        profits=list(SimulatedYear.objects.values_list("profit", flat=True)),
    )


def _converge(results: Iterable[TaskResult]) -> list[Estimate]:
    estimates = []
    samples, total, squares = 0, 0.0, 0.0
    for result in results:
        sums = result.return_value
        samples += sums["samples"]
        total += sums["total"]
        squares += sums["squares"]
        mean = total / samples
        variance = (squares - samples * mean**2) / (samples - 1)
        estimates.append(Estimate(mean, math.sqrt(variance / samples), samples))
    return estimates
