"""
Two who take themselves for the leader.

Three workers promote, expire and remove what is due, second after second. Whoever leads is stopped (SIGSTOP) until its
lease is lost and another one leads, and continued: it wakes up in the middle of its duties, in a term that is over. A
witness in the database (witness.py) has seen every move: none may be early, none double, and nothing lost.
"""

import random
import signal
import time
from collections.abc import Callable
from datetime import timedelta

from chaos import tasks, witness, world

WORKERS = 3
LEASE_SECONDS = 1
#: Retention: often, and soon.
PRUNE_SECONDS = 0.5
KEPT_SECONDS = 2.0

#: Every tick so many are enqueued: to start at once, due within so many seconds, and to expire before they can start.
TICK_SECONDS = 0.25
PLAIN, SCHEDULED, EXPIRING = 20, 20, 10
AHEAD_SECONDS = 4.0

LIMIT_SECONDS = 60


def storm(weather: world.Weather, report: world.Report) -> None:
    flaps = weather.count(40, 4)
    world.empty()
    dice = random.Random(weather.seed)
    with (
        witness.watching(),
        world.workers(
            LEASE_SECONDS=LEASE_SECONDS,
            RETENTION={"SUCCESSFUL": KEPT_SECONDS, "EXPIRED": KEPT_SECONDS},
            TASK_DEFAULTS={"max_losses": 1_000},
            environment={"MANTA_CHAOS_PRUNE_SECONDS": str(PRUNE_SECONDS)},
        ) as start,
    ):
        crew = world.fresh_workers(start, WORKERS)
        first = _term(LIMIT_SECONDS, 0)
        accepted = sum(_flap(crew, dice) for _ in range(flaps))
        world.let_end(LIMIT_SECONDS)
        terms = _term(1, 0) - first
        exited = sum(not worker.alive for worker in crew)
        world.judge_ledger(report)
        _judge(report, accepted, flaps, terms, exited)


def _judge(report: world.Report, accepted: int, flaps: int, terms: int, exited: int) -> None:
    crimes = witness.crimes()
    # Of what we were told is enqueued: what has not ended, and what nobody has ever seen.
    ended, lost = witness.ended(), witness.lost() + accepted - witness.enqueued()
    extra = world.number("SELECT count(*) - count(DISTINCT run_id) FROM chaos_start")
    limit = flaps * world.SLOTS
    report.figures = {
        "runs": accepted,
        "lost": lost,
        "flaps": flaps,
        "terms": terms,
        "promoted": witness.moves("SCHEDULED", "READY"),
        "expired": ended.get("EXPIRED", 0),
        "removed": world.number("SELECT count(*) FROM chaos_move WHERE state = 'REMOVED'"),
        **crimes,
        "extra_starts": f"{extra}(limit {limit})",
        "fsck": report.figures["fsck"],
    }
    report.expect(lost == 0, f"{lost} runs have vanished or not ended: {world.by_state()}")
    for name, times in crimes.items():
        report.expect(not times, f"{times} {name.replace('_', ' ')}")
    report.expect(ended.keys() <= {"SUCCESSFUL", "EXPIRED"}, f"runs ended {ended}")
    report.expect(extra <= limit, f"user code started {extra} times too often, more than {limit}")
    report.expect(terms >= flaps, f"only {terms} changes of the leader in {flaps} flaps")
    report.expect(exited == 0, f"{exited} worker processes ended by themselves")


def _flap(crew: list[world.WorkerProcess], dice: random.Random) -> int:
    """Stop who leads until another one does; then there are two. How many runs were accepted meanwhile."""
    term, leader = world.wait_for(lambda: _leader(crew), LIMIT_SECONDS, "somebody leads")
    accepted = _work_for(dice.uniform(0.2, 1.0), dice)
    leader.signal_group(signal.SIGSTOP)
    try:
        accepted += _until(lambda: _term(0, term) > term, dice)
    finally:
        leader.signal_group(signal.SIGCONT)
    return accepted + _work_for(dice.uniform(0.2, 1.0), dice)


def _leader(crew: list[world.WorkerProcess]) -> tuple[int, world.WorkerProcess] | None:
    for term, pid in world.look(
        "SELECT cluster.term, worker.pid FROM manta_cluster AS cluster"
        " JOIN manta_worker AS worker ON worker.id = cluster.leader AND worker.lost_at IS NULL"
    ):
        for worker in crew:
            if worker.pid == pid:
                return term, worker
    return None


def _term(limit: float, beyond: int) -> int:
    """The term of the present leader; waits for one beyond a number if there is time."""
    asked = "SELECT COALESCE(max(term), 0) FROM manta_cluster"
    if limit:
        world.wait_for(lambda: world.number(asked) > beyond, limit, "somebody leads")
    return world.number(asked)


def _work_for(seconds: float, dice: random.Random) -> int:
    end = time.monotonic() + seconds
    return _until(lambda: time.monotonic() >= end, dice)


def _until(condition: Callable[[], bool], dice: random.Random) -> int:
    """Enqueue, tick after tick, until something has happened. How many runs were accepted."""
    deadline = time.monotonic() + LIMIT_SECONDS
    accepted = 0
    while not condition():
        if time.monotonic() > deadline:
            raise world.Broken(f"not within {LIMIT_SECONDS} s: another one leads")
        accepted += _enqueue(dice)
        time.sleep(TICK_SECONDS)
    return accepted


def _enqueue(dice: random.Random) -> int:
    """A few of each kind; how many were accepted, as who enqueues is told."""
    plain = tasks.mark_start.map([0.0] * PLAIN)
    ahead = timedelta(seconds=dice.uniform(0.1, AHEAD_SECONDS))
    scheduled = tasks.mark_start.using(run_after=ahead).map([0.0] * SCHEDULED)
    # Due after they have expired: they can only expire.
    soon = timedelta(seconds=dice.uniform(0.1, AHEAD_SECONDS))
    expiring = tasks.mark_start.using(run_after=soon + timedelta(seconds=60), expires=soon).map([0.0] * EXPIRING)
    return len(plain) + len(scheduled) + len(expiring)
