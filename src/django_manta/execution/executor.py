"""
Executes one claimed run and says how it ended.

Nothing a task does gets past here: whatever it raises, ``SystemExit`` included, and whatever it
returns becomes a settlement that can be stored.
"""

import asyncio
import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections, transaction
from django.tasks import task_backends
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTaskBackend
from django.tasks.signals import task_finished, task_started
from django.utils import timezone

from django_manta import options, payload, text
from django_manta.context import TaskContext
from django_manta.current import CurrentRun, running
from django_manta.exceptions import BadTaskSignature, LostLease, TaskNotFound, TaskTimeout
from django_manta.execution import middleware, policy
from django_manta.execution.desk import LedgerDesk
from django_manta.execution.limits import Limit, time_limit
from django_manta.ledger import Claimed, DjangoSession, Ledger, Settlement
from django_manta.result import TaskResult, attempt_errors, workers_of
from django_manta.states import Outcome, State, status_of
from django_manta.task import find, rebuild

logger = logging.getLogger("django_manta")

_HERE = str(Path(__file__).resolve().parent.parent)

#: An atomic run's own settlement tries this often when somebody holds its row, and pauses so long.
_FENCE_TRIES, _FENCE_PAUSE_SECONDS = 100, 0.05

#: What PostgreSQL says when two transactions got in each other's way and one had to go.
_CONFLICTS = frozenset({"40001", "40P01"})


