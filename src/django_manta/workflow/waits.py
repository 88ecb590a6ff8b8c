"""What new runs wait for: their edges and gates, and arming them when they exist."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import batched
from uuid import UUID

from django.db import DatabaseError

from django_manta import options
from django_manta.enqueue import Call
from django_manta.ledger import DjangoSession, Enqueued, Ledger, NewRun, graph
from django_manta.payload import Arguments
from django_manta.ringing import UNKNOWN, ring_after_commit
from django_manta.states import Role, When
from django_manta.workflow import own

logger = logging.getLogger("django_manta")

#: To lock and count so many takes longer than a worker waits before it looks once more.
MANY_LOCKED = 100

#: After a commit so many runs are seen to by one statement each: no more than it brings forward, and hears of.
SEEN_TO_AT_ONCE = 100


def gated(calls: Sequence[Call], runs: Sequence[NewRun]) -> list[UUID]:
    """The runs that need a gate: those that wait, and those that say how they will, if they ask to with Later."""
    return [run.id for call, run in zip(calls, runs, strict=True) if run.waits or _says_when(call)]


def _says_when(call: Call) -> bool:
    return getattr(call.task, "when", options.NOT_GIVEN) is not options.NOT_GIVEN


@dataclass(slots=True)
class Added:
    """Runs that wait: those that are armed already, those that are not, and how many edges these have."""

    armed: set[UUID] = field(default_factory=set)
    unarmed: list[UUID] = field(default_factory=list)
    edges: int = 0


def enqueue(
    database: str, cluster: str, calls: Sequence[Call], runs: Sequence[NewRun], encoded: Sequence[Arguments]
) -> list[Enqueued]:
    """Insert new runs in the caller's transaction, whatever they wait for, and arm them when it has committed."""
    ledger = Ledger(DjangoSession(database))
    if not gated(calls, runs):
        return ledger.enqueue(runs)
    inserted, added = insert(ledger, database, calls, runs, encoded)
    arm_after_commit(database, cluster, added)
    return inserted


def insert(
    ledger: Ledger, database: str, calls: Sequence[Call], runs: Sequence[NewRun], encoded: Sequence[Arguments]
) -> tuple[list[Enqueued], Added]:
    """
    New runs, with the gates and edges of those that need them, in the caller's transaction. Those that wait only for
    what it has enqueued itself are armed, too.
    """
    gates: list[graph.NewGate] = []
    edges: list[graph.Edge] = []
    for call, run, arguments in zip(calls, runs, encoded, strict=True):
        if not (run.waits or _says_when(call)):
            continue
        given = options.given(call.task)
        gates.append(graph.NewGate(run.id, given.get("when", When.ALL_SUCCESSFUL)))
        edges += [graph.Edge(run.id, UUID(on), Role.VALUE) for on in arguments.waits_for]
        edges += [graph.Edge(run.id, on, Role.AFTER) for on in dict.fromkeys(given.get("after", ()))]
    enqueued = own.runs(database)
    strange = {edge.run for edge in edges if edge.on not in enqueued}
    if len(runs) == 1 and runs[0].waits:
        made = graph.enqueue_waiting(ledger, runs[0], gates[0].mode, edges, own=bool(edges) and not strange)
        if made is not None:
            [run], (row, is_armed) = runs, made
            return [row], Added({run.id}) if is_armed else Added(unarmed=[run.id], edges=len(edges))
    with ledger.session.transaction():
        inserted = ledger.enqueue(runs)
        graph.add(ledger, gates, edges)
        mine = {edge.run for edge in edges} - strange
        armed = graph.arm_own(ledger, mine) if mine else set()
    left = sum(1 for edge in edges if edge.run not in armed)
    return inserted, Added(armed, [gate.run for gate in gates if gate.run not in armed], left)


def arm_after_commit(database: str, cluster: str, added: Added) -> Added:
    """
    Count what the runs wait for once they exist for everybody. What is returned may be added to until then.

    What was armed already is seen to by the first hook that is called, for the whole transaction; the others find
    nothing left, unless a savepoint was rolled back, or a test calls some of them only. Who dies before that, or cannot
    reach the database then, leaves it to the caretaker.
    """
    armed = own.armed(database, cluster)
    armed |= added.armed
    added.armed = set()

    def arm(added: Added) -> None:
        if added.unarmed:
            _try(lambda: _arm(database, cluster, added))
        if mine := [*armed, *added.armed]:
            armed.clear()
            added.armed.clear()
            _try(lambda: _see_to(database, cluster, mine))

    last = own.after_commit(database, (Added, cluster), arm, added)
    if last is not added:
        last.unarmed += added.unarmed
        last.edges += added.edges
    return last


def _arm(database: str, cluster: str, added: Added) -> None:
    ids = added.unarmed
    # As many at a time as have ARM_EDGES edges together.
    batch = max(1, min(len(ids), graph.ARM_EDGES * len(ids) // max(added.edges, 1)))
    passed = graph.arm(Ledger(DjangoSession(database)), ids, new=True, batch=batch)
    _ring(database, cluster, passed)


def _see_to(database: str, cluster: str, armed: Sequence[UUID]) -> None:
    """Runs that were armed before they existed for everybody."""
    ledger = Ledger(DjangoSession(database))
    graph.bring_forward(ledger, armed, at_once=SEEN_TO_AT_ONCE)
    for some in batched(armed, SEEN_TO_AT_ONCE):
        # What they wait for may have ended in the same transaction, which nobody could be told of before.
        _ring(database, cluster, graph.tell(ledger, graph.heralds_for(ledger, some)))


def _ring(database: str, cluster: str, passed: graph.Passed) -> None:
    for queue in passed.queues:
        ring_after_commit(database, cluster, queue)
    if passed.locked > MANY_LOCKED or passed.untold:
        # Much of it may be ready. A worker that looked meanwhile passed it over, and sleeps.
        ring_after_commit(database, cluster, UNKNOWN)


def _try(step: Callable[[], None]) -> None:
    try:
        step()
    except DatabaseError:
        logger.warning("Could not count what new runs wait for; the caretaker will.", exc_info=True)
