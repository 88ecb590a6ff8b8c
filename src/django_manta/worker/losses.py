"""How executions are settled that vanished together with whoever knew of them."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django_manta.execution.admission import backend_of, resolve
from django_manta.ledger import Claimed, Ledger, Orphan, Settlement
from django_manta.ledger.rows import loss
from django_manta.options import OPTIONS


def max_losses_of(orphan: Orphan) -> int:
    """As the code says now, or as it was given to the run."""
    try:
        config = backend_of(orphan.backend).config
        resolved = resolve(config, orphan.task, orphan.queue, 0, orphan.backend, orphan.overrides)
    except Exception:
        # The task is gone, or the row was altered: it must not keep the others from being recovered.
        allowed: int = OPTIONS["max_losses"].default
        return allowed
    return resolved.options.max_losses


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
