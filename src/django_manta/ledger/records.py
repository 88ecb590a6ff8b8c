"""
What goes into the ledger and what comes out of it: plain records, no models.

Nobody changes a record. Those that are made by the thousand are not frozen all the same: a frozen
dataclass takes three times as long to make.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from json import loads
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from django_manta.payload import decode
from django_manta.states import AFTER_OUTCOME, Outcome, State


@dataclass(slots=True, kw_only=True)
class NewRun:
    """What an enqueue asks for. Moments are absolute, or counted from the database's now."""

    id: UUID
    task: str
    backend: str
    queue: str
    priority: int
    arguments: str
    overrides: str
    signature: str
    metadata: str
    deadline: datetime | timedelta
    run_after: datetime | timedelta | None = None
    expires: datetime | timedelta | None = None
    hold: bool = False
    #: Where in the arguments the results of which runs are filled in, as JSON text.
    references: str | None = None
    #: It waits for other runs.
    waits: bool = False
    workflow: UUID | None = None
    #: When it was enqueued, by the database's clock, if it is inserted later than that.
    enqueued: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Enqueued:
    """What the database made of a new run."""

    id: UUID
    state: State
    enqueued_at: datetime
    run_after: datetime | None
    deadline: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One ended try at a run, as told by ``result.history``."""

    token: int
    number: int
    outcome: Outcome
    worker: str
    executor: str
    started_at: datetime
    finished_at: datetime
    error_class: str
    error_message: str
    traceback: str
    output: str
    log_ref: str
    peak_memory: int | None


class Claimed(NamedTuple):
    """
    A run that now belongs to a worker: all that an executor needs.

    The fields are in the order of the columns that a claim returns. A tuple, because thousands a second
    are made from a row, sent to a child, and made again there; and for the same reason its moments are numbers
    (see moments.py).
    """

    id: UUID
    token: int
    task: str
    backend: str
    queue: str
    priority: int
    arguments: str
    overrides: str
    signature: str
    metadata: str
    enqueued_at: int
    run_after: int | None
    deadline: int
    expires_at: int | None
    started_at: int
    last_attempted_at: int
    attempts: int
    failures: int
    crashes: int
    losses: int
    worker: str
    #: For how many seconds this code's refusals of the run have gone on, by the database's clock.
    refused_for: float | None
    #: It was there when an executor died: it travels alone.
    suspect: bool = False
    references: str | None = None
    #: The workflow that it belongs to, and what it enqueues with it.
    workflow: str | None = None
    #: Somebody was waiting for it when it was claimed.
    dependents: bool = False
    #: Ended attempts of the run; empty for a first attempt.
    history: tuple[AttemptRecord, ...] = ()
    #: What ``references`` refer to, by run id, unless it is too much to carry along.
    values: Mapping[str, "Value"] = MappingProxyType({})
    #: How often the run asked to be called again.
    laters: int = 0


class Value(NamedTuple):
    """The value of a run: its own, or those of the runs that it delegated to."""

    result: str | None
    signature: str
    #: The delegate as JSON text: a run id, or a list of them.
    delegate: str | None = None


@dataclass(slots=True, kw_only=True)
class Settlement:
    """How one execution ended, and where its run goes unless somebody asked to cancel it."""

    run_id: UUID
    token: int
    outcome: Outcome
    next_state: State
    #: Seconds until the run is due again, with ``next_state`` SCHEDULED.
    delay: float | None = None
    #: How long the attempt executed, by a monotonic clock.
    duration: float = 0.0
    result: str | None = None
    result_signature: str = ""
    #: The run, or runs, whose results are its own, as JSON text.
    delegate: str | None = None
    #: The runs it waits for from now on (with DEFERRED), and whether it is called whatever they do.
    after: tuple[UUID, ...] = ()
    at_once: bool = False
    #: Why the run stands where it stands, for people.
    reason: str = ""
    executor: str = ""
    error_class: str = ""
    error_message: str = ""
    traceback: str = ""
    output: str = ""
    log_ref: str = ""
    peak_memory: int | None = None
    #: The code could not verify or find the task: starts (or goes on with) the skew period.
    refused: bool = False
    #: Its executor died in company: not charged, and it travels alone next time.
    suspect: bool = False
    #: The executor has told Django's receivers of the end; otherwise whoever settles does.
    told: bool = False

    def __post_init__(self) -> None:
        if self.next_state not in AFTER_OUTCOME.get(self.outcome, frozenset()):
            raise ValueError(f"An attempt that ended {self.outcome} cannot leave its run {self.next_state}.")
        if self.next_state is not State.WAITING and (self.next_state is State.SCHEDULED) != (self.delay is not None):
            raise ValueError("A delay goes with SCHEDULED, and SCHEDULED with a delay.")

    @property
    def execution(self) -> tuple[UUID, int]:
        """What is settled: the run, and the token that names this execution of it."""
        return self.run_id, self.token


@dataclass(slots=True)
class Written:
    """A settlement that its executor has written down already, and what a worker wants to know of it."""

    run_id: UUID
    token: int
    outcome: Outcome
    next_state: State
    duration: float
    told: bool
    #: The row, as JSON.
    text: str
    #: It succeeded, and there is nothing more to be said: see settle_well.sql.
    is_well: bool = False
    #: See Settlement.
    delegate: str | None = None
    after: tuple[UUID, ...] = ()
    at_once: bool = False

    @property
    def execution(self) -> tuple[UUID, int]:
        return self.run_id, self.token

    @property
    def traceback(self) -> str:
        kept: str = loads(self.text).get("traceback", "")
        return kept


type Settleable = Settlement | Written


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a batch of settlements."""

    #: State of each run that moved, by token.
    moved: dict[int, State] = field(default_factory=dict)
    #: Executions that were no longer theirs to settle: nothing was changed.
    not_mine: frozenset[int] = frozenset()
    #: Executions whose rows somebody held locked: settle them again.
    busy: frozenset[int] = frozenset()
    #: Runs whose dependents are still to be told, because the caller's transaction is open.
    heralds: tuple[UUID, ...] = ()
    #: Queues in which something became ready that was not claimed along, and runs that ended, because of what was
    #: settled.
    ready: frozenset[str] = frozenset()
    ended: tuple[UUID, ...] = ()
    #: What was claimed in the same transaction, if anything could be.
    claims: "list[Claimed] | None" = None
    #: What the database refuses to settle at all, and with which words: try it again later, without the others.
    refused: Mapping[int, str] = MappingProxyType({})
    #: Whether some who wait could not be told, because somebody holds them: for the next look.
    untold: bool = False

    def __or__(self, other: "Settled") -> "Settled":
        return Settled(
            self.moved | other.moved,
            self.not_mine | other.not_mine,
            self.busy | other.busy,
            self.heralds + other.heralds,
            self.ready | other.ready,
            self.ended + other.ended,
            self.claims if other.claims is None else other.claims,
            {**self.refused, **other.refused},
            self.untold or other.untold,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as it stands, with the history of its ended attempts."""

    id: UUID
    task: str
    backend: str
    queue: str
    priority: int
    state: State
    arguments: str
    overrides: str
    metadata: str
    progress: str | None
    result: str | None
    result_signature: str
    reason: str
    enqueued_at: datetime
    run_after: datetime | None
    due_at: datetime | None
    deadline: datetime
    expires_at: datetime | None
    started_at: datetime | None
    last_attempted_at: datetime | None
    finished_at: datetime | None
    worker: str
    token: int | None
    attempts: int
    failures: int
    crashes: int
    losses: int
    signature: str
    references: str | None = None
    delegate: str | None = None
    workflow: UUID | None = None
    history: tuple[AttemptRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Orphan:
    """A run whose worker's lease was lost."""

    id: UUID
    token: int
    task: str
    backend: str
    queue: str
    overrides: str
    losses: int
    suspect: bool
    worker: str
    attempts: int
    #: How many executions its worker had under way at most; 0 if the worker's row is gone.
    slots: int = 0
    #: The foremen on Ray to which its worker may have given it: names and incarnations, as JSON text.
    foremen: str = "[]"
    #: For how many seconds its worker has been marked lost; None if the worker's row is gone.
    lost_for: float | None = None
    #: The Ray that its worker spoke to; empty if it spoke to none, or was of a release that did not say.
    ray: str = ""


def read_foremen(stored: str) -> list[tuple[str, str]]:
    """The names and incarnations in a worker's row. None in one that was altered to hold no such list."""
    try:
        return [(str(name), str(incarnation)) for name, incarnation in decode(stored)]
    except (ValueError, TypeError):
        return []


class RayPlace(NamedTuple):
    """The Ray that a worker gives runs to."""

    #: Ray's session and the namespace there; empty as long as nobody has answered. Started anew, Ray has another one,
    #: unless it has kept what it knows (its GCS is fault tolerant).
    ray: str
    #: Where the settings say that it is, and the namespace.
    address: str


@dataclass(frozen=True, slots=True)
class Finding:
    """An invariant that a row breaks. ``fsck`` names the check; ``repaired`` says what was done."""

    check: str
    run_id: UUID | None
    detail: str
    repaired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A worker's lease as it registers."""

    id: str
    name: str
    host: str
    pid: int
    version: str
    cluster: str
    queues: tuple[str, ...]
    runner: str
    #: How long its lease holds without a heartbeat.
    lease_seconds: float = 30.0
    #: How many executions it has under way at most.
    slots: int = 1


def plain(record: Any) -> dict[str, Any]:
    """The fields of a slotted record by name, without copying their values."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
