"""
Tells receivers what was settled, after it was.

The executor has sent Django's ``task_finished`` for the ends it decided. Ends that no executor
decided (expired, lost, cancelled on the way) are told here, so that every run's end is told once.
"""

import logging
from collections.abc import Iterable
from itertools import batched
from typing import Any
from uuid import UUID

from django.db import DatabaseError
from django.tasks.signals import task_finished

from django_manta.ledger import Claimed, Ledger, Settleable, conflicts
from django_manta.result import TaskResult, results_of
from django_manta.signals import attempt_finished, run_settled
from django_manta.states import ENDS, State

logger = logging.getLogger("django_manta")


#: So many runs are read at a time.
AT_ONCE = 1_000


def is_heard() -> bool:
    """Whether anybody listens to the ends that executors have told of themselves."""
    return bool(attempt_finished.receivers or run_settled.receivers)


def settled(backend: Any, claim: Claimed, settlement: Settleable, state: State, ledger: Ledger | None = None) -> None:
    """An attempt was settled and left its run in ``state``. ``ledger`` is whose connection to read it by."""
    if attempt_finished.receivers:
        attempt_finished.send_robust(
            sender=type(backend),
            run_id=str(claim.id),
            attempt=claim.attempts,
            outcome=settlement.outcome,
            state=state,
        )
    if state not in ENDS:
        return
    if not settlement.told:
        # No executor decided this end: somebody had cancelled it, its process died, its task was never found.
        _finished(backend, [claim.id], ledger)
    if run_settled.receivers:
        run_settled.send_robust(sender=type(backend), run_id=str(claim.id), state=state)


def ended(backend: Any, run_ids: Iterable[UUID], ledger: Ledger | None = None) -> None:
    """Runs ended and no executor knows of it."""
    for some in batched(run_ids, AT_ONCE):
        for result in _finished(backend, list(some), ledger):
            run_settled.send_robust(sender=type(backend), run_id=result.id, state=result.state)


def _finished(backend: Any, run_ids: list[UUID], ledger: Ledger | None) -> list[TaskResult]:
    results = _results(ledger or backend.ledger, run_ids)
    for result in results:
        task_finished.send_robust(sender=type(backend), task_result=result)
    return results


def _results(ledger: Ledger, run_ids: list[UUID]) -> list[TaskResult]:
    """Of one after the other if not of all: a row that nobody can read must not keep the others from being told."""
    try:
        return results_of(ledger, run_ids)
    except Exception as error:
        if isinstance(error, DatabaseError) and not conflicts.is_refusal(error):
            raise
        if len(run_ids) == 1:
            logger.exception("Could not tell of the end of run %s.", run_ids[0])
            return []
        return [result for run_id in run_ids for result in _results(ledger, [run_id])]
