"""
The inline runner: executes runs here and now, one after the other, in the calling thread.

For tests, scripts and demonstrations. It claims and settles as every worker does, through the same
ledger, so that what it shows is what a worker would do.
"""

import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import connections
from django.tasks import DEFAULT_TASK_QUEUE_NAME, task_backends

import django_manta
from django_manta.execution import announce, desk, policy
from django_manta.execution.admission import max_losses_of
from django_manta.execution.executor import execute
from django_manta.ledger import Claimed, Ledger, Settleable, Settlement, WorkerRecord, graph
from django_manta.states import Outcome, State

logger = logging.getLogger("django_manta")

#: How many runs are claimed together. They wait for each other, so not many.
BATCH = 20

#: How long to wait for somebody who holds the row of a run that is to be settled.
_BUSY_PAUSE_SECONDS = 0.02

#: There is no thread that would renew the lease while a task runs: it is long, and renewed between runs.
LEASE_SECONDS = 600.0
_BEAT_SECONDS = 10.0

#: Far enough ahead for every scheduled run.
_EVER = timedelta(days=365_000)


@dataclass(slots=True)
class Drained:
    """What a drain did."""

    #: Executions, by how they ended.
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    #: Where they left their runs.
    states: Counter[State] = field(default_factory=Counter)

    @property
    def runs(self) -> int:
        """How many executions there were."""
        return self.outcomes.total()


def drain(
    backend: str = "default",
    *,
    queues: Sequence[str] | None = None,
    max_runs: int | None = None,
    include_scheduled: bool = False,
    on_settled: Callable[[Claimed, Settleable], None] | None = None,
) -> Drained:
    """
    Execute runs until nothing is ready, or ``max_runs`` have been executed.

    ``include_scheduled`` does not wait for due dates. ``on_settled`` is told of each execution.
    """
    configured: Any = task_backends[backend]
    ledger: Ledger = configured.ledger
    ledger.check_key(configured.seal)
    worker = _worker(configured, queues or ())
    ledger.register(worker)
    try:
        return _drain(ledger, worker.id, configured, queues, max_runs, include_scheduled, on_settled)
    except BaseException:
        _drop_unusable(configured.database)
        raise
    finally:
        ledger.leave(worker.id)
        desk.close()


def _drain(
    ledger: Ledger,
    worker: str,
    backend: Any,
    queues: Sequence[str] | None,
    max_runs: int | None,
    include_scheduled: bool,
    on_settled: Callable[[Claimed, Settleable], None] | None,
) -> Drained:
    drained = Drained()
    while True:
        announce.ended(backend, ledger.expire())
        # Here nobody waits for a commit: inside a TestCase there will be none.
        announce.ended(backend, _spread_the_word(ledger).ended)
        if max_runs is not None and drained.runs >= max_runs:
            break
        ledger.promote(ahead=_EVER if include_scheduled else timedelta(0))
        room = BATCH if max_runs is None else min(BATCH, max_runs - drained.runs)
        ledger.beat(worker)
        claims = ledger.claim(worker, queues or _queues(ledger, backend), room)
        if not claims:
            break
        _execute(backend, ledger, claims, drained, on_settled)
    return drained


def _spread_the_word(ledger: Ledger) -> graph.Passed:
    passed = graph.Passed()
    while True:
        # First who may go on, then who must wait: what asks to wait for the former does not wait for itself.
        step = graph.tell_leftovers(ledger)
        step |= graph.arm_leftovers(ledger)
        if not step.done:
            return passed
        passed |= step


def _execute(
    backend: Any,
    ledger: Ledger,
    claims: list[Claimed],
    drained: Drained,
    on_settled: Callable[[Claimed, Settleable], None] | None,
) -> None:
    unsettled = {claim.token: claim for claim in claims}
    current: Claimed | None = None
    beaten = time.monotonic()
    try:
        for claim in claims:
            if time.monotonic() - beaten >= _BEAT_SECONDS:
                beaten = time.monotonic()
                ledger.beat(claim.worker)
            current = claim
            execution = execute(claim, executor="inline", interruptible=True)
            settlement = execution.settlement
            state = None
            if settlement is not None:
                state = settlement.next_state if execution.settled else _settle(backend, ledger, settlement, claim)
            del unsettled[claim.token]
            current = None
            if settlement is None or state is None:
                continue
            drained.outcomes[settlement.outcome] += 1
            drained.states[state] += 1
            announce.settled(backend, claim, settlement, state)
            if on_settled is not None:
                on_settled(claim, settlement)
    except BaseException:
        _drop_unusable(backend.database)
        raise
    finally:
        # Reached with something left only when a person interrupts, or the database is gone.
        if unsettled:
            ledger.settle([_given_back(claim, started=claim is current) for claim in unsettled.values()])


def _drop_unusable(database: str) -> None:
    """Ctrl-C inside a statement leaves a connection in the middle of it: cleaning up needs a fresh one."""
    connection = connections[database]
    if not connection.in_atomic_block:
        connection.close()


def _settle(backend: Any, ledger: Ledger, settlement: Settleable, claim: Claimed) -> State | None:
    """The state the run reached, or None when it was no longer ours to settle."""
    while True:
        settled = ledger.settle([settlement], claim.worker)
        if not settled.busy:
            announce.ended(backend, settled.ended)
            if words := settled.refused.get(claim.token):
                logger.error("The database refuses to settle run %s: %s", claim.id, words)
            return settled.moved.get(claim.token)
        time.sleep(_BUSY_PAUSE_SECONDS)


def _given_back(claim: Claimed, *, started: bool) -> Settlement:
    verdict = policy.Verdict(State.READY)
    if started:
        verdict = policy.after_unfinished(max_losses_of(claim), "")
    return Settlement(
        run_id=claim.id,
        token=claim.token,
        outcome=Outcome.INTERRUPTED if started else Outcome.RETURNED,
        next_state=verdict.state,
        reason=verdict.reason,
        executor="inline",
    )


def _queues(ledger: Ledger, backend: Any) -> list[str]:
    """
    The queues of this backend, and those that no backend declares any more: their runs are claimed
    too, and end with an error that says which queue is missing.
    """
    declared = sorted(backend.queues)
    known: set[str] = set()
    # From the settings: a backend that cannot be imported must not stop the others.
    for other in task_backends.settings.values():
        queues = other.get("QUEUES", [DEFAULT_TASK_QUEUE_NAME])
        if not queues:
            return sorted({*declared, *(ledger.ready_queues() if not declared else ())}) or ["default"]
        known.update(queues)
    return [*declared, *(queue for queue in ledger.ready_queues() if queue not in known)]


def _worker(backend: Any, queues: Sequence[str]) -> WorkerRecord:
    host, pid = socket.gethostname(), os.getpid()
    return WorkerRecord(
        id=f"inline-{host}-{pid}-{secrets.token_hex(4)}",
        name="inline",
        host=host,
        pid=pid,
        version=django_manta.__version__,
        cluster=backend.config.cluster,
        queues=tuple(queues or sorted(backend.queues)),
        runner="inline",
        lease_seconds=LEASE_SECONDS,
    )
