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
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections, transaction
from django.db.transaction import TransactionManagementError
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTask
from django.tasks.signals import task_finished, task_started
from django.utils import timezone

from django_manta import payload, text
from django_manta.context import TaskContext
from django_manta.current import CurrentRun, running
from django_manta.exceptions import BadTaskSignature, LostLease, TaskNotFound, TaskTimeout
from django_manta.execution import middleware, policy
from django_manta.execution.admission import Admitted, admit, refuse
from django_manta.execution.desk import LedgerDesk
from django_manta.execution.limits import Limit, time_limit
from django_manta.ledger import Claimed, DjangoSession, Ledger, Settlement
from django_manta.states import ENDS, Outcome, State, status_of

logger = logging.getLogger("django_manta")

_HERE = str(Path(__file__).resolve().parent.parent)

#: An atomic run's own settlement tries this often when somebody holds its row, and pauses so long.
_FENCE_TRIES, _FENCE_PAUSE_SECONDS = 100, 0.05

#: After such a conflict the run is tried again, a moment later.
_CONFLICT_PAUSE_SECONDS = 0.5

#: What PostgreSQL says when two transactions got in each other's way and one had to go.
_CONFLICTS = frozenset({"40001", "40P01"})


@dataclass(frozen=True, slots=True)
class Execution:
    """How an execution ended. ``settled``: the run's row says so already."""

    settlement: Settlement | None
    settled: bool = False


def execute(
    claim: Claimed,
    *,
    executor: str = "",
    interruptible: bool = False,
    output: Callable[[], str] = str,
) -> Execution:
    """
    Execute a claimed run.

    ``executor`` names this process, ``output`` tells the tail of what it printed.
    ``interruptible`` lets KeyboardInterrupt through, for a runner whose process a person may stop
    with Ctrl-C; the caller then settles the run as interrupted.
    """
    started = time.monotonic()
    callers = {each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block}
    _close_old_connections(callers)
    try:
        execution = _execute(claim, executor, started, interruptible, output)
    except BaseException as error:
        if interruptible and isinstance(error, KeyboardInterrupt):
            raise
        # Around the task, not in it: a row or a policy that nobody foresaw must not take its neighbours along.
        logger.exception("Run %s could not be executed.", claim.id)
        execution = Execution(_failed(claim, executor, started, error))
    finally:
        left_open = _close_old_connections(callers)
    if left_open and execution.settlement is not None and not execution.settled:
        # Whatever it wrote is gone with the transaction that it began and did not end.
        words = f"The task left a transaction open on {', '.join(sorted(left_open))}; what it wrote is lost."
        logger.error("Run %s: %s", claim.id, words)
        execution = Execution(_failed(claim, executor, started, TransactionManagementError(words)))
    return execution


def _execute(
    claim: Claimed, executor: str, started: float, interruptible: bool, output: Callable[[], str]
) -> Execution:
    try:
        admitted = admit(claim)
    except (TaskNotFound, BadTaskSignature) as refusal:
        return Execution(refuse(claim, refusal, executor))
    with running(CurrentRun(admitted.result.id, claim.task, admitted.result.attempts, claim.deadline, claim.token)):
        return _Run(admitted, executor, started, interruptible, output).execute()


def _failed(claim: Claimed, executor: str, started: float, error: BaseException) -> Settlement:
    """A failure that no policy was asked about: the end."""
    message = text.storable(_message(error), text.MESSAGE_LIMIT)
    return Settlement(
        run_id=claim.id,
        token=claim.token,
        outcome=Outcome.FAILED,
        next_state=State.FAILED,
        duration=time.monotonic() - started,
        reason=message,
        executor=executor,
        error_class=_path(type(error)),
        error_message=message,
        traceback=text.storable(_format(error), text.TRACEBACK_LIMIT),
    )


def _close_old_connections(callers: set[str]) -> set[str]:
    """
    Django's ``close_old_connections()``, but for those on which the caller holds a transaction, as in a
    TestCase: Django takes the lack of autocommit for a fault and would drop them, and the transaction.
    Those on which a task left one open are dropped; their aliases are returned.
    """
    left_open = set()
    connection: Any
    for connection in list(connections.all(initialized_only=True)):
        if connection.alias in callers:
            continue
        if connection.in_atomic_block:
            left_open.add(connection.alias)
            connection.close()
            # The wrapper still believes in its transaction; the next use makes a new one.
            del connections[connection.alias]
            continue
        if not connection.settings_dict["CONN_MAX_AGE"]:
            # "Close after each request" is made for web servers with more processes than the database
            # has connections. An executor keeps its one, and has it checked before it is used again.
            connection.close_at = None
            connection.health_check_enabled = True
        connection.close_if_unusable_or_obsolete()
    return left_open


# -- the call ----------------------------------------------------------------------------------------


