"""Workers as their leases show them, by the database's clock."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_manta import payload
from django_manta.backend import MantaBackend
from django_manta.commands.printing import runs
from django_manta.ledger import house
from django_manta.models import Worker
from django_manta.worker import troubles


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A worker, and how long ago it last renewed its lease."""

    id: str
    name: str
    host: str
    pid: int
    version: str
    cluster: str
    runner: str
    queues: list[str]
    #: How many executions it has under way at most.
    slots: int
    started_at: datetime
    seen_seconds_ago: float
    #: Its lease is in force and fresh.
    alive: bool
    #: Somebody declared it lost: what it held is given to others.
    lost: bool
    stopping: bool
    #: What keeps it, or runs that it looks after, from going on (see django_manta.worker.troubles).
    troubles: dict[str, str]

    @property
    def obstacle(self) -> str | None:
        """Why it claims nothing, if it does not."""
        return self.troubles.get(troubles.CLAIMS_NOTHING) if self.alive else None


def seen(backend: MantaBackend) -> list[Seen]:
    """All workers that have a row, oldest first."""
    now = house.clock(backend.ledger)
    lease = backend.config.lease_seconds
    return [
        _seen(worker, (now - worker.seen_at).total_seconds(), lease)
        for worker in Worker.objects.using(backend.database).order_by("started_at", "pk")
    ]


def _seen(worker: Worker, ago: float, lease: float) -> Seen:
    return Seen(
        id=worker.pk,
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        version=worker.version,
        cluster=worker.cluster,
        runner=worker.runner,
        queues=_queues(worker.queues),
        slots=worker.slots,
        started_at=worker.started_at,
        seen_seconds_ago=round(ago, 3),
        alive=worker.lost_at is None and ago <= lease,
        lost=worker.lost_at is not None,
        stopping=worker.stopping,
        troubles=_troubles(worker.troubles),
    )


def _queues(stored: Any) -> list[str]:
    """Empty where the row was altered and holds no list of names: the other workers must still be shown."""
    return [each for each in stored if isinstance(each, str)] if isinstance(stored, list) else []


def _troubles(stored: str) -> dict[str, str]:
    """The same."""
    try:
        told = payload.decode(stored)
    except ValueError:
        return {}
    return {name: str(words) for name, words in told.items()} if isinstance(told, dict) else {}


def needed(backend: MantaBackend) -> dict[str, tuple[str, str]]:
    """Lost workers whose runs only a worker of the same Ray can take over, and none lives; each in words."""
    return {each.worker: _needed(each) for each in house.stranded(backend.ledger)}


def _needed(left: house.Stranded) -> tuple[str, str]:
    where = f"on the Ray at {left.address} ({left.ray}), to which no living worker speaks"
    start = f"Start one with that RAY: manage.py manta worker --runner {left.runner}."
    give_up = f"If that Ray is gone for good: manage.py manta recover {left.worker}"
    return f"{runs(left.runs)} of the lost worker {left.worker} {where}", f"{start} {give_up}"


def waiting_for_a_foreman(workers: list[Seen], lost: str) -> str | None:
    """Why what this lost worker had is not taken over yet, as a worker says that would do it."""
    key = troubles.of_lost_worker(lost)
    return next((worker.troubles[key] for worker in workers if worker.alive and key in worker.troubles), None)


def claiming(workers: list[Seen]) -> set[str]:
    """The queues from which somebody claims."""
    return {queue for worker in workers if worker.alive and not worker.stopping for queue in worker.queues}
