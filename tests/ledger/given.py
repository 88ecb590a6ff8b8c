"""What the tests of the ledger start from: runs, workers, settlements, and a way round the ledger."""

from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import UUID

from django_manta.ids import new_run_id
from django_manta.ledger import Claimed, Ledger, NewRun, PostgresSession, RunRecord, Settlement, WorkerRecord, graph
from django_manta.states import AFTER_OUTCOME, OWNED, Outcome, Role, State, When

HOUR = timedelta(hours=1)

#: Every (outcome, next state) that a settlement may ask for.
ASKED = [(outcome, state) for outcome in Outcome for state in sorted(AFTER_OUTCOME.get(outcome, ()))]


def new_run(queue: str = "default", **changes: Any) -> NewRun:
    asked: dict[str, Any] = {
        "id": new_run_id(),
        "task": "tests.app.tasks.add",
        "backend": "default",
        "queue": queue,
        "priority": 0,
        "arguments": "[[1,2],{}]",
        "overrides": "",
        "signature": "signed",
        "metadata": "{}",
        "deadline": timedelta(days=7),
    }
    return NewRun(**asked | changes)


def enqueue(ledger: Ledger, count: int = 1, queue: str = "default", **changes: Any) -> list[UUID]:
    """Ids of new runs, in the order they were enqueued."""
    return [one.id for one in ledger.enqueue([new_run(queue, **changes) for _ in range(count)])]


def dependent(ledger: Ledger, *on: UUID, when: When = When.ALL_SUCCESSFUL, **changes: Any) -> UUID:
    """A new run that waits for others, counted."""
    [run_id] = enqueue(ledger, waits=True, **changes)
    graph.add(ledger, [graph.NewGate(run_id, when)], [graph.Edge(run_id, each, Role.AFTER) for each in on])
    graph.arm(ledger, [run_id])
    return run_id


def claimed(ledger: Ledger, count: int = 1, worker: str = "worker", **changes: Any) -> list[Claimed]:
    """New runs that ``worker`` has just claimed. Nothing else must be before them."""
    ids = enqueue(ledger, count, **changes)
    claims = ledger.claim(worker, [changes.get("queue", "default")], count)
    assert {claim.id for claim in claims} == set(ids)
    return claims


#: What everything has that went well.
WELL: dict[str, Any] = {"result": "null", "result_signature": "signed", "executor": "host:1"}


def settlement(
    claim: Claimed,
    outcome: Outcome = Outcome.SUCCESSFUL,
    next_state: State = State.SUCCESSFUL,
    **changes: Any,
) -> Settlement:
    if next_state is State.SCHEDULED:
        changes.setdefault("delay", 3600.0)
    return Settlement(run_id=claim.id, token=claim.token, outcome=outcome, next_state=next_state, **changes)


def worker_record(worker: str = "worker", **changes: Any) -> WorkerRecord:
    record: dict[str, Any] = {
        "id": worker,
        "name": "somebody",
        "host": "here",
        "pid": 1,
        "version": "0.1.0",
        "cluster": "default",
        "queues": ("default",),
        "runner": "inline",
    }
    return WorkerRecord(**record | changes)


def the(ledger: Ledger, run_id: UUID) -> RunRecord:
    """The run as it stands."""
    [record] = ledger.fetch([run_id])
    return record


def state_of(ledger: Ledger, run_id: UUID) -> State:
    return the(ledger, run_id).state


def lose(ledger: Ledger, worker: str, **changes: Any) -> None:
    """Register ``worker`` and mark its lease lost."""
    assert ledger.mark_lost(worker, ledger.register(worker_record(worker, **changes)))


def sql(ledger: Ledger, statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Speak SQL behind the ledger's back, through its own connection."""
    if isinstance(ledger.session, PostgresSession):
        cursor = ledger.session.connection.execute(statement, params)
        return cursor.fetchall() if cursor.description else []
    with closing(ledger.session.connection.cursor()) as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


def run_in_state(ledger: Ledger, state: State) -> UUID:
    """A run that stands in ``state``, also in those that no statement of the ledger leads to yet."""
    if state in OWNED or state is State.SUCCESSFUL:
        [claim] = claimed(ledger, priority=100)
        if state is State.CANCELLING:
            ledger.cancel([claim.id])
        elif state is State.SUCCESSFUL:
            ledger.settle([settlement(claim)])
        return claim.id
    [run_id] = enqueue(ledger)
    if state in (State.HELD, State.CANCELLED):
        ledger.hold([run_id]) if state is State.HELD else ledger.cancel([run_id])
    elif state is not State.READY:
        finished = "NULL" if state in (State.SCHEDULED, State.WAITING) else "enqueued_at"
        due = "deadline" if state is State.SCHEDULED else "NULL"
        sql(
            ledger,
            f"UPDATE manta_run SET state = %s, finished_at = {finished}, due_at = {due} WHERE id = %s",
            [state.value, run_id.hex],
        )
    assert state_of(ledger, run_id) is state
    return run_id
