"""How executions are settled that vanished together with whoever knew of them."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseError

from django_manta.exceptions import TaskNotFound
from django_manta.execution.admission import (
    backend_of,
    max_losses_of,
    own_max_losses,
    resolve,
    resolve_signed,
    skew_seconds,
)
from django_manta.ledger import Claimed, Ledger, Orphan, Settled, Settlement, conflicts
from django_manta.ledger.rows import loss
from django_manta.task import find_loaded

logger = logging.getLogger("django_manta")


def recover(ledger: Ledger, orphans: Sequence[Orphan], *, patiently: bool = False) -> Settled:
    """
    Settle executions as lost.

    How often a run may be lost is what its row says, or else the code. Where this code does not know the task, nothing
    more generous is assumed: the run is lost for good. If ``patiently``, it is first left to workers that may know it.
    """
    missing: set[str] = set()
    budgets = {orphan.token: _max_losses(ledger, orphan, missing) for orphan in orphans}
    if patiently:
        orphans = [each for each in orphans if budgets[each.token] is not None or not _is_left_to_others(each)]
    return ledger.recover_these(orphans, lambda orphan: budgets[orphan.token] or 0)


def _is_left_to_others(orphan: Orphan) -> bool:
    """To a newer release, for a while; or to another project that uses the same tables."""
    try:
        backend = backend_of(orphan.backend)
    except TaskNotFound:
        return True
    if backend.queues and orphan.queue not in backend.queues:
        return True
    return orphan.lost_for is not None and orphan.lost_for < skew_seconds(orphan.backend)


def _max_losses(ledger: Ledger, orphan: Orphan, missing: set[str]) -> int | None:
    """None where this code cannot tell. ``missing``: tasks that were looked for already."""
    given = own_max_losses(orphan.overrides)
    if given is not None:
        return given
    try:
        if find_loaded(orphan.task) is not None:
            config = backend_of(orphan.backend).config
            found = resolve_signed(config, orphan.task, orphan.queue, 0, orphan.backend, "")
            return found.options.max_losses
        if orphan.task not in missing:
            # Nobody has verified the row yet. If it is genuine its module is imported: the next one finds it loaded.
            return next((resolve(run).options.max_losses for run in ledger.fetch([orphan.id], history=False)), None)
    except TaskNotFound:
        missing.add(orphan.task)
    except Exception as error:
        if isinstance(error, DatabaseError) and not conflicts.is_refusal(error):
            raise
        # The row was altered: it must not keep the others from being recovered.
        logger.debug("How often run %s may be lost is not known here.", orphan.id, exc_info=True)
    return None


def lost(claim: Claimed, *, alone: bool, words: str) -> Settlement:
    """The settlement of an execution that we held ourselves."""
    known: dict[str, Any] = {name: getattr(claim, name) for name in _SHARED}
    return loss(Orphan(**known), max_losses_of(claim), alone=alone, words=words)


def orphans_of_ours(ledger: Ledger, executions: Iterable[tuple[UUID, int]], worker: str) -> list[Orphan]:
    """Executions of ``worker`` of which nobody can say where they are: as if it had been lost with them."""
    tokens = dict(executions)
    return [
        Orphan(
            record.id,
            tokens[record.id],
            record.task,
            record.backend,
            record.queue,
            record.overrides,
            record.losses,
            False,
            worker,
            record.attempts,
        )
        for record in ledger.fetch(tokens, history=False)
    ]


_SHARED = ("id", "token", "task", "backend", "queue", "overrides", "losses", "suspect", "worker", "attempts")
