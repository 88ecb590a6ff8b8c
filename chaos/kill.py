"""
Kill -9 of the worker.

Two workers; every second one that has worked for a second is killed and replaced, until all runs are
done. (To kill one that is still loading Django would hurt nobody.) A run may have started once more
for each execution that a killed worker had under way, and no more often.

A kill a second leaves nobody alive for as long as a lease, so that what was held waits for a worker that is still to
come. In every other trial the witness of a kill is spared until it has taken over what there was: only these show how
long that takes where somebody is there to do it.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos import tasks, world

RUNS = 2_000
LEASE_SECONDS = 2
EVERY_SECONDS = 1.0
NAP_SECONDS = 0.002

#: What a killed worker held is taken over within its lease and so long, if another worker lived to see it.
MARGIN_SECONDS = 2.0

#: After so long no child of a killed worker may run.
ORPHAN_SECONDS = 1.0


@dataclass(slots=True)
class Kill:
    """A worker that was killed, and what became of what it held."""

    worker: world.WorkerProcess
    ids: list[str]
    witness: world.WorkerProcess
    at: float
    held: int
    orphans: int | None = None
    recovery: float | None = None
    #: Whether the other worker was there, and lived until what this one held was taken over.
    watched: bool = False

    @property
    def over(self) -> bool:
        return self.recovery is not None and self.orphans is not None


def storm(weather: world.Weather, report: world.Report) -> None:
    trials = weather.count(20, 2)
    kills: list[Kill] = []
    extra = lost = findings = wanted = 0
    for trial in range(trials):
        world.empty()
        tasks.mark_start.map([NAP_SECONDS] * RUNS)
        with world.workers(LEASE_SECONDS=LEASE_SECONDS) as start:
            killed = _drain(start, random.Random(weather.seed + trial), spare=_spares(trial))
        kills += killed
        wanted += _spares(trial) and any(kill.held for kill in killed)
        world.judge(report, RUNS)
        lost += report.figures["lost"]
        findings += report.figures["fsck"]
        extra += world.number("SELECT count(*) - count(DISTINCT run_id) FROM chaos_start")
    limit = len(kills) * world.SLOTS
    recoveries = [kill.recovery for kill in kills if kill.held and kill.recovery is not None]
    watched = [kill.recovery for kill in kills if kill.held and kill.recovery is not None and kill.watched]
    orphans = sum(kill.orphans or 0 for kill in kills)
    report.figures = {
        "trials": trials,
        "runs": trials * RUNS,
        "lost": lost,
        "kills": len(kills),
        "extra_starts": f"{extra}(limit {limit})",
        "orphans_after_1s": orphans,
        "recovery_p50/p99": world.spread(recoveries),
        "watched": f"{len(watched)}(at least {wanted})",
        "watched_recovery_p50/p99": world.spread(watched),
        "fsck": findings,
    }
    report.expect(extra <= limit, f"user code started {extra} times too often, more than {limit}")
    report.expect(orphans == 0, f"{orphans} processes of killed workers lived on")
    report.expect(len(watched) >= wanted, f"{len(watched)} recoveries had a witness that lived, fewer than {wanted}")
    slowest = max(watched, default=0.0)
    allowed = LEASE_SECONDS + MARGIN_SECONDS
    report.expect(slowest <= allowed, f"a recovery took {slowest:.2f} s, more than {allowed:g} s")


def _spares(trial: int) -> bool:
    """Whether witnesses are spared in this trial."""
    return trial % 2 == 0


def _drain(start: Callable[..., world.WorkerProcess], dice: random.Random, *, spare: bool) -> list[Kill]:
    """
    Kill a worker every second until all runs have ended and what the killed ones held is taken over. To ``spare`` is to
    let a witness live until then.
    """
    pair = world.fresh_workers(start)
    world.wait_for(world.successful, 60, "the first run has succeeded")
    kills: list[Kill] = []
    since: dict[int, float] = {}
    last_kill = 0.0

    def done() -> bool:
        nonlocal last_kill
        _watch(kills)
        if not world.unfinished():
            return all(kill.over for kill in kills)
        now = time.monotonic()
        for worker in pair:
            if worker.pid not in since and _held(world.ids_of(worker)):
                since[worker.pid] = now
        spared = {kill.witness.pid for kill in kills if spare and kill.watched and kill.recovery is None}
        due = [
            place
            for place, worker in enumerate(pair)
            if now - since.get(worker.pid, now) >= EVERY_SECONDS and worker.pid not in spared
        ]
        if due and now - last_kill >= EVERY_SECONDS:
            last_kill = now
            kills.append(_kill(pair, dice.choice(due), start, kills))
        return False

    world.wait_for(done, 180, "every run has ended", lambda: str(world.by_state()))
    return kills


def _kill(
    pair: list[world.WorkerProcess], which: int, start: Callable[..., world.WorkerProcess], before: list[Kill]
) -> Kill:
    victim, witness = pair[which], pair[1 - which]
    victim.kill()
    at = time.monotonic()
    for kill in before:
        if kill.witness is victim and kill.recovery is None:
            kill.watched = False
    pair[which] = start()
    ids = world.ids_of(victim)
    return Kill(victim, ids, witness, at, _held(ids), watched=bool(world.ids_of(witness)))


def _watch(kills: list[Kill]) -> None:
    for kill in kills:
        waited = time.monotonic() - kill.at
        if kill.recovery is None and not _held(kill.ids):
            kill.recovery = waited
        if kill.orphans is None and waited >= ORPHAN_SECONDS:
            kill.orphans = kill.worker.left_running()


def _held(ids: list[str]) -> int:
    return world.number(
        "SELECT count(*) FROM manta_run WHERE worker = ANY(%s) AND state IN ('RUNNING', 'CANCELLING')", ids
    )