class _Run:
    """One execution, from the start signal to its settlement."""

    def __init__(
        self,
        admitted: Admitted,
        executor: str,
        started: float,
        interruptible: bool,
        output: Callable[[], str],
    ) -> None:
        self.claim = admitted.claim
        self.backend = admitted.backend
        self.options = admitted.options
        self.result = admitted.result
        self.limit = Limit(admitted.options.timeout)
        self.context = TaskContext(
            task_result=self.result,
            is_last_attempt=self.claim.failures + 1 >= self.options.max_attempts,
            _desk=LedgerDesk(self.backend.database, self.claim.id, self.claim.token),
            _call=partial(_call_task, self.limit),
        )
        self.executor = executor
        self.started = started
        self.interruptible = interruptible
        self.output = output
        #: The atomic task has returned: what fails now is our settlement, or the commit.
        self.committing = False

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
        if iscoroutinefunction(self.result.task.func):
            raise InvalidTask(f"{self.claim.task} is a coroutine: it holds no transaction and cannot be atomic.")
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
                self.committing = True
                self._fence(settlement, database)
        except Exception:
            if not committed:
                raise
            logger.exception("An on_commit hook of run %s failed; the run is settled.", self.claim.id)
        return Execution(self._finish(settlement).settlement, settled=True)

    def _fence(self, settlement: Settlement, database: str) -> None:
        ledger = Ledger(DjangoSession(database))
        for _ in range(_FENCE_TRIES):
            # In the worker's name: when its lease is lost this execution is no longer wanted either, even
            # before somebody has recovered the run.
            settled = ledger.settle([settlement], self.claim.worker)
            if settled.moved:
                return
            if settled.not_mine:
                raise LostLease(f"Run {self.claim.id} no longer belongs to this execution; its writes are rolled back.")
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
            result_signature=self.backend.seal.sign_result(self.result.id, stored),
            executor=self.executor,
        )

    def _fail(self, error: BaseException) -> Execution:
        object.__setattr__(self.result, "_return_value", None)
        trace = text.storable(_format(error), text.TRACEBACK_LIMIT)
        self.result.errors.append(TaskError(exception_class_path=_path(type(error)), traceback=trace))
        outcome, verdict = self._judge(error)
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
                output=self.output(),
            )
        )

    def _judge(self, error: BaseException) -> tuple[Outcome, policy.Verdict]:
        """What the failure counts as. Whatever the task made of our interruption, it was ours."""
        if self.limit.interrupted is not None:
            outcome, reason = self.limit.interrupted
            ended = outcome is Outcome.CANCELLED
            return outcome, policy.Verdict(State.CANCELLED if ended else State.READY, reason=reason)
        if self.committing and _is_conflict(error):
            # Our own statements, or COMMIT: nobody's fault, so not charged.
            return Outcome.INTERRUPTED, policy.again_after(_CONFLICT_PAUSE_SECONDS)
        outcome = Outcome.TIMED_OUT if self.limit.reached else Outcome.FAILED
        return outcome, policy.after_failure(error, self.claim.failures + 1, self.options, self.result)

    def _finish(self, settlement: Settlement) -> Execution:
        """Tell Django's receivers, of ends only. A receiver that raises is logged and changes nothing."""
        status = status_of(settlement.next_state)
        object.__setattr__(self.result, "state", settlement.next_state)
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "reason", settlement.reason)
        if settlement.next_state in ENDS:
            object.__setattr__(self.result, "finished_at", timezone.now())
            task_finished.send_robust(sender=type(self.backend), task_result=self.result)
            settlement = replace(settlement, told=True)
        return Execution(settlement)


@lru_cache(maxsize=64)
def _chain(paths: tuple[str, ...]) -> middleware.GetValue:
    return middleware.chain(paths, lambda context: context._call(context))


def _call_task(limit: Limit, context: TaskContext) -> Any:
    """The innermost step: the task's function, under its time limit."""
    result = context.task_result
    args = [context, *result.args] if result.task.takes_context else result.args
    if iscoroutinefunction(result.task.func):
        return call_coroutine(limit, result.task.func, args, result.kwargs)
    with time_limit(limit):
        return result.task.func(*args, **result.kwargs)


def _call_alone(limit: Limit, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A coroutine in a loop of its own. The alarm reaches a loop that its own code blocks."""
    with time_limit(limit):
        return async_to_sync(_call_coroutine)(limit, function, args, kwargs)


#: How a coroutine is called. A child that executes many at a time puts its own way here.
call_coroutine: Callable[[Limit, Callable[..., Any], list[Any], dict[str, Any]], Any] = _call_alone


async def _call_coroutine(limit: Limit, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
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
    except BaseException as failure:
        return f"(its message could not be read: {type(failure).__name__})"


def _format(error: BaseException) -> str:
    """The traceback from the task's own frames on, without those of the executor."""
    shown = error.__traceback__
    while shown is not None and shown.tb_frame.f_code.co_filename.startswith(_HERE):
        shown = shown.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, shown or error.__traceback__))
    except BaseException as failure:
        return f"{_path(type(error))}: (its traceback could not be formatted: {type(failure).__name__})\n"


def _is_conflict(error: BaseException) -> bool:
    """Whether the database sacrificed this transaction for another: nobody's fault, so not charged."""
    cause = error.__cause__ if isinstance(error, DatabaseError) else None
    return getattr(cause, "sqlstate", None) in _CONFLICTS
