"""
Kill -9 under a graph that grows.

The merge sort of ``examples/workflows``: every list is a run that enqueues its halves and a join, and
delegates to the join. Two workers; whenever 200 more executions have ended, one that is at work is killed
and replaced, so that the storm is as hard on a slow machine as on a fast one. The answer must be right, and no
list may have been sorted, nor enqueued, twice.
"""

import random
from collections.abc import Callable

from chaos import world
from examples.workflows.merge_sort import merge_sort

NUMBERS = 2_000
EVERY_EXECUTIONS = 200
LEASE_SECONDS = 2
LIMIT_SECONDS = 900.0


def storm(weather: world.Weather, report: world.Report) -> None:
    trials, count = weather.count(10, 1), NUMBERS // (4 if weather.quick else 1)
    # Each list, down to those of one number, and a join for each that was halved.
    runs = 3 * count - 2
    kills = right = lost = attempts = findings = 0
    for trial in range(trials):
        world.empty()
        dice = random.Random(weather.seed + trial)
        numbers = [dice.randrange(count) for _ in range(count)]
        result = merge_sort.enqueue(numbers)
        with world.workers(LEASE_SECONDS=LEASE_SECONDS) as start:
            kills += _drain(start, dice)
        world.judge(report, runs)
        result.refresh()
        right += result.is_finished and not result.errors and result.return_value == sorted(numbers)
        lost += report.figures["lost"]
        findings += report.figures["fsck"]
        attempts += _executions()
        heralds = world.number("SELECT count(*) FROM manta_herald")
        report.expect(heralds == 0, f"{heralds} runs ended and nobody was told")
    report.figures = {
        "right": f"{right}/{trials}",
        "lost": lost,
        "kills": kills,
        "runs": trials * runs,
        "attempts": attempts,
        "fsck": findings,
    }
    report.expect(right == trials, f"of {trials} answers {right} are right")
    report.expect(kills >= trials, f"only {kills} kills in {trials} trials: it was no storm")


def _drain(start: Callable[..., world.WorkerProcess], dice: random.Random) -> int:
    """Kill a worker now and then until all runs have ended. How many were killed."""
    pair = world.fresh_workers(start)
    kills, next_kill = 0, EVERY_EXECUTIONS

    def done() -> bool:
        nonlocal kills, next_kill
        if not world.unfinished():
            return True
        ended = _executions()
        busy = [place for place, worker in enumerate(pair) if _is_at_work(worker)] if ended >= next_kill else []
        if busy:
            victim = dice.choice(busy)
            pair[victim].kill()
            pair[victim] = start()
            kills, next_kill = kills + 1, ended + EVERY_EXECUTIONS
        return False

    world.wait_for(done, LIMIT_SECONDS, "every run has ended", lambda: str(world.by_state()))
    return kills


def _executions() -> int:
    return world.number("SELECT count(*) FROM manta_attempt WHERE outcome <> 'RETURNED'")


def _is_at_work(worker: world.WorkerProcess) -> bool:
    return bool(
        world.number(
            "SELECT count(*) FROM manta_run WHERE worker = ANY(%s) AND state = 'RUNNING'", world.ids_of(worker)
        )
    )
