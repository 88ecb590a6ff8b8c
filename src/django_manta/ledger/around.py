"""
What stands around a run: what it waits for, who waits for it, who is claimed before it.

For people who look, so every function reads a bounded number of rows and takes no lock.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django_manta.ledger.book import Ledger
from django_manta.ledger.records import RunRecord
from django_manta.states import Role, State, When, read_role, read_state, read_when

#: Edges that are read for each run of a picture, at most and on average.
EDGES_PER_RUN = 20


@dataclass(frozen=True, slots=True)
class Link:
    """``run`` waits, or waited, for ``on``."""

    run: UUID
    on: UUID
    role: Role
    #: The gate of ``run`` has counted that ``on`` ended, and that it ended well.
    told: bool
    met: bool


@dataclass(frozen=True, slots=True)
class GateSeen:
    """How a run waits: for all or any, and whether what it waits for has been counted yet."""

    mode: When
    armed: bool
    made_at: datetime
    laters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stance:
    """A run as those around it see it."""

    id: UUID
    task: str
    queue: str
    state: State
    reason: str
    enqueued_at: datetime
    started_at: datetime | None
    last_attempted_at: datetime | None
    finished_at: datetime | None
    refused_at: datetime | None
    suspect: bool
    #: Its value is that of others.
    delegates: bool
    #: The name of a promise, or None.
    promise: str | None
    gate: GateSeen | None


@dataclass(slots=True)
class Surroundings:
    """A piece of the graph."""

    stances: dict[UUID, Stance] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    #: There is more of it.
    cut: bool = False


def surroundings(ledger: Ledger, ids: Sequence[UUID], limit: int) -> Surroundings:
    """
    The runs, all that comes after them, and all that any of these waits for: the nearest ``limit`` of them.

    One statement for each step away from where it begins.
    """
    #: Whether what comes after a run belongs to the picture, by run.
    known = dict.fromkeys(ids[:limit], True)
    links: dict[tuple[UUID, UUID, Role], Link] = {}
    cut = len(ids) > limit
    most = limit * EDGES_PER_RUN
    frontier = list(known)
    while frontier:
        up, down = set(frontier), {each for each in frontier if known[each]}
        step = neighbours(ledger, up, down, most)
        cut = cut or most <= max(sum(link.run in up for link in step), sum(link.on in down for link in step))
        frontier = []
        for link in step:
            links.setdefault((link.run, link.on, link.role), link)
            for far, onwards in _ends(link, known):
                if far not in known and len(known) >= limit:
                    cut = True
                elif far not in known or (onwards and not known[far]):
                    known[far] = onwards
                    frontier.append(far)
    inside = [link for link in links.values() if link.run in known and link.on in known]
    found = stances(ledger, known)
    # A run that is gone is drawn as little as one that never was.
    return Surroundings(found, [link for link in inside if link.run in found and link.on in found], cut)


def _ends(link: Link, known: dict[UUID, bool]) -> Iterator[tuple[UUID, bool]]:
    """The runs that an edge leads to from known ones, and whether what comes after them is to be known, too."""
    if link.run in known:
        yield link.on, False
    if known.get(link.on, False):
        yield link.run, True


def neighbours(ledger: Ledger, up: Iterable[UUID], down: Iterable[UUID], limit: int) -> list[Link]:
    """The edges to what ``up`` wait for and to who waits for ``down``, at most ``limit`` of each."""
    params = {"up": _listed(ledger, up), "down": _listed(ledger, down), "limit": limit}
    return [_link(ledger, row) for row in ledger.session.rows("neighbours", params)]


def preconditions(ledger: Ledger, run_id: UUID, limit: int, *, unfinished_first: bool = True) -> list[Link]:
    """What a run waits for: what has not ended, what ended badly (or these first), then what ended well."""
    params = {"id": run_id.hex, "limit": limit, "unfinished": 0 if unfinished_first else 2}
    rows = ledger.session.rows("preconditions", params)
    return [_link(ledger, row) for row in rows]


def dependents(ledger: Ledger, run_id: UUID, limit: int) -> list[Link]:
    """Who waits for a run."""
    return [_link(ledger, row) for row in ledger.session.rows("dependents", {"id": run_id.hex, "limit": limit})]


def count_preconditions(ledger: Ledger, run_id: UUID) -> dict[tuple[Role, State | None], int]:
    """How many of what a run waits for are in each state; None: they are gone."""
    rows = ledger.session.rows("count_preconditions", {"id": run_id.hex})
    return {(read_role(role), None if state is None else read_state(state)): runs for role, state, runs in rows}


def stances(ledger: Ledger, ids: Iterable[UUID]) -> dict[UUID, Stance]:
    """The runs that exist among ``ids``, in that order."""
    ids = list(ids)
    found = {}
    for row in ledger.session.rows("stances", {"ids": _listed(ledger, ids)}):
        stance = _stance(ledger, row)
        found[stance.id] = stance
    return {run_id: found[run_id] for run_id in ids if run_id in found}


def ahead(ledger: Ledger, run: RunRecord, limit: int) -> int:
    """How many ready runs of its queue are claimed before ``run``, at most ``limit``."""
    params = {
        "queue": run.queue,
        "priority": run.priority,
        "deadline": ledger.dialect.moment(run.deadline),
        "id": run.id.hex,
        "limit": limit,
    }
    [[count]] = ledger.session.rows("ahead", params)
    return int(count)


def _link(ledger: Ledger, row: tuple[Any, ...]) -> Link:
    run_id, on_id, role, told, met = row
    return Link(ledger.dialect.read_id(run_id), ledger.dialect.read_id(on_id), read_role(role), bool(told), bool(met))


def _stance(ledger: Ledger, row: tuple[Any, ...]) -> Stance:
    run_id, task, queue, state, reason, *moments, suspect, delegates, promise, mode, armed, made_at, laters = row
    names = ("enqueued_at", "started_at", "last_attempted_at", "finished_at", "refused_at")
    read: dict[str, Any] = {
        name: None if value is None else ledger.dialect.read_moment(value)
        for name, value in zip(names, moments, strict=True)
    }
    gate = None
    if mode is not None:
        gate = GateSeen(read_when(mode), bool(armed), ledger.dialect.read_moment(made_at), laters)
    return Stance(
        id=ledger.dialect.read_id(run_id),
        task=task,
        queue=queue,
        state=read_state(state),
        reason=reason,
        suspect=bool(suspect),
        delegates=bool(delegates),
        promise=promise,
        gate=gate,
        **read,
    )


def _listed(ledger: Ledger, ids: Iterable[UUID]) -> Any:
    return ledger.dialect.listing([run_id.hex for run_id in ids])
