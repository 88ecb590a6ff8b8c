"""Rows of every kind to alter, each with the rows around it; and good runs, each with the end that it must come to."""

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.tasks import task_backends

from chaos import tasks
from chaos.row_values import TABLES, Column
from django_manta import promise, resolve, workflow
from django_manta.ids import new_run_id
from django_manta.ledger import Ledger, Settlement, WorkerRecord
from django_manta.states import Outcome, State

#: What is claimed by hand is enqueued here, where nothing else is, and of which no worker takes anything.
QUEUE = "by-hand"

#: How long the lease of a worker lasts that exists in the ledger only.
LONG_SECONDS, SHORT_SECONDS = 600.0, 2.0

type Key = str | int


class Scenes:
    """Makes rows, by the ledger's own verbs, as long as no worker is there."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._seal: Any = task_backends["default"].seal  # type: ignore[attr-defined]
        self._number = 0
        self.living = self.worker(LONG_SECONDS)
        self.lost = self.worker(LONG_SECONDS)
        self.gone = self.worker(LONG_SECONDS)

    def number(self) -> int:
        self._number += 1
        return self._number

    # -- by hand ---------------------------------------------------------------------------------

    def worker(self, lease_seconds: float, runner: str = "processes") -> str:
        worker = f"hand-{new_run_id()}"
        record = WorkerRecord(
            id=worker,
            name="hand",
            host="here",
            pid=0,
            version="",
            cluster="default",
            queues=(QUEUE,),
            runner=runner,
            lease_seconds=lease_seconds,
            slots=1_000,
        )
        self.ledger.register(record)
        return worker

    def claimed(self, worker: str, **options: Any) -> tuple[UUID, int]:
        """A run and the token under which ``worker`` has it."""
        result = tasks.trial.using(queue_name=QUEUE, **options).enqueue(self.number())
        [claim] = self.ledger.claim(worker, [QUEUE], 1)
        assert str(claim.id) == result.id
        with connection.cursor() as cursor:
            cursor.execute("UPDATE manta_run SET queue = 'default' WHERE id = %s", [_key(claim.id)])
        return claim.id, claim.token

    def settle(self, execution: tuple[UUID, int], outcome: Outcome, state: State, **settlement: Any) -> UUID:
        run_id, token = execution
        if outcome is Outcome.SUCCESSFUL:
            settlement |= {"result": "5", "result_signature": self._seal.sign_result(str(run_id), "5")}
        made = Settlement(run_id=run_id, token=token, outcome=outcome, next_state=state, **settlement)
        self.ledger.settle([made], self.living)
        return run_id

    def failed(self) -> UUID:
        execution = self.claimed(self.living, max_attempts=1)
        return self.settle(execution, Outcome.FAILED, State.FAILED, error_class="builtins.ValueError")

    def tried(self) -> UUID:
        """It failed once, and is ready again."""
        return self.settle(self.claimed(self.living), Outcome.FAILED, State.READY, error_class="builtins.ValueError")

    def succeeded(self) -> UUID:
        return self.settle(self.claimed(self.living), Outcome.SUCCESSFUL, State.SUCCESSFUL)

    def deferred(self) -> UUID:
        other = UUID(self.held())
        return self.settle(self.claimed(self.living), Outcome.DEFERRED, State.WAITING, after=(other,))

    def delegating(self, to: UUID) -> UUID:
        execution = self.claimed(self.living)
        delegate = json.dumps(str(to))
        signature = self._seal.sign_delegate(str(execution[0]), delegate)
        return self.settle(
            execution, Outcome.DELEGATED, State.WAITING, delegate=delegate, result_signature=signature, after=(to,)
        )

    def held(self) -> str:
        return str(tasks.trial.using(hold=True).enqueue(self.number()).id)

    def ended_untold(self) -> UUID:
        """It was cancelled in a transaction: its dependent has not been told."""
        unwanted = tasks.trial.enqueue(self.number())
        tasks.trial.using(after=[unwanted], when="all_finished").enqueue(self.number())
        with transaction.atomic():
            unwanted.cancel()
        return UUID(unwanted.id)

    def forsake(self) -> None:
        """The workers that exist in the ledger only are lost or gone; those with a short lease will be."""
        with connection.cursor() as cursor:
            cursor.execute("UPDATE manta_worker SET lost_at = seen_at WHERE id = %s", [self.lost])
            cursor.execute("DELETE FROM manta_worker WHERE id = %s", [self.gone])


def _result(run_id: UUID) -> Any:
    from django_manta.result import get_result

    return get_result(run_id)


def _with_dependents(made: Scenes, run_id: UUID) -> UUID:
    tasks.double.enqueue(_result(run_id))
    tasks.trial.using(after=[_result(run_id)], when="all_finished").enqueue(made.number())
    return run_id


# -- runs --------------------------------------------------------------------------------------------


def _waiting(made: Scenes, **options: Any) -> str:
    return str(tasks.trial.using(after=[tasks.trial.enqueue(made.number())], **options).enqueue(made.number()).id)


def _delegated(made: Scenes) -> UUID:
    """It is SUCCESSFUL with the value of another."""
    other = made.succeeded()
    return _with_dependents(made, made.delegating(other))


def _in_a_workflow(made: Scenes) -> str:
    with workflow("storm", unique_key=str(new_run_id())):
        return str(tasks.trial.enqueue(made.number()).id)


def _cancelling(made: Scenes) -> UUID:
    run_id, _ = made.claimed(made.lost)
    made.ledger.cancel([run_id])
    return run_id


def _unarmed(made: Scenes) -> str:
    """It was released in a transaction: nobody has counted what it waits for."""
    held = tasks.trial.using(after=[_result(made.succeeded())], hold=True).enqueue(made.number())
    with transaction.atomic():
        made.ledger.release([UUID(held.id)])
    return str(held.id)


def _upstream_failed(made: Scenes) -> str:
    return str(tasks.trial.using(after=[_result(made.failed())]).enqueue(made.number()).id)


def _kept(made: Scenes) -> UUID:
    promised = promise()
    tasks.double.enqueue(promised)
    resolve(promised.id, 5)
    return UUID(promised.id)


def _awaited(made: Scenes) -> UUID:
    promised = promise(f"promise {new_run_id()}")
    tasks.double.enqueue(promised)
    return UUID(promised.id)


RUNS: dict[str, Callable[[Scenes], UUID | str]] = {
    "ready run": lambda made: tasks.trial.enqueue(made.number()).id,
    "ready run with overrides": lambda made: tasks.stumble.using(max_attempts=3, backoff=0).enqueue(1).id,
    "ready run that refers to another": lambda made: tasks.double.enqueue(_result(made.succeeded())).id,
    "run that expires": lambda made: tasks.trial.using(expires=timedelta(hours=1)).enqueue(made.number()).id,
    "run that is due": lambda made: tasks.trial.using(run_after=timedelta(milliseconds=1)).enqueue(1).id,
    "run that is due later": lambda made: tasks.trial.using(run_after=timedelta(hours=1)).enqueue(1).id,
    "waiting run": _waiting,
    "waiting run that is not counted": _unarmed,
    "run that waits for any": lambda made: _waiting(made, when="any_finished"),
    "held run": lambda made: made.held(),
    "run of a lost worker": lambda made: made.claimed(made.lost)[0],
    "run of a worker that is gone": lambda made: made.claimed(made.gone)[0],
    "run of a living worker": lambda made: made.claimed(made.living)[0],
    "cancelled run of a lost worker": _cancelling,
    "run tried again": lambda made: made.tried(),
    "deferred run": lambda made: made.deferred(),
    "successful run that others need": lambda made: _with_dependents(made, made.succeeded()),
    "run that has delegated": _delegated,
    "run that is delegating": lambda made: made.delegating(UUID(made.held())),
    "failed run": lambda made: made.failed(),
    "run whose precondition failed": _upstream_failed,
    "cancelled run whose dependents are not told": lambda made: made.ended_untold(),
    "promise": _awaited,
    "kept promise": _kept,
    "run of a workflow": _in_a_workflow,
}

# -- other rows, by their primary keys ---------------------------------------------------------------


def _one(statement: str, *params: Any) -> Key:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        [[key]] = cursor.fetchall()
    return key if isinstance(key, int) else str(key)


def _key(run_id: UUID | str) -> str:
    """A run's id as the database keeps it."""
    return str(run_id) if connection.vendor == "postgresql" else UUID(str(run_id)).hex


