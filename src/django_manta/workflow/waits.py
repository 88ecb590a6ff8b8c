"""What new runs wait for: their edges and gates, and arming them when they exist."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

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

    def __ior__(self, other: "Added") -> "Added":
        self.armed |= other.armed
        self.unarmed += other.unarmed
        self.edges += other.edges
        return self

    def taken(self) -> "Added":
        """All of it, which is then gone from here."""
        taken = replace(self)
        self.armed, self.unarmed, self.edges = set(), [], 0
        return taken


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
        made = graph.enqueue_waiting(ledger, runs[0], gates[0].mode, edges, own=not strange)
        if made is not None:
            [run], (row, is_armed) = runs, made
            return [row], Added({run.id}) if is_armed else Added(unarmed=[run.id], edges=len(edges))
    with transaction.atomic(using=database):
        inserted = ledger.enqueue(runs)
        graph.add(ledger, gates, edges)
        mine = {edge.run for edge in edges} - strange
        armed = graph.arm_own(ledger, mine) if mine else set()
    left = sum(1 for edge in edges if edge.run not in armed)
    return inserted, Added(armed, [gate.run for gate in gates if gate.run not in armed], left)


#: By connection: Django's list of what is to be done after the commit (see own.py), and what is to be armed then, by
#: cluster.
_added: "WeakKeyDictionary[BaseDatabaseWrapper, tuple[list[Any], dict[str, Added]]]" = WeakKeyDictionary()


def arm_after_commit(database: str, cluster: str, added: Added) -> None:
    """
    Count what the runs wait for once they exist for everybody.

    The first that is called after the commit does it for all that its transaction has enqueued; the others, one for
    each enqueue, are there for those whose savepoint was rolled back, or whose test calls some of them only. Who dies
    before that, or cannot reach the database then, leaves it to the caretaker.
    """
    connection = connections[database]
    if own.commits_here(connection):
        hooks, by_cluster = _added.get(connection, (None, {}))
        if hooks is not connection.run_on_commit:
            by_cluster = {}
            _added[connection] = connection.run_on_commit, by_cluster
        waiting = by_cluster.setdefault(cluster, Added())
        waiting |= added
    else:
        waiting = added
    transaction.on_commit(lambda: _arm(database, cluster, waiting.taken()), using=database, robust=True)


def _arm(database: str, cluster: str, added: Added) -> None:
    ids = added.unarmed
    if not (ids or added.armed):
        return
    ledger = Ledger(DjangoSession(database))
    try:
        graph.bring_forward(ledger, added.armed)
        # As many at a time as have ARM_EDGES edges together.
        batch = max(1, min(len(ids), graph.ARM_EDGES * len(ids) // max(added.edges, 1)))
        passed = graph.arm(ledger, ids, new=True, batch=batch)
        if added.armed:
            # What they wait for may have ended in the same transaction, which nobody could be told of before.
            passed |= graph.tell(ledger, graph.heralds_for(ledger, added.armed))
        for queue in passed.queues:
            ring_after_commit(database, cluster, queue)
        if passed.locked > MANY_LOCKED:
            # Much of it may be ready. A worker that looked meanwhile passed it over, and sleeps.
            ring_after_commit(database, cluster, UNKNOWN)
    except DatabaseError:
        logger.warning("Could not count what new runs wait for; the caretaker will.", exc_info=True)
