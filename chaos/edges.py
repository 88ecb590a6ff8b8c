"""
Edges against ends.

Eight processes add edges to young runs, some of which wait themselves, some run, some have just ended, while
four workers finish them. Every run must end, and as those that it waited for say.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chaos import tasks, world
from django_manta.states import BAD_ENDS

EDGES = 20_000
WRITERS = 8
WORKERS = 4

_WRONG = """
SELECT count(*)
FROM manta_gate AS gate
JOIN manta_run AS run ON run.id = gate.run_id
CROSS JOIN LATERAL (
    SELECT
        bool_or(precondition.state = ANY(%s)) AS some_bad,
        bool_or(precondition.state = 'SUCCESSFUL') AS some_good
    FROM manta_dependency AS edge
    JOIN manta_run AS precondition ON precondition.id = edge.on_id
    WHERE edge.run_id = gate.run_id
) AS ended
WHERE
    (run.state = 'UPSTREAM_FAILED') <> CASE gate.mode
        WHEN 'all_successful' THEN ended.some_bad
        WHEN 'any_successful' THEN NOT ended.some_good
        ELSE false
    END
"""


def storm(weather: world.Weather, report: world.Report) -> None:
    edges = EDGES // (10 if weather.quick else 1)
    world.empty()
    before = deadlocks()
    with world.workers() as start:
        world.fresh_workers(start, WORKERS)
        tasks.stumble.map([0] * 100)
        with writing(edges, weather.seed) as writers:
            world.wait_for(lambda: all(each.poll() is not None for each in writers), 600, "everything is written")
            # Whatever reached who enqueued, or was caught on the way and logged.
            said = [line for each in writers for line in each.stdout or ()]
            early = world.number("SELECT count(*) FROM manta_run WHERE finished_at IS NOT NULL")
        world.drained(120)
        world.wait_for(lambda: not world.number("SELECT count(*) FROM manta_herald"), 30, "everybody is told")
    world.judge_ledger(report)
    wrong = world.number(_WRONG, sorted(BAD_ENDS))
    report.figures = {
        "edges": world.number("SELECT count(*) FROM manta_dependency"),
        "runs": sum(world.by_state().values()),
        "ended_while_written": early,
        "upstream_failed": world.by_state().get("UPSTREAM_FAILED", 0),
        "wrong": wrong,
        "errors": len(said),
        "deadlocks_in_server": deadlocks() - before,
        "fsck": report.figures["fsck"],
    }
    report.expect(wrong == 0, f"{wrong} runs did not end as what they waited for says")
    report.expect(not said, f"a writer met this: {said[:20]}")
    report.expect(all(each.returncode == 0 for each in writers), "a writer failed")
    report.expect(report.figures["edges"] >= edges, f"only {report.figures['edges']} edges of {edges}")


def deadlocks() -> int:
    """How many the server has had to resolve here."""
    return world.number("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")


@contextmanager
def writing(edges: int, seed: int) -> Iterator[list[subprocess.Popen[str]]]:
    arguments: list[Any] = [sys.executable, "-m", "chaos.writer", edges // WRITERS]
    writers = [
        subprocess.Popen(
            [str(each) for each in (*arguments, seed + number)],
            cwd=world.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(WRITERS)
    ]
    try:
        yield writers
    finally:
        for each in writers:
            each.kill()
            each.wait()
