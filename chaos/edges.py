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
from django_manta.states import BAD_ENDS, ENDS

EDGES = 20_000
WRITERS = 8
WORKERS = 4

#: So many are there before the first edge.
FIRST = 100

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
        tasks.stumble.map([0] * FIRST)
        with writing(edges, weather.seed) as writers:
            world.wait_for(lambda: all(each.poll() is not None for each in writers), 600, "everything is written")
            # Whatever reached who enqueued, or was caught on the way and logged; and at last how many were accepted.
            said = [list(each.stdout or ()) for each in writers]
            early = world.number("SELECT count(*) FROM manta_run WHERE finished_at IS NOT NULL")
        world.let_end(120)
        world.wait_for(lambda: not world.number("SELECT count(*) FROM manta_herald"), 30, "everybody is told")
    world.judge_ledger(report)
    report.expect(all(each.returncode == 0 for each in writers), f"a writer failed: {said}")
    accepted = FIRST + sum(int(lines.pop()) for lines in said if lines and lines[-1].strip().isdigit())
    errors = [line for lines in said for line in lines]
    lost = accepted - sum(count for state, count in world.by_state().items() if state in ENDS)
    wrong = world.number(_WRONG, sorted(BAD_ENDS))
    report.figures = {
        "edges": world.number("SELECT count(*) FROM manta_dependency"),
        "runs": accepted,
        "lost": lost,
        "ended_while_written": early,
        "upstream_failed": world.by_state().get("UPSTREAM_FAILED", 0),
        "wrong": wrong,
        "errors": len(errors),
        "deadlocks_in_server": deadlocks() - before,
        "fsck": report.figures["fsck"],
    }
    report.expect(wrong == 0, f"{wrong} runs did not end as what they waited for says")
    report.expect(lost == 0, f"{lost} runs have vanished or not ended: {world.by_state()}")
    report.expect(not errors, f"a writer met this: {errors[:20]}")
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
