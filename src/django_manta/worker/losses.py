"""How executions are settled that vanished together with whoever knew of them."""

import logging
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django_manta import payload
from django_manta.execution.admission import backend_of, resolve_signed
from django_manta.ledger import Claimed, Ledger, Orphan, Settlement
from django_manta.ledger.rows import loss
from django_manta.options import OPTIONS
from django_manta.task import find_loaded

logger = logging.getLogger("django_manta")


def max_losses_of(orphan: Orphan) -> int:
    """
    As it was given to the run, or as the code says now.

    Nobody has verified the row, so nothing is imported that it names. What it says of its own losses may be believed:
    a run that is lost too late is verified before it is executed.
    """
    try:
        given = payload.decode(orphan.overrides).get("max_losses") if orphan.overrides else None
        if isinstance(given, int):
            return given
        if find_loaded(orphan.task) is not None:
            config = backend_of(orphan.backend).config
            found = resolve_signed(config, orphan.task, orphan.queue, 0, orphan.backend, "")
            return found.options.max_losses
    except Exception:
        # The row was altered: it must not keep the others from being recovered.
        logger.warning("The options of run %s cannot be read.", orphan.id, exc_info=True)
    allowed: int = OPTIONS["max_losses"].default
    return allowed


def lost(claim: Claimed, *, alone: bool, words: str) -> Settlement:
    """The settlement of an execution that we held ourselves."""
    known: dict[str, Any] = {name: getattr(claim, name) for name in _SHARED}
    orphan = Orphan(**known)
    return loss(orphan, max_losses_of(orphan), alone=alone, words=words)


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
