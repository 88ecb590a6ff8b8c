"""
The connection is gone after COMMIT, before the acknowledgement arrives.

Workers and a caller reach the server through a proxy (proxy.py) that cuts connections on which a claim, a
settlement or an enqueue has just been committed, or, as each step of a chain does, a settlement and a claim of what
became ready by it, in one transaction. A claim that nobody heard of is given back, a settlement that nobody heard of
is sent again and refused, an order that nobody heard of is there. No worker dies, so nothing may be executed twice, and
no run may stay with a worker that knows nothing of it.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connections, transaction

from chaos import proxy, tasks, witness, world
from django_manta import workflow
from django_manta.ledger.session import STATEMENT_TIMEOUT_SECONDS

ORDERS = 1_000
PLAIN = 2_000
ATOMIC = 500
NAP_SECONDS = 0.002

#: So short that they are settled by the hundred.
SHORT = 4_000

#: Of a chain, and of a braid: two strands, where each step waits for both steps before it. There is one of each: were
#: more of them ready than there is room for, they would be claimed by themselves.
STEPS = 320

#: How many of the commits of a kind are not acknowledged.
SHARES = {"claim": 0.15, "settle": 0.1, proxy.MANY: 0.5, proxy.BOTH: 0.5, "enqueue": 0.1}

#: A claim that the server commits after its worker has looked is found when a statement's time is over. Whatever
#: is held much longer than that, its worker has forgotten.
FORGOTTEN_SECONDS = STATEMENT_TIMEOUT_SECONDS + 5
LIMIT_SECONDS = 120

#: Orders without their run, and runs that nobody has ordered.
_UNMATCHED = """
SELECT
    count(*) FILTER (WHERE run.id IS NULL)
    + abs((SELECT count(*) FROM manta_run) - count(*) - %s)
FROM chaos_order AS placed
LEFT JOIN manta_run AS run ON run.id = placed.run_id
"""

_EFFECTS = """
SELECT count(*)
FROM manta_run AS run
WHERE
    run.task = 'chaos.tasks.mark_effect'
    AND (SELECT count(*) FROM chaos_effect AS effect WHERE effect.run_id = run.id) <> 1
