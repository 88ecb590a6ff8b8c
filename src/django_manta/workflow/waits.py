"""What new runs wait for: their edges and gates, and arming them when they exist."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import DatabaseError, transaction

from django_manta import options
from django_manta.enqueue import Call
from django_manta.ledger import DjangoSession, Ledger, NewRun, graph
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


@dataclass(frozen=True, slots=True)
class Added:
    """Runs that wait, and how many edges have to be counted when they exist for everybody."""

    ids: list[UUID]
    unarmed: list[UUID]
    edges: int


def add(
    ledger: Ledger, database: str, calls: Sequence[Call], runs: Sequence[NewRun], encoded: Sequence[Arguments]
) -> Added:
    """
    The gates and edges of those of ``runs`` that need them, in the caller's transaction. Those that wait only for what
    it has enqueued itself are armed, too.
    """
    gates: list[graph.NewGate] = []
    edges: list[graph.Edge] = []
    for call, run, arguments in zip(calls, runs, encoded, strict=True):
        if not (run.waits or _says_when(call)):
            continue
        given = options.given(call.task)
        gates.append(graph.NewGate(run.id, given.get("when", When.ALL_SUCCESSFUL)))
        edges += [graph.Edge(run.id, UUID(on), Role.VALUE) for on in arguments.waits_for]
        edges += [graph.Edge(run.id, on, Role.AFTER) for on in given.get("after", ())]
    graph.add(ledger, gates, edges)
    ids = [gate.run for gate in gates]
    enqueued = own.runs(database)
    strange = {edge.run for edge in edges if edge.on not in enqueued}
    mine = {edge.run for edge in edges} - strange
    armed = graph.arm_own(ledger, mine) if mine else set()
    left = sum(1 for edge in edges if edge.run not in armed)
    return Added(ids, [run_id for run_id in ids if run_id not in armed], left)


def arm_after_commit(database: str, cluster: str, added: Added) -> None:
    """
    Count what the runs wait for once they exist for everybody.

    Who dies before that, or cannot reach the database then, leaves it to the caretaker.
    """
    ids, edges = added.unarmed, added.edges

    def arm() -> None:
        ledger = Ledger(DjangoSession(database))
        try:
            # As many at a time as have ARM_EDGES edges together.
            batch = max(1, min(len(ids), graph.ARM_EDGES * len(ids) // max(edges, 1)))
            armed = set(added.ids) - set(ids)
            graph.bring_forward(ledger, armed)
            passed = graph.arm(ledger, ids, new=True, batch=batch)
            if armed:
                # What they wait for may have ended in the same transaction, which nobody could be told of before.
                passed |= graph.tell(ledger, graph.heralds_for(ledger, armed))
            for queue in passed.queues:
                ring_after_commit(database, cluster, queue)
            if passed.locked > MANY_LOCKED:
                # Much of it may be ready. A worker that looked meanwhile passed it over, and sleeps.
                ring_after_commit(database, cluster, UNKNOWN)
        except DatabaseError:
            logger.warning("Could not count what new runs wait for; the caretaker will.", exc_info=True)

    transaction.on_commit(arm, using=database, robust=True)
