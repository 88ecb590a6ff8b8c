"""
The mathematics: simulations, and the true values that theory knows. No Django and no tasks in here.

A share costs 100 today, grows by 5 % a year on average and varies by 20 % (geometric Brownian motion).

    What is an option on its average price worth?     the mean of many discounted payoffs
    How long does a price stay in its corridor?       the mean time in which a random walk leaves it
    What may a year cost its owner?                   the loss that only one year in twenty exceeds

The same seed gives the same numbers on every machine, so that a repeated attempt repeats them, too.
"""

import math
from collections.abc import Iterator, Sequence
from random import Random
from statistics import NormalDist

PRICE, GROWTH, VOLATILITY = 100.0, 0.05, 0.20

#: The option pays what the geometric mean of twelve month-end prices exceeds the strike by.
MONTHS, STRIKE = 12, 100.0

#: The walk goes one step up or down until it is this far from where it began.
CORRIDOR = 12

#: One year in twenty loses more than the value at risk.
RISK = 0.05

NORMAL = NormalDist()


def payoffs(seed: int, paths: int) -> Iterator[float]:
    """Discounted payoffs of the option, one for each simulated path of the share's price."""
    gauss = Random(f"payoffs {seed}").gauss
    drift = (GROWTH - VOLATILITY**2 / 2) / MONTHS
    spread = VOLATILITY / math.sqrt(MONTHS)
    for _ in range(paths):
        log_price, sum_of_logs = math.log(PRICE), 0.0
        for _ in range(MONTHS):
            log_price += drift + spread * gauss()
            sum_of_logs += log_price
        yield math.exp(-GROWTH) * max(math.exp(sum_of_logs / MONTHS) - STRIKE, 0.0)


def true_option_value() -> float:
    """The geometric mean is lognormal like the price itself, hence a formula (Kemna and Vorst, 1990)."""
    mean = math.log(PRICE) + (GROWTH - VOLATILITY**2 / 2) * (MONTHS + 1) / (2 * MONTHS)
    deviation = VOLATILITY * math.sqrt((MONTHS + 1) * (2 * MONTHS + 1) / 6) / MONTHS
    distance = (mean - math.log(STRIKE)) / deviation
    expected = math.exp(mean + deviation**2 / 2) * NORMAL.cdf(distance + deviation)
    return math.exp(-GROWTH) * (expected - STRIKE * NORMAL.cdf(distance))


def exit_times(seed: int, walks: int) -> Iterator[int]:
    """Steps that random walks took to leave the corridor."""
    random = Random(f"walks {seed}").random
    for _ in range(walks):
        place = steps = 0
        while -CORRIDOR < place < CORRIDOR:
            place += 1 if random() < 0.5 else -1
            steps += 1
        yield steps


def true_exit_time() -> float:
    return float(CORRIDOR**2)


def profits(seed: int, years: int) -> Iterator[float]:
    """What the share gained or lost in simulated years."""
    gauss = Random(f"years {seed}").gauss
    for _ in range(years):
        yield PRICE * math.exp(GROWTH - VOLATILITY**2 / 2 + VOLATILITY * gauss()) - PRICE


def profit_density(profit: float) -> float:
    """How likely a year with this profit is."""
    price = PRICE + profit
    distance = (math.log(price / PRICE) - GROWTH + VOLATILITY**2 / 2) / VOLATILITY
    return NORMAL.pdf(distance) / (VOLATILITY * price)


def loss_exceeded_rarely(sample: Sequence[float]) -> float:
    """The value at risk of observed profits: the loss that a share of RISK of them exceeds."""
    return -sorted(sample)[int(RISK * len(sample))]


def true_value_at_risk() -> float:
    return PRICE - PRICE * math.exp(GROWTH - VOLATILITY**2 / 2 + VOLATILITY * NORMAL.inv_cdf(RISK))
