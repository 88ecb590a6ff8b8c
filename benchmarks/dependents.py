"""One run that very many wait for: how long the transactions are that tell them how it ended."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.tasks import default_task_backend

from benchmarks import scratch, working
from benchmarks.measure import Figure, measured, percentile
from benchmarks.settle import WORKER
from benchmarks.tasks import arguments, nap, resize
from django_manta.ledger import Ledger, PostgresSession, Settlement
from django_manta.ledger.session import Row
from django_manta.states import Outcome, State
from django_manta.worker.caretaker import spread_the_word

TITLE = "One run that many wait for: every transaction until all of them know how it ended"

QUEUE = "dependents"


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = rows or (10_000 if quick else 100_000)
    for outcome in (Outcome.FAILED, Outcome.SUCCESSFUL):
        session = Timed()
        try:
            seconds = told(Ledger(session), count, outcome)
        finally:
            session.close()
        what = f"{count:,} dependents of one that ended {outcome}"
        milliseconds = [each * 1000 for each in session.seconds]
        yield measured(f"{what}: longest transaction", [max(milliseconds)], "ms", at_most=250)
        yield measured(f"{what}: p99 of {len(milliseconds):,}", [percentile(milliseconds, 0.99)], "ms")
        yield Figure(what=f"{what}: until all of them know", ours=f"{seconds:.1f} s", limit=f"{count / seconds:,.0f}/s")


def told(ledger: Ledger, count: int, outcome: Outcome) -> float:
    """Seconds from the settlement of a run to the move of the last of its dependents."""
    scratch.empty()
    first = nap.using(queue_name=QUEUE).enqueue(0)
    resize.using(queue_name=QUEUE, after=[first]).enqueue_many(map(arguments, range(count)))
    while spread_the_word(default_task_backend, ledger):
        pass
    [claim] = ledger.claim(WORKER, [QUEUE], 1)
    state = State(outcome)
    ledger.session.seconds.clear()
    began = time.perf_counter()
    ledger.settle([Settlement(run_id=claim.id, token=claim.token, outcome=outcome, next_state=state)], WORKER)
    spread_the_word(default_task_backend, ledger)
    seconds = time.perf_counter() - began
    wanted = State.READY if outcome is Outcome.SUCCESSFUL else State.UPSTREAM_FAILED
    [[moved]] = working.ask("SELECT count(*) FROM manta_run WHERE state = %s", wanted.value)
    assert moved == count, f"Of {count} dependents {moved} are {wanted}."
    return seconds


class Timed(PostgresSession):
    """A session that notes how long each of its transactions took, those of a single statement too."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    @contextmanager
    def _timed(self) -> Iterator[None]:
        if self.in_transaction():
            yield
            return
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds.append(time.perf_counter() - began)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._timed(), super().transaction():
            yield

    def rows(self, name: str, params: Mapping[str, Any]) -> list[Row]:
        with self._timed():
            return super().rows(name, params)

    def run(self, name: str, params: Mapping[str, Any]) -> None:
        with self._timed():
            super().run(name, params)