@dataclass(frozen=True, slots=True)
class Execution:
    """How an execution ended. ``settled``: the run's row says so already."""

    settlement: Settlement | None
    settled: bool = False


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A claimed run that this code vouches for."""

    claim: Claimed
    backend: Any
    options: options.Effective
    context: TaskContext
    limit: Limit


def execute(claim: Claimed, *, executor: str = "", interruptible: bool = False) -> Execution:
    """
    Execute a claimed run.

    ``interruptible`` lets KeyboardInterrupt through, for a runner whose process a person may stop
    with Ctrl-C; the caller then settles the run as interrupted.
    """
    started = time.monotonic()
    callers = {each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block}
    _close_old_connections(callers)
    try:
        try:
            admitted = _admit(claim)
        except (TaskNotFound, BadTaskSignature) as refusal:
            return Execution(_refused(claim, refusal, executor))
        with running(CurrentRun(str(claim.id), claim.task, admitted.context.attempt, claim.deadline)):
            return _Run(admitted, executor, started, interruptible).execute()
    finally:
        _close_old_connections(callers)


def _close_old_connections(callers: set[str]) -> None:
    """
    Django's ``close_old_connections()``, but for those on which the caller holds a transaction, as in a
    TestCase: Django takes the lack of autocommit for a fault and would drop them, and the transaction.
    """
    for connection in connections.all(initialized_only=True):
        if connection.alias not in callers:
            connection.close_if_unusable_or_obsolete()


# -- admission ---------------------------------------------------------------------------------------


def _admit(claim: Claimed) -> _Admitted:
    """Verify the signature and find the task. Raise BadTaskSignature or TaskNotFound."""
    backend = _backend(claim)
    if not backend.seal.run_is_genuine(
        claim.signature, str(claim.id), claim.task, claim.arguments, claim.overrides
    ):
        raise BadTaskSignature(
            f"The signature of run {claim.id} does not match its task, arguments and overrides: the row was "
            "altered, or written with another SECRET_KEY or CLUSTER."
        )
    task = find(claim.task)
    if backend.queues and claim.queue not in backend.queues:
        raise TaskNotFound(f"Queue {claim.queue!r} is not among the QUEUES of TASKS[{claim.backend!r}].")
    effective = _effective(task, backend, claim)
    limit = Limit(effective.timeout)
    context = TaskContext(
        task_result=_running_result(claim),
        is_last_attempt=claim.failures + 1 >= effective.max_attempts,
        _desk=LedgerDesk(backend.database, claim.id, claim.token),
        _call=partial(_call_task, limit),
    )
    return _Admitted(claim, backend, effective, context, limit)


def _backend(claim: Claimed) -> Any:
    try:
        backend = task_backends[claim.backend]
    except InvalidTaskBackend as error:
        raise TaskNotFound(f"Backend {claim.backend!r} is not configured in TASKS: {error}") from None
    if not hasattr(backend, "seal"):
        raise TaskNotFound(f"Backend {claim.backend!r} is {type(backend).__name__}, not a MantaBackend.")
    return backend


def _effective(task: Any, backend: Any, claim: Claimed) -> options.Effective:
    try:
        return options.effective(task, backend.config, claim.overrides)
    except ImportError as error:
        raise TaskNotFound(f"An override of run {claim.id} cannot be found: {error}.") from None


def _running_result(claim: Claimed) -> TaskResult:
    args, kwargs = payload.decode_arguments(claim.arguments)
    return TaskResult(
        task=rebuild(
            claim.task,
            priority=claim.priority,
            queue_name=claim.queue,
            run_after=claim.run_after,
            backend=claim.backend,
            overrides=claim.overrides,
        ),
        id=str(claim.id),
        status=status_of(State.RUNNING),
        enqueued_at=claim.enqueued_at,
        started_at=claim.started_at,
        finished_at=None,
        last_attempted_at=claim.last_attempted_at,
        args=args,
        kwargs=kwargs,
        backend=claim.backend,
        errors=attempt_errors(claim.history),
        worker_ids=workers_of(claim.history, claim.worker),
        state=State.RUNNING,
        reason="",
        deadline=claim.deadline,
        expires_at=claim.expires_at,
        metadata=payload.decode(claim.metadata),
        progress=None,
        history=claim.history,
    )


def _refused(claim: Claimed, refusal: Exception, executor: str) -> Settlement:
    """Give the run back for a while, in case a newer release knows it; then fail it."""
    refused_for = None if claim.refused_for is None else claim.refused_for.total_seconds()
    backend: Any = task_backends.settings.get(claim.backend) and task_backends[claim.backend]
    skew = backend.config.skew_seconds if hasattr(backend, "config") else 600.0
    verdict = policy.after_refusal(refused_for, skew)
    message = text.storable(str(refusal), text.MESSAGE_LIMIT)
    return Settlement(
        run_id=claim.id,
        token=claim.token,
        outcome=Outcome.FAILED if verdict is None else Outcome.RETURNED,
        next_state=State.FAILED if verdict is None else verdict.state,
        delay=None if verdict is None else verdict.delay,
        reason=message,
        executor=executor,
        error_class=_path(type(refusal)),
        error_message=message,
        traceback=f"{_path(type(refusal))}: {message}\n",
        refused=True,
    )


# -- the call ----------------------------------------------------------------------------------------


class _Run:
    """One execution, from the start signal to its settlement."""

    def __init__(self, admitted: _Admitted, executor: str, started: float, interruptible: bool) -> None:
        self.claim = admitted.claim
        self.backend = admitted.backend
        self.options = admitted.options
        self.context = admitted.context
        self.result = admitted.context.task_result
        self.limit = admitted.limit
        self.executor = executor
        self.started = started
        self.interruptible = interruptible

    def execute(self) -> Execution:
        task_started.send_robust(sender=type(self.backend), task_result=self.result)
        try:
            if self.options.atomic:
                return self._execute_atomically()
            return self._finish(self._success(self._call()))
        except LostLease as error:
            logger.warning("%s", error)
            return Execution(None)
        except BaseException as error:
            if self.interruptible and isinstance(error, KeyboardInterrupt):
                raise
            # Still inside the handler: receivers of task_finished read the live exception.
            return self._fail(error)

    def _call(self) -> Any:
        try:
            return _chain(self.backend.config.middleware)(self.context)
        finally:
            self.context._flush()

    def _execute_atomically(self) -> Execution:
        """The task's writes and its success, in one transaction. The settlement is the fence, and last."""
        database = self.backend.database
        committed = False

        def note() -> None:
            nonlocal committed
            committed = True

        try:
            with transaction.atomic(using=database):
                # First in line, so that a hook of the task's that raises finds the commit noted.
                transaction.on_commit(note, using=database)
                settlement = self._success(self._call())
                self._fence(settlement, database)
        except Exception:
            if not committed:
                raise
            logger.exception("An on_commit hook of run %s failed; the run is settled.", self.claim.id)
        self._finish(settlement)
        return Execution(settlement, settled=True)

    def _fence(self, settlement: Settlement, database: str) -> None:
        ledger = Ledger(DjangoSession(database))
        for _ in range(_FENCE_TRIES):
            settled = ledger.settle([settlement])
            if settled.moved:
                return
            if settled.not_mine:
                raise LostLease(
                    f"Run {self.claim.id} no longer belongs to this execution; its writes are rolled back."
                )
            time.sleep(_FENCE_PAUSE_SECONDS)
        raise DatabaseError(f"The row of run {self.claim.id} stayed locked by somebody else.")

    # -- ends ------------------------------------------------------------------------------------

    def _success(self, value: Any) -> Settlement:
        stored = payload.encode(value, "return value")
        object.__setattr__(self.result, "_return_value", payload.decode(stored))
        return Settlement(
            run_id=self.claim.id,
            token=self.claim.token,
            outcome=Outcome.SUCCESSFUL,
            next_state=State.SUCCESSFUL,
            duration=time.monotonic() - self.started,
            result=stored,
            result_signature=self.backend.seal.sign_result(str(self.claim.id), stored),
            executor=self.executor,
        )

    def _fail(self, error: BaseException) -> Execution:
        object.__setattr__(self.result, "_return_value", None)
        timed_out = self.limit.reached and isinstance(error, TaskTimeout)
        trace = text.storable(_format(error), text.TRACEBACK_LIMIT)
        self.result.errors.append(TaskError(exception_class_path=_path(type(error)), traceback=trace))
        if _is_conflict(error) and self.options.atomic:
            outcome, verdict = Outcome.INTERRUPTED, policy.again_after(0)
        else:
            outcome = Outcome.TIMED_OUT if timed_out else Outcome.FAILED
            verdict = policy.after_failure(error, self.claim.failures + 1, self.options, self.result)
        return self._finish(
            Settlement(
                run_id=self.claim.id,
                token=self.claim.token,
                outcome=outcome,
                next_state=verdict.state,
                delay=verdict.delay,
                duration=time.monotonic() - self.started,
                reason=verdict.reason,
                executor=self.executor,
                error_class=_path(type(error)),
                error_message=text.storable(_message(error), text.MESSAGE_LIMIT),
                traceback=trace,
            )
        )

    def _finish(self, settlement: Settlement) -> Execution:
        """Tell Django's receivers, of ends only. A receiver that raises is logged and changes nothing."""
        status = status_of(settlement.next_state)
        object.__setattr__(self.result, "state", settlement.next_state)
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "reason", settlement.reason)
        if settlement.next_state in (State.SUCCESSFUL, State.FAILED):
            object.__setattr__(self.result, "finished_at", timezone.now())
            task_finished.send_robust(sender=type(self.backend), task_result=self.result)
        return Execution(settlement)


