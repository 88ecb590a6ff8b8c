"""What a worker is started with."""

from dataclasses import dataclass, field

from django_manta.execution.runners.processes import Recycle
from django_manta.worker.dispatch import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a worker is started with."""

    backend: str = "default"
    queues: tuple[str, ...] = ()
    exclude_queues: tuple[str, ...] = ()
    runner: str = "processes"
    processes: int = 2
    reserve: tuple[Tier, ...] = ()
    burst: bool = False
    max_runs: int | None = None
    stop_timeout: float = 30.0
    lease_seconds: float = 30.0
    async_slots: int = 50
    recycle: Recycle = field(default_factory=Recycle)
    name: str = ""
