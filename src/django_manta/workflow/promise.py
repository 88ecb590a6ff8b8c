"""
Promises: runs that nobody executes, settled from outside.

An approval, a webhook, a file that arrives: ``promise()`` makes a run that waits, other runs take it as an
argument or in ``after`` like any result, and ``resolve()`` or ``reject()`` ends it. By id, or by a name that
is unique while the promise is open.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from django.tasks.exceptions import TaskResultDoesNotExist

from django_manta import payload, text
from django_manta.exceptions import PromiseExists
from django_manta.ids import parse_run_id
from django_manta.ledger import Ledger
from django_manta.result import TaskResult, get_result, spread_the_word
from django_manta.states import ENDS, State
from django_manta.task import find

#: The task of every promise. A row that names it is never ready, so that no worker ever claims it.
TASK = "django_manta.workflow.kept.kept_from_outside"


def promise(
    name: str = "",
    *,
    expires: datetime | timedelta | None = None,
    deadline: datetime | timedelta | None = None,
    metadata: dict[str, Any] | None = None,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
) -> TaskResult:
    """
    A run that waits until somebody calls ``resolve()`` or ``reject()``; its result.

    Raise PromiseExists if an open promise bears the name. With ``expires`` it is EXPIRED if nobody has come by then.
    """
    if not isinstance(name, str):
        raise TypeError(f"A promise's name must be a string, not {name!r:.200}.")
    if not text.is_storable(name):
        raise ValueError(f"A promise's name must not hold NUL characters or lone surrogates: {name!r:.200}.")
    given: dict[str, Any] = {"backend": backend}
    if expires is not None:
        given["expires"] = expires
    if deadline is not None:
        given["deadline"] = deadline
    if metadata is not None:
        given["metadata"] = metadata
    task: Any = find(TASK)
    manta: Any = task_backends[backend]
    with manta.ledger.session.transaction():
        result: TaskResult = manta.promise(task.using(**given))
        if name:
            _name(manta.ledger, result, name)
    return result


def _name(ledger: Ledger, result: TaskResult, name: str) -> None:
    if not ledger.name_promise(UUID(result.id), name):
        raise PromiseExists(f"There is an open promise named {name!r}. Settle it, or give this one another name.")


def get_promise(name_or_id: str | UUID, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> TaskResult:
    """The promise of this id, or the open promise of this name. Raise TaskResultDoesNotExist."""
    manta: Any = task_backends[backend]
    run_id = parse_run_id(name_or_id)
    # Ids first: whoever chooses a name cannot stand in for the promise of that id.
    is_id = run_id is not None and bool(manta.ledger.states([run_id]))
    if not is_id:
        run_id = _bearer(manta.database, str(name_or_id))
    result = get_result(run_id, using=manta.database)
    if result.task.module_path != TASK:
        raise TaskResultDoesNotExist(f"Run {name_or_id} is not a promise.")
    if not is_id and result.state in ENDS:
        # It expired, or was cancelled: the name waits for its next bearer.
        raise TaskResultDoesNotExist(f"There is no open promise named {name_or_id!r}: the last one is {result.state}.")
    return result


def _bearer(database: str, name: str) -> UUID:
    from django_manta.models import Promise

    found = Promise.objects.using(database).filter(name=name, open=True).first()
    if found is None:
        raise TaskResultDoesNotExist(f"There is no open promise named {name!r}.")
    run_id: UUID = found.run_id
    return run_id


def resolve(name_or_id: str | UUID, value: Any = None, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> TaskResult:
    """Keep a promise: whoever waits for it gets ``value``. Raise ValueError if it is settled already."""
    stored = payload.encode(value, "value")
    payload.refuse_large(stored, payload.RESULT_LIMIT, "The value of the promise is")
    result = get_promise(name_or_id, backend=backend)
    manta: Any = task_backends[result.backend]
    signature = manta.seal.sign_result(result.id, stored)
    return _settle(manta, result, State.SUCCESSFUL, stored, signature, "")


def reject(name_or_id: str | UUID, reason: str = "", *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> TaskResult:
    """Break a promise: it is FAILED. Raise ValueError if it is settled already."""
    result = get_promise(name_or_id, backend=backend)
    manta: Any = task_backends[result.backend]
    words = text.storable(str(reason), text.MESSAGE_LIMIT) or "It was rejected."
    return _settle(manta, result, State.FAILED, None, "", words)


def _settle(
    manta: Any, result: TaskResult, state: State, stored: str | None, signature: str, reason: str
) -> TaskResult:
    ledger: Ledger = manta.ledger
    reached = ledger.settle_promise(UUID(result.id), TASK, state, stored, signature, reason)
    result.refresh()
    if UUID(result.id) not in reached:
        raise ValueError(f"Promise {result.id} is {result.state}: it can be settled only once.")
    spread_the_word(manta.database, manta.config.cluster, reached, [result], result.task.queue_name)
    return result