def _attempt(run_id: UUID) -> Key:
    return _one("SELECT token FROM manta_attempt WHERE run_id = %s", _key(run_id))


def _edge(run_id: UUID | str) -> Key:
    return _one("SELECT min(id) FROM manta_dependency WHERE run_id = %s", _key(run_id))


def _lost_worker(made: Scenes) -> str:
    worker = made.worker(LONG_SECONDS)
    made.claimed(worker)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE manta_worker SET lost_at = seen_at WHERE id = %s", [worker])
    return worker


def _dying_worker(made: Scenes) -> str:
    worker = made.worker(SHORT_SECONDS)
    made.claimed(worker)
    return worker


def _ray_worker(made: Scenes) -> str:
    worker = made.worker(LONG_SECONDS, "ray")
    made.claimed(worker)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE manta_worker SET lost_at = seen_at, ray = 'session', ray_address = 'ray://127.0.0.1:1',"
            """ foremen = '[["foreman", "incarnation"]]', troubles = '{"": "It is away."}' WHERE id = %s""",
            [worker],
        )
    return worker


def _paused(made: Scenes) -> str:
    queue = f"queue {made.number()}"
    made.ledger.pause(queue)
    return queue


def _workflow(made: Scenes) -> Key:
    return _one("SELECT workflow_id FROM manta_run WHERE id = %s", _key(_in_a_workflow(made)))


