"""
A deploy: the worker is told to stop while its successor starts.

SIGTERM to the worker, SIGTERM to its whole process group (as systemd does), SIGINT to the group (as
Ctrl-C does), each with 500 runs under way at once and more behind them, first short enough to end within the
stop timeout, then too long for it: nothing is lost, nobody is charged.
"""

import signal
import time

from chaos import tasks, world

#: So many coroutines under way, and so many plain runs queued or in hand.
UNDER_WAY = 500
QUEUED = 500
PLAIN_SECONDS = 0.02
STOP_TIMEOUT_SECONDS = 5
MARGIN_SECONDS = 2.0

#: How long a coroutine takes, and how the attempts of a deploy may then end.
LENGTHS = {
    "short": (2.0, {"SUCCESSFUL", "RETURNED"}),
    "long": (9.0, {"SUCCESSFUL", "RETURNED", "INTERRUPTED"}),
}

WAYS = {
    "term": (signal.SIGTERM, False),
    "group": (signal.SIGTERM, True),
    "ctrl-c": (signal.SIGINT, True),
}


def storm(weather: world.Weather, report: world.Report) -> None:
    trials = weather.count(2, 1)
    lost = charged = findings = 0
    outcomes: dict[str, int] = {}
    fewest = UNDER_WAY
    slowest: dict[str, float] = dict.fromkeys(WAYS, 0.0)
    for _ in range(trials):
        for way in WAYS:
            for length in LENGTHS:
                took, running = _deploy(report, way, length)
                slowest[way] = max(slowest[way], took)
                fewest = min(fewest, running)
                lost += report.figures["lost"]
                findings += report.figures["fsck"]
                charged += world.charged()
                for outcome, count in world.by_outcome().items():
                    outcomes[outcome] = outcomes.get(outcome, 0) + count
    report.figures = {
        "deploys": trials * len(WAYS) * len(LENGTHS),
        "in_flight": f">={fewest}",
        "runs": trials * len(WAYS) * len(LENGTHS) * (UNDER_WAY + QUEUED),
        "lost": lost,
        "charged": charged,
        "returned": outcomes.get("RETURNED", 0),
        "interrupted": outcomes.get("INTERRUPTED", 0),
        **{f"exit_{way}": f"{seconds:.2f}s" for way, seconds in slowest.items()},
        "fsck": findings,
    }
    report.expect(charged == 0, f"{charged} failures, crashes or losses were charged")
    report.expect(fewest >= UNDER_WAY, f"only {fewest} runs were in flight")


def _deploy(report: world.Report, way: str, length: str) -> tuple[float, int]:
    """One deploy. How long the old worker took to leave, and how many runs it had in flight."""
    number, group = WAYS[way]
    seconds, allowed = LENGTHS[length]
    world.empty()
    tasks.nap_beside_others.using(queue_name="io").map([seconds] * UNDER_WAY)
    tasks.nap.map([PLAIN_SECONDS] * QUEUED)
    with world.workers(STOP_TIMEOUT=STOP_TIMEOUT_SECONDS, ASYNC_SLOTS=UNDER_WAY) as start:
        [worker] = world.fresh_workers(start, 1)
        running = world.wait_for(_all_under_way, 60, "all are under way", lambda: str(world.by_state()))
        start("--burst")
        asked = time.monotonic()
        (worker.signal_group if group else worker.signal)(number)
        code = worker.wait(STOP_TIMEOUT_SECONDS + MARGIN_SECONDS)
        took = time.monotonic() - asked
        report.expect(code == 0, f"{way}, {length}: the worker left with exit code {code}")
        world.drained(120)
    world.judge(report, UNDER_WAY + QUEUED)
    outcomes = world.by_outcome()
    report.expect(outcomes.keys() <= allowed, f"{way}, {length}: attempts ended {outcomes}")
    return took, running


def _all_under_way() -> int:
    running = world.number("SELECT count(*) FROM manta_run WHERE state = 'RUNNING'")
    return running if running >= UNDER_WAY else 0
