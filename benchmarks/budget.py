"""
Where the time of a short run goes, step by step, in microseconds of processor for each run.

Each step is done for itself, by the code that does it in a worker and in its children, with as many runs at a time as a
busy worker handles; the server's share is read from the clock of its own process. What only the whole has (switching
between processes, waiting for one another, caches) is the difference to a drain.
"""

import os
import time
from collections.abc import Callable, Iterator
from json import loads
from typing import Any

from django.db import connection

from benchmarks import idle, scratch, tasks
from benchmarks.measure import Figure, measured
from benchmarks.settle import WORKER
from django_manta.execution import tending
from django_manta.execution.admission import admit
from django_manta.execution.executor import Execution, execute
from django_manta.execution.runners import slate, wire
from django_manta.execution.runners.child import hush_django
from django_manta.execution.runners.kept import Kept, ended
from django_manta.execution.runners.ray import messages
from django_manta.ledger import Claimed, Ledger, PostgresSession, Written

TITLE = "The budget of a run, in microseconds of processor"

#: Runs in a statement, and in the hands of a child.
BATCH = 250

#: Ends that a worker finds when it has napped.
NAP = 25


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = rows or (1_000 if quick else 5_000)
    hush_django()
    found: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        scratch.empty()
        spent = _Spent(count)
        with scratch.worker_session() as session:
            _walk(spent, session, count)
        if number:
            for step, microseconds in spent.steps.items():
                found.setdefault(step, []).append(microseconds)
    for step, values in found.items():
        yield measured(step, values, "µs")
    on_the_way = [step for step in found if not step.startswith(("ray:", "  "))]
    totals = [sum(found[step][number] for step in on_the_way) for number in range(rounds)]
    yield measured("all of it, by the runner `processes`", totals, "µs")


class _Spent:
    """Processor time by step."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.steps: dict[str, float] = {}

    def __call__[T](self, step: str, work: Callable[[], T], *, server: int | None = None) -> T:
        """Do it, and note what this thread used; or, besides, what a process of the server did."""
        theirs = idle.processor_seconds([server]) if server else 0.0
        began = time.thread_time()
        done = work()
        used = time.thread_time() - began
        self._note(step, used)
        if server:
            self._note(f"{step}, in the server", idle.processor_seconds([server]) - theirs)
        return done

    def _note(self, step: str, seconds: float) -> None:
        self.steps[step] = self.steps.get(step, 0.0) + seconds / self.count * 1e6


def _walk(spent: _Spent, session: PostgresSession, count: int) -> None:
    """Runs take the whole path, from the enqueue to their settlement, in one process."""
    ledger = Ledger(session)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [[caller]] = cursor.fetchall()
    backend = session.connection.info.backend_pid
    calls = [(tasks.resize, *tasks.arguments(number)) for number in range(count)]
    spent("enqueue by many", lambda: tasks.resize.get_backend().enqueue_many(calls), server=caller)
    claims: list[Claimed] = []

    def claim() -> None:
        while found := ledger.claim(WORKER, ["default"], BATCH):
            claims.extend(found)

    spent("claim", claim, server=backend)
    batches = [claims[start : start + BATCH] for start in range(0, count, BATCH)]
    sent = spent("order: write", lambda: [wire.orders(batch) for batch in batches])
    ordered = spent("order: read", lambda: [one for frame in sent for one in wire.read_orders(frame[_HEADER:])])
    # As in a child that has not used the database.
    connection.close()
    tending.start_anew()
    spent("  of which: verify, find the task, decode", lambda: [admit(claim) for claim in ordered])
    done = spent(
        "execute: verify, decode, call, encode, sign",
        lambda: [execute(claim, executor="budget:1", in_writing=True) for claim in ordered],
    )
    kept = Kept()
    told = spent("end: write", lambda: _ends(ordered, done, kept))
    heard = _across_a_slate(spent, told, ordered)
    rows = spent("end: read", lambda: _read(heard, ordered))
    spent("settle", lambda: _settle(ledger, rows), server=backend)
    written = spent("ray: order, write", lambda: [messages.write_claim(claim) for claim in claims])
    spent("ray: order, read", lambda: [messages.read_claim(text) for text in written])
    lines = spent("ray: end, write", lambda: [messages.dump(messages.outcome_to_json(row)) for row in rows])
    spent("ray: end, read", lambda: _read_lines(rows, lines))


#: What stands before the body of a frame.
_HEADER = wire._HEADER.size


def _ends(claims: list[Claimed], done: list[Execution], kept: Kept) -> list[Any]:
    return [ended(claim, execution, kept) for claim, execution in zip(claims, done, strict=True)]


def _across_a_slate(spent: _Spent, ends: list[Any], claims: list[Claimed]) -> list[Any]:
    """Written one by one, as a child does, and read as many at a time as a worker finds that has napped."""
    descriptor = slate.new_slate()
    child, worker = slate.Slate(os.dup(descriptor)), slate.Slate(descriptor)
    heard: list[Any] = []

    def write(first: int) -> None:
        for end, claim in zip(ends[first : first + NAP], claims[first : first + NAP], strict=True):
            child.write(wire.Kind.NEXT, (end, claim.token), _full)
            child.must_wake(slate.ASLEEP)

    for first in range(0, len(ends), NAP):
        spent("slate: write", lambda first=first: write(first))  # type: ignore[misc]
        spent("slate: read", lambda: heard.extend(body[0] for _, body in worker.read()))
    child.close()
    worker.close()
    return heard


def _full() -> None:
    raise RuntimeError("There is no room on the slate.")


def _read(heard: list[Any], claims: list[Claimed]) -> list[Written]:
    ids = {claim.token: claim.id for claim in claims}
    return [row for end in heard if (row := wire.read_end(ids[end[0]], end)) is not None]


def _settle(ledger: Ledger, rows: list[Written]) -> None:
    for start in range(0, len(rows), BATCH):
        settled = ledger.settle(rows[start : start + BATCH], WORKER)
        assert not settled.not_mine, settled


def _read_lines(rows: list[Written], lines: list[str]) -> list[Any]:
    return [
        messages.outcome_from_json(row.run_id, row.token, loads(line)) for row, line in zip(rows, lines, strict=True)
    ]
