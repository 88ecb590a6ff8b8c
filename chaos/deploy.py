"""
A deploy: the worker is told to stop while its successor starts.

SIGTERM to the worker, SIGTERM to its whole process group (as systemd does), SIGINT to the group (as
Ctrl-C does), each with runs queued and under way: nothing is lost, nobody is charged.
"""

import signal
import time

from chaos import tasks, world

RUNS = 500
NAP_SECONDS = 0.02
STOP_TIMEOUT_SECONDS = 5
MARGIN_SECONDS = 2.0

WAYS = {
    "term": (signal.SIGTERM, False),
    "group": (signal.SIGTERM, True),
    "ctrl-c": (signal.SIGINT, True),
}


def storm(weather: world.Weather, report: world.Report) -> None:
    trials = weather.count(3, 1)
    lost = charged = findings = returned = 0
    slowest: dict[str, float] = dict.fromkeys(WAYS, 0.0)
    for _ in range(trials):
        for way, (number, group) in WAYS.items():
            slowest[way] = max(slowest[way], _deploy(report, way, number, group))
            lost += report.figures["lost"]
            findings += report.figures["fsck"]
            charged += world.charged()
            returned += world.by_outcome().get("RETURNED", 0)
    report.figures = {
        "deploys": trials * len(WAYS),
        "lost": lost,
        "charged": charged,
        "returned": returned,
        **{f"exit_{way}": f"{seconds:.2f}s" for way, seconds in slowest.items()},
        "fsck": findings,
    }
    report.expect(charged == 0, f"{charged} failures, crashes or losses were charged")


def _deploy(report: world.Report, way: str, number: int, group: bool) -> float:
    """One deploy. How long the old worker took to leave."""
    world.empty()
    tasks.nap.map([NAP_SECONDS] * RUNS)
    with world.workers(STOP_TIMEOUT=STOP_TIMEOUT_SECONDS) as start:
        [worker] = world.fresh_workers(start, 1)
        world.wait_for(lambda: world.successful() > 20, 60, "the worker works")
        start("--burst")
        asked = time.monotonic()
        (worker.signal_group if group else worker.signal)(number)
        code = worker.wait(STOP_TIMEOUT_SECONDS + MARGIN_SECONDS)
        took = time.monotonic() - asked
        report.expect(code == 0, f"{way}: the worker left with exit code {code}")
        world.drained(120)
    world.judge(report, RUNS)
    outcomes = world.by_outcome()
    report.expect(outcomes.keys() <= {"SUCCESSFUL", "RETURNED"}, f"{way}: attempts ended {outcomes}")
    return took