#: Rows of which there is one only, and which every worker needs: they are altered one after the other.
LIVE_WORKER, THE_CLUSTER, THE_QUEUE = "worker that works", "cluster", "queue that it works for"

OTHERS: dict[str, dict[str, Callable[[Scenes], Key]]] = {
    "manta_attempt": {
        "attempt of a run tried again": lambda made: _attempt(made.tried()),
        "attempt of a successful run": lambda made: _attempt(_with_dependents(made, made.succeeded())),
        "attempt of a failed run": lambda made: _attempt(made.failed()),
    },
    "manta_dependency": {
        "edge of a waiting run": lambda made: _edge(_waiting(made)),
        "edge that is not counted": lambda made: _edge(_unarmed(made)),
        "edge of a deferred run": lambda made: _edge(made.deferred()),
        "edge of a run that is delegating": lambda made: _edge(made.delegating(UUID(made.held()))),
        "edge of a run whose precondition failed": lambda made: _edge(_upstream_failed(made)),
    },
    "manta_gate": {
        "gate of a waiting run": lambda made: _key(_waiting(made)),
        "gate that is not armed": lambda made: _key(_unarmed(made)),
        "gate of a deferred run": lambda made: _key(made.deferred()),
        "gate of a run that is delegating": lambda made: _key(made.delegating(UUID(made.held()))),
    },
    "manta_herald": {"herald": lambda made: _key(made.ended_untold())},
    "manta_promise": {
        "name of a promise": lambda made: _key(_awaited(made)),
    },
    "manta_workflow": {"workflow": _workflow},
    "manta_worker": {
        "lost worker": _lost_worker,
        "worker that is about to be lost": _dying_worker,
        "lost worker of a Ray": _ray_worker,
        LIVE_WORKER: lambda made: "",
    },
    "manta_queue": {"paused queue": _paused, THE_QUEUE: lambda made: "default"},
    "manta_cluster": {THE_CLUSTER: lambda made: "default"},
}

SINGLE = frozenset({LIVE_WORKER, THE_CLUSTER, THE_QUEUE})


def kinds(column: Column) -> Sequence[str]:
    return list(RUNS if column.table == "manta_run" else OTHERS[column.table])


def make(made: Scenes, column: Column, kind: str) -> Key:
    """The primary key of a new row of a kind."""
    return _key(RUNS[kind](made)) if column.table == "manta_run" else OTHERS[column.table][kind](made)


def clear() -> None:
    with connection.cursor() as cursor:
        for model in TABLES:
            cursor.execute(f"DELETE FROM {model._meta.db_table}")


# -- good runs ---------------------------------------------------------------------------------------


def good_runs(made: Scenes) -> dict[str, State]:
    """Twenty runs that nobody alters, of every kind that comes to an end by itself; and those ends."""
    plain = tasks.trial.map(range(5))
    due = [tasks.trial.using(run_after=timedelta(milliseconds=20 * n)).enqueue(n) for n in range(2)]
    waiting = [tasks.trial.using(after=list(plain[:2])).enqueue(1), tasks.trial.using(after=[due[0]]).enqueue(1)]
    valued = [tasks.total.enqueue(tasks.double.map([1, 2])), tasks.double.enqueue(plain[3])]
    tried = [tasks.stumble.using(max_attempts=4, backoff=0).enqueue(1)]
    worker = made.worker(LONG_SECONDS)
    orphaned = [made.claimed(worker)[0] for _ in range(2)]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE manta_worker SET lost_at = seen_at WHERE id = %s", [worker])
    promised = promise()
    kept = tasks.double.enqueue(promised)
    resolve(promised.id, 5)
    released = tasks.trial.using(hold=True).enqueue(1)
    made.ledger.release([UUID(released.id)])
    late = tasks.trial.using(hold=True, expires=timedelta(milliseconds=10)).enqueue(1)
    told = tasks.trial.using(after=[late], when="all_finished").enqueue(1)
    good = [*plain, *due, *waiting, *valued, *tried, promised, kept, released, told]
    ends = {str(run.id): State.SUCCESSFUL for run in good} | {str(run): State.SUCCESSFUL for run in orphaned}
    return ends | {str(late.id): State.EXPIRED}
