"""How executions are settled that vanished together with whoever knew of them."""

from typing import Any

from django_manta.execution.admission import backend_of, resolve
from django_manta.ledger import Claimed, Orphan, Settlement
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


_SHARED = ("id", "token", "task", "backend", "queue", "overrides", "losses", "suspect", "worker", "attempts")
