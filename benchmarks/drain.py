"""A real worker draining no-ops, against the bare claim and settle of as many rows, and against django-tasks-db."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import rival, scratch, tracing, working
from benchmarks.measure import Figure, Stopwatch, compared, in_turns, measured
from benchmarks.settle import drain_plainly

TITLE = "A worker with two processes draining no-ops, results and attempts stored"

#: Not the queue of the bare limit, whose rows the worker would take as well.
QUEUE = "drain"


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = rows or (5_000 if quick else 20_000)
    fewer = min(count, 300 if quick else 1_000)
    with working.worker(QUEUE) as worker, scratch.plain_connection() as connection, rival.database():

        def ours(watch: Stopwatch) -> None:
            watch.seconds = drain(worker, count)

        def limit(watch: Stopwatch) -> None:
            scratch.fill(count, ["default"])
            with watch.running():
                done = drain_plainly(connection)
            assert done == count, f"{done} of {count} rows were settled."

        def tasks_db(watch: Stopwatch) -> None:
            watch.seconds = rival.drain(fewer)

        taken = in_turns(rounds, ours=ours, limit=limit, tasks_db=tasks_db)
    yield compared(f"{count:,} runs, against bare claim and settle", count, taken["ours"], taken["limit"], at_least=0.6)
    yield compared(
        f"{count:,} runs, against django-tasks-db with {rival.WORKERS} workers ({fewer:,})",
        1,
        [seconds / count for seconds in taken["ours"]],
        [seconds / fewer for seconds in taken["tasks_db"]],
        at_least=20,
    )
    yield measured(f"statements a run, {count:,} runs", [statements(count) / count], "st./run", at_most=0.1)


def drain(worker: working.Command, count: int) -> float:
    """Seconds from the commit of ``count`` runs to the settlement of the last, by the database's clock."""
    scratch.empty()
    commit = working.enqueue_and_wait(worker, QUEUE, count)
    [[results]] = working.ask("SELECT count(result) FROM manta_run")
    outcomes = dict(working.ask("SELECT outcome, count(*) FROM manta_attempt GROUP BY outcome"))
    # Some may have been claimed and given back before they were executed.
    assert results == outcomes.get("SUCCESSFUL") == count, f"{count} runs left {results} results, attempts {outcomes}."
    return working.seconds_since(commit)


def statements(count: int) -> int:
    """What all processes of a worker send while it drains: a drain of its own, because tracing takes time."""
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as name:
        directory = Path(name)
        with working.worker(QUEUE, MANTA_BENCH_TRACE=name) as worker:
            before = tracing.sent(directory).total()
            drain(worker, count)
            return tracing.sent(directory).total() - before
