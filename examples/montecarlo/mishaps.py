"""Failures on purpose, so that there is something to retry. The one file that you should not copy."""

import os

#: Attempts that go wrong before one succeeds, for the seeds that are in for it.
FAILING_ATTEMPTS = int(os.environ.get("MONTECARLO_FAILING_ATTEMPTS", "1"))

_DROPS_EVERY, _STUMBLES_EVERY = 5, 7


def drops(seed: int) -> bool:
    return seed % _DROPS_EVERY == 0


def stumbles(seed: int) -> bool:
    return seed % _STUMBLES_EVERY == 0


def connection_drops(seed: int, attempt: int) -> None:
    if drops(seed) and attempt <= FAILING_ATTEMPTS:
        raise ConnectionError(f"the price feed did not answer (seed {seed})")


def process_stumbles(seed: int, attempt: int) -> None:
    if stumbles(seed) and attempt <= FAILING_ATTEMPTS:
        raise RuntimeError(f"stumbled after the rows were written (seed {seed})")
