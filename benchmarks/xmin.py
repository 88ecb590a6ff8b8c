"""A worker draining no-ops while a transaction stays open that began before: nothing it does can be cleaned up."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import scratch, tasks, working
from benchmarks.measure import Figure

TITLE = "A drain beside a transaction that stays open"

QUEUE = "drain"

#: How long the transaction is open, and over how long the rate at its end is taken.
SECONDS, QUICK_SECONDS = 120.0, 30.0
END_SECONDS = 10.0

#: Rows a second that have to be there. More than are done: the queue must not run dry.
ROWS_A_SECOND = 14_000


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    seconds = QUICK_SECONDS if quick else SECONDS
    with working.worker(QUEUE) as worker:
        calm = _rate(worker, 2 * END_SECONDS, rows)
        with _held():
            held = _rate(worker, seconds, rows)
    yield Figure(
        what=f"the last {END_SECONDS:g} s of {seconds:g} s, against the same without",
        ours=f"{held:,.0f}/s",
        limit=f"{calm:,.0f}/s",
        ratios=[held / calm],
        at_least=0.5,
    )


@contextmanager
def _held() -> Iterator[None]:
    with scratch.plain_connection() as connection:
        connection.autocommit = False
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        # No table is touched: only its age is in the way.
        connection.execute("SELECT txid_current()")
        yield
        connection.rollback()


def _rate(worker: working.Command, seconds: float, rows: int | None) -> float:
    """Runs a second at the end of so long a drain."""
    scratch.empty()
    missing = rows or int(seconds * ROWS_A_SECOND)
    task = tasks.resize.using(queue_name=QUEUE)
    began = _taken()
    # It begins when all are there, at its next look.
    scratch.execute(f"INSERT INTO manta_queue (name, paused_at) VALUES ('{QUEUE}', statement_timestamp())")
    while missing > 0:
        working.enqueue(task, [tasks.arguments(number) for number in range(min(missing, 50_000))])
        missing -= 50_000
    scratch.execute("DELETE FROM manta_queue")
    time.sleep(max(0.0, seconds - END_SECONDS))
    before, at = _taken(), time.monotonic()
    time.sleep(END_SECONDS)
    rate = (_taken() - before) / (time.monotonic() - at)
    if not working.unfinished():
        raise working.Trouble(f"The queue ran dry: {before - began:,} runs were not enough.")
    scratch.empty()
    return rate


def _taken() -> int:
    """How many attempts there have been: asked of their sequence, not by counting."""
    [[last]] = working.ask("SELECT last_value FROM manta_attempt_token_seq")
    return int(last)