@lru_cache(maxsize=64)
def _chain(paths: tuple[str, ...]) -> middleware.GetValue:
    return middleware.chain(paths, lambda context: context._call(context))


def _call_task(limit: Limit, context: TaskContext) -> Any:
    """The innermost step: the task's function, under its time limit."""
    result = context.task_result
    args = [context, *result.args] if result.task.takes_context else result.args
    if iscoroutinefunction(result.task.func):
        return async_to_sync(_call_coroutine)(limit, result.task.func, args, result.kwargs)
    with time_limit(limit):
        return result.task.func(*args, **result.kwargs)


async def _call_coroutine(
    limit: Limit, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> Any:
    try:
        async with asyncio.timeout(limit.seconds) as timer:
            return await function(*args, **kwargs)
    except TimeoutError:
        if not timer.expired():
            raise
        limit.reached = True
        raise TaskTimeout(limit.message) from None


# -- words -------------------------------------------------------------------------------------------


def _path(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    """What the exception says. Its own ``__str__`` is user code, too."""
    try:
        return str(error)
    except Exception as failure:
        return f"(its message could not be read: {type(failure).__name__})"


def _format(error: BaseException) -> str:
    """The traceback from the task's own frames on, without those of the executor."""
    shown = error.__traceback__
    while shown is not None and shown.tb_frame.f_code.co_filename.startswith(_HERE):
        shown = shown.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, shown or error.__traceback__))
    except Exception as failure:
        return f"{_path(type(error))}: (its traceback could not be formatted: {type(failure).__name__})\n"


def _is_conflict(error: BaseException) -> bool:
    """Whether the database sacrificed this transaction for another: nobody's fault, so not charged."""
    cause = error.__cause__ if isinstance(error, DatabaseError) else None
    return getattr(cause, "sqlstate", None) in _CONFLICTS
