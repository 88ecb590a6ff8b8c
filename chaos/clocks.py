"""
A machine whose clock is wrong.

One of two workers has a clock that is ten minutes fast, then ten minutes slow (libfaketime, from Debian's
packages). Runs fall due, are tried again, expire, and are enqueued by the worker itself. The database's clock
decides: nothing may be promoted or expire early, nothing late either, and nobody loses a lease for it.
"""

import os
import subprocess
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from chaos import tasks, witness, world

#: Where the wrong clock comes from.
INSTALL = ("install", "--yes", "--no-install-recommends", "libfaketime")

SKEW_SECONDS = 600
LEASE_SECONDS = 2

#: For so long something is enqueued, so many of each kind a tick, due or expiring within so long.
STORM_SECONDS = 30.0
TICK_SECONDS = 0.5
EACH = 10
AHEAD_SECONDS = 5.0

#: What is due starts within so long, on a machine that has other work as well.
LATE_SECONDS = 2.0

_SKEWED = """
SELECT count(*)
FROM manta_run
WHERE
    task = 'chaos.tasks.tell_time'
    AND state = 'SUCCESSFUL'
    AND abs(result::double precision - EXTRACT(EPOCH FROM finished_at)) BETWEEN %s AND %s
"""

_LATENESS = """
SELECT EXTRACT(EPOCH FROM promoted.at - promoted.due_at)
FROM chaos_move AS promoted
WHERE promoted.former = 'SCHEDULED' AND promoted.state = 'READY'
"""


def storm(weather: world.Weather, report: world.Report) -> None:
    library = find_library()
    if library is None:
        report.figures = {"skipped": "libfaketime is not installed"}
        return
    seconds = STORM_SECONDS / (3 if weather.quick else 1)
    tally: Counter[str] = Counter()
    lateness: list[float] = []
    for skew in (SKEW_SECONDS, -SKEW_SECONDS):
        world.empty()
        with witness.watching():
            runs, skewed = _pass(report, library, skew, seconds)
            lateness += [float(row[0]) for row in world.look(_LATENESS)]
            # Not with +=, which would forget what is below zero: runs that nobody has enqueued.
            tally.update(witness.crimes())
            tally["lost"] += witness.lost() + runs - witness.enqueued()
            tally["declared_lost"] += world.lost_workers()
            tally["runs"] += runs
            tally["skewed"] += skewed
            tally["promoted"] += witness.moves("SCHEDULED", "READY")
            tally["expired"] += witness.ended().get("EXPIRED", 0)
            world.judge_ledger(report)
            tally["fsck"] += report.figures["fsck"]
            crimes = list(witness.crimes())
    wrong = ["lost", "declared_lost", *crimes]
    names = ["runs", "skewed", "promoted", "expired", *wrong, "fsck"]
    report.figures = {
        "skew": "+10m,-10m",
        **{name: tally[name] for name in names},
        "late_p50/p99": world.spread(lateness),
    }
    for name in wrong:
        report.expect(not tally[name], f"{tally[name]} {name.replace('_', ' ')}")
    report.expect(tally["skewed"] > 0, "no run was executed by the wrong clock: it was no storm")
    latest = max(lateness, default=0.0)
    report.expect(latest <= LATE_SECONDS, f"a run was promoted {latest:.1f} s after it was due")


def _pass(report: world.Report, library: Path, skew: int, seconds: float) -> tuple[int, int]:
    """Work beside a wrong clock for a while. How many runs there were, and how many it executed."""
    with (
        world.workers(LEASE_SECONDS=LEASE_SECONDS) as start,
        world.workers(faked(library, skew), LEASE_SECONDS=LEASE_SECONDS) as start_wrong,
    ):
        crew = world.fresh_workers(start, 1) + world.fresh_workers(start_wrong, 1)
        runs = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            runs += _enqueue(time.monotonic() % AHEAD_SECONDS)
            time.sleep(TICK_SECONDS)
        world.let_end(60)
        report.expect(all(worker.alive for worker in crew), f"skew {skew}: a worker ended by itself")
        ended = world.by_state()
        report.expect(ended.keys() <= {"SUCCESSFUL", "FAILED", "EXPIRED"}, f"skew {skew}: runs ended {ended}")
        return runs, world.number(_SKEWED, SKEW_SECONDS - 30, SKEW_SECONDS + 30)


def _enqueue(seconds: float) -> int:
    """A few of each kind; how many there will be."""
    soon = timedelta(seconds=0.1 + seconds)
    calls: list[tuple[tuple[()], dict[str, Any]]] = [((), {})] * EACH
    tasks.tell_time.enqueue_many(calls)
    tasks.tell_time.using(run_after=soon).enqueue_many(calls)
    tasks.tell_time.using(run_after=soon + timedelta(minutes=5), expires=soon).enqueue_many(calls)
    # In time, if only the clock is read that counts.
    tasks.tell_time.using(expires=timedelta(minutes=2)).enqueue_many(calls)
    tasks.fail_twice_later.enqueue()
    tasks.plan.enqueue(EACH, 0.1 + seconds)
    return 4 * EACH + 1 + 1 + EACH


# -- libfaketime -------------------------------------------------------------------------------------


def find_library() -> Path | None:
    """Where Debian's package has put it; installed if it is missing and we may."""
    return _installed() or (_installed() if _install() else None)


def _installed() -> Path | None:
    try:
        listed = subprocess.run(["dpkg", "-L", "libfaketime"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return next((Path(line) for line in listed.stdout.splitlines() if line.endswith("/libfaketime.so.1")), None)


def _install() -> bool:
    """Whether it is installed now. Where apt knows of no packages, it is told to look which there are."""
    return any(_apt(*arguments) and arguments == INSTALL for arguments in (INSTALL, ("update",), INSTALL))


def _apt(*arguments: str) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        ran = subprocess.run(["apt-get", *arguments], capture_output=True, env=environment, timeout=120, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return ran.returncode == 0


def faked(library: Path, skew: int) -> dict[str, str]:
    """
    An environment with another time of day.

    The monotonic clock is left alone: that of a machine whose time of day is wrong is right.
    """
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{skew:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