"""

#: Runs that a worker has, or had, and nothing came of it in so many seconds.
_FORGOTTEN = """
SELECT count(DISTINCT run_id)
FROM (
    SELECT
        run_id,
        state,
        lead(at, 1, statement_timestamp()) OVER (PARTITION BY run_id ORDER BY number) - at AS lasted
    FROM chaos_move
) AS held
WHERE held.state = 'RUNNING' AND held.lasted > make_interval(secs => %s)
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How much work a trial has."""

    orders: int
    plain: int
    atomic: int
    steps: int

    @property
    def in_chains(self) -> int:
        return self.steps * (1 + 2)

    @property
    def runs(self) -> int:
        return SHORT + self.orders + self.plain + self.atomic + self.in_chains


def storm(weather: world.Weather, report: world.Report) -> None:
    trials, share = weather.count(2, 1), 8 if weather.quick else 1
    size = Size(ORDERS // share, PLAIN // share, ATOMIC // share, STEPS // share)
    tally: Counter[str] = Counter()
    for trial in range(trials):
        world.empty()
        with witness.watching():
            # Not with +=, which would forget what is below zero.
            tally.update(_trial(report, weather.seed + trial, size))
            tally.update(_look(report, size))
    cuts = [f"{kind}_cut" for kind in SHARES]
    wrong = ("forgotten", "extra_starts", "effects_not_once", "orders_unmatched", "reopened", "exited", "declared_lost")
    names = ("lost", *cuts, "before_the_answer", "caller_unheard", "returned", *wrong, "fsck")
    figures = {name: tally[name] for name in names}
    report.figures = {"trials": trials, "runs": trials * size.runs, "in_chains": trials * size.in_chains, **figures}
    for name in wrong:
        report.expect(not tally[name], f"{tally[name]} {name.replace('_', ' ')}")
    for name in cuts:
        report.expect(tally[name] > 0, f"no {name}: it was no storm")


def _trial(report: world.Report, seed: int, size: Size) -> Counter[str]:
    """Two drains through the proxy. How often it cut, and who ended or was declared lost by that."""
    tally: Counter[str] = Counter()
    with (
        proxy.between(connections["default"].settings_dict, SHARES, seed) as lossy,
        _environment(lossy.url),
    ):
        with _pair(report, tally):
            tasks.nap.map([0.0] * SHORT)
            tasks.mark_start.map([NAP_SECONDS] * size.plain)
            tasks.mark_effect.map([NAP_SECONDS] * size.atomic)
            tally["caller_unheard"] = _call(report, size.orders, seed)
        # Nothing else is ready, so that a worker settles and claims in one; and nothing else is cut, so that no worker
        # looks for another reason at what it has and does not know of.
        lossy.shares = {proxy.BOTH: SHARES[proxy.BOTH]}
        with _pair(report, tally):
            with transaction.atomic():
                _enqueue_chain([tasks.mark_start], size.steps)
            with workflow("braid"):
                _enqueue_chain([tasks.mark_start, tasks.mark_effect], size.steps)
        lossy.calm()
        tally.update({f"{kind}_cut": lossy.cuts[kind] for kind in SHARES})
        tally["before_the_answer"] = lossy.hasty
    return tally


@contextmanager
def _pair(report: world.Report, tally: Counter[str]) -> Iterator[None]:
    """Two workers that do what is enqueued in the block, and leave when all of it has ended."""
    with world.workers() as start:
        pair = world.fresh_workers(start)
        yield
        world.let_end(LIMIT_SECONDS)
        tally["exited"] += sum(not worker.alive for worker in pair)
        tally["declared_lost"] += world.lost_workers()
        for worker in pair:
            worker.signal(signal.SIGTERM)
        codes = [worker.wait(60) for worker in pair]
        report.expect(codes == [0, 0], f"the workers left with {codes}")


def _call(report: world.Report, orders: int, seed: int) -> int:
    """Have orders taken. How often it was not heard whether one was."""
    caller = subprocess.run(
        [sys.executable, "-m", "chaos.caller", str(orders), str(seed)],
        cwd=world.ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    report.expect(caller.returncode == 0, f"the caller failed: {caller.stderr[-500:]}")
    return int(caller.stdout or 0)


def _enqueue_chain(strands: list[Any], steps: int) -> None:
    """Steps that each wait for all of the step before, whose last to end makes them ready."""
    before: list[Any] = []
    for _ in range(steps):
        before = [task.using(after=before).enqueue(0.0) for task in strands]


def _look(report: world.Report, size: Size) -> dict[str, int]:
    """What a trial has left behind."""
    world.judge(report, size.runs)
    outcomes = world.by_outcome()
    report.expect(outcomes.keys() <= {"SUCCESSFUL", "RETURNED"}, f"attempts ended {outcomes}")
    return {
        "lost": report.figures["lost"],
        "fsck": report.figures["fsck"],
        "returned": outcomes.get("RETURNED", 0),
        "forgotten": world.number(_FORGOTTEN, FORGOTTEN_SECONDS),
        "extra_starts": world.number("SELECT count(*) - count(DISTINCT run_id) FROM chaos_start"),
        "effects_not_once": world.number(_EFFECTS),
        "orders_unmatched": world.number(_UNMATCHED, size.runs - size.orders),
        "reopened": witness.crimes()["reopened"],
    }


@contextmanager
def _environment(url: str) -> Iterator[None]:
    """Whatever is started in the block reaches the server by this URL."""
    before = os.environ["DATABASE_URL"]
    os.environ["DATABASE_URL"] = url
    try:
        yield
    finally:
        os.environ["DATABASE_URL"] = before
