"""
SIGSTOP past the lease, then SIGCONT, and kills in between.

A worker that wakes up after its lease was marked lost may settle nothing; each atomic run's write is
there exactly once. A child that was stopped between its settlement and its COMMIT holds its run's row
until it is continued: that run waits so long, and commits then.
"""

import contextlib
import random
import signal
import time
from collections.abc import Callable

from chaos import tasks, world

RUNS = 1_000
LEASE_SECONDS = 2
NAP_SECONDS = 0.03

_LATE = """
SELECT count(*)
FROM manta_attempt AS attempt
JOIN manta_worker AS worker ON worker.id = attempt.worker
WHERE attempt.finished_at > worker.lost_at AND attempt.outcome <> 'LOST'
"""

_EFFECTS = """
SELECT count(*)
FROM manta_run AS run
WHERE (SELECT count(*) FROM chaos_effect AS effect WHERE effect.run_id = run.id) <> 1
"""


def storm(weather: world.Weather, report: world.Report) -> None:
    trials = weather.count(5, 1)
    lost = findings = late = wrong = stops = kills = 0
    for trial in range(trials):
        world.empty()
        tasks.mark_effect.map([NAP_SECONDS] * RUNS)
        with world.workers(LEASE_SECONDS=LEASE_SECONDS) as start:
            stopped, killed = _drain(start, random.Random(weather.seed + trial))
        stops += stopped
        kills += killed
        world.judge(report, RUNS)
        lost += report.figures["lost"]
        findings += report.figures["fsck"]
        late += world.number(_LATE)
        wrong += world.number(_EFFECTS)
    report.figures = {
        "trials": trials,
        "runs": trials * RUNS,
        "lost": lost,
        "stops": stops,
        "kills": kills,
        "stale_accepted": late,
        "effects_not_once": wrong,
        "fsck": findings,
    }
    report.expect(late == 0, f"{late} settlements of lost workers were accepted")
    report.expect(wrong == 0, f"{wrong} runs have left their row not exactly once")


def _drain(start: Callable[..., world.WorkerProcess], dice: random.Random) -> tuple[int, int]:
    """Stop and kill until all runs have ended. How often each."""
    pair = world.fresh_workers(start)
    world.wait_for(world.successful, 60, "the first run has succeeded")
    stops = kills = 0
    deadline = time.monotonic() + 180
    while world.unfinished():
        if time.monotonic() > deadline:
            raise world.Broken(f"not within 180 s: every run has ended: {world.by_state()}")
        which = dice.randrange(2)
        if stops <= kills:
            stops += _stop_past_lease(pair[which])
        else:
            pair[which].kill()
            [pair[which]] = world.fresh_workers(start, 1)
            kills += 1
        # A while of ordinary work, so that there is something to disturb.
        with contextlib.suppress(world.Broken):
            world.wait_for(lambda: not world.unfinished(), dice.uniform(0.2, 1.0), "")
    return stops, kills


def _stop_past_lease(worker: world.WorkerProcess) -> bool:
    """Whether the worker was stopped until it was declared lost, or until nothing was left to do."""
    ids = world.ids_of(worker)[-1:]
    worker.signal_group(signal.SIGSTOP)
    try:
        return world.wait_for(
            lambda: world.number("SELECT count(lost_at) FROM manta_worker WHERE id = ANY(%s)", ids),
            LEASE_SECONDS + 10,
            "a stopped worker was declared lost",
        )
    finally:
        worker.signal_group(signal.SIGCONT)
