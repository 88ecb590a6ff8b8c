"""
The connection is gone after COMMIT, before the acknowledgement arrives.

Workers and a caller reach the server through a proxy (proxy.py) that cuts connections on which a claim, a
settlement or an enqueue has just been committed. A claim that nobody heard of is given back, a settlement that
nobody heard of is sent again and refused, an order that nobody heard of is there. No worker dies, so nothing may
be executed twice.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from chaos import proxy, tasks, world

ORDERS = 1_000
PLAIN = 2_000
ATOMIC = 500
NAP_SECONDS = 0.002

#: How many of the commits of a kind are not acknowledged.
SHARES = {"claim": 0.15, "settle": 0.1, "enqueue": 0.1}

#: A claim that the server commits after its worker has looked is found when a statement's time is over.
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


def storm(weather: world.Weather, report: world.Report) -> None:
    trials, share = weather.count(2, 1), 8 if weather.quick else 1
    orders, plain, atomic = ORDERS // share, PLAIN // share, ATOMIC // share
    runs = orders + plain + atomic
    tally: Counter[str] = Counter()
    for trial in range(trials):
        world.empty()
        tally += _trial(report, weather.seed + trial, orders, plain, atomic)
        world.judge(report, runs)
        outcomes = world.by_outcome()
        report.expect(outcomes.keys() <= {"SUCCESSFUL", "RETURNED"}, f"attempts ended {outcomes}")
        tally["lost"] += report.figures["lost"]
        tally["fsck"] += report.figures["fsck"]
        tally["returned"] += outcomes.get("RETURNED", 0)
        tally["extra_starts"] += world.number("SELECT count(*) - count(DISTINCT run_id) FROM chaos_start")
        tally["effects_not_once"] += world.number(_EFFECTS)
        tally["orders_unmatched"] += world.number(_UNMATCHED, plain + atomic)
    cuts = [f"{kind}_cut" for kind in SHARES]
    wrong = ("extra_starts", "effects_not_once", "orders_unmatched", "exited", "declared_lost")
    names = ("lost", *cuts, "before_the_answer", "caller_unheard", "returned", *wrong, "fsck")
    report.figures = {"trials": trials, "runs": trials * runs, **{name: tally[name] for name in names}}
    for name in wrong:
        report.expect(not tally[name], f"{tally[name]} {name.replace('_', ' ')}")
    for name in cuts:
        report.expect(tally[name] > 0, f"no {name}: it was no storm")


def _trial(report: world.Report, seed: int, orders: int, plain: int, atomic: int) -> Counter[str]:
    """One drain through the proxy. How often it cut, and who ended or was declared lost by that."""
    tasks.mark_start.map([NAP_SECONDS] * plain)
    tasks.mark_effect.map([NAP_SECONDS] * atomic)
    with (
        proxy.between(connections["default"].settings_dict, SHARES, seed) as lossy,
        _environment(lossy.url),
        world.workers() as start,
    ):
        pair = world.fresh_workers(start)
        caller = subprocess.run(
            [sys.executable, "-m", "chaos.caller", str(orders), str(seed)],
            cwd=world.ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        report.expect(caller.returncode == 0, f"the caller failed: {caller.stderr[-500:]}")
        world.drained(LIMIT_SECONDS)
        lossy.calm()
        return Counter(
            {f"{kind}_cut": lossy.cuts[kind] for kind in SHARES}
            | {
                "before_the_answer": lossy.hasty,
                "caller_unheard": int(caller.stdout or 0),
                "exited": sum(not worker.alive for worker in pair),
                "declared_lost": world.lost_workers(),
            }
        )


@contextmanager
def _environment(url: str) -> Iterator[None]:
    """Whatever is started in the block reaches the server by this URL."""
    before = os.environ["DATABASE_URL"]
    os.environ["DATABASE_URL"] = url
    try:
        yield
    finally:
        os.environ["DATABASE_URL"] = before
