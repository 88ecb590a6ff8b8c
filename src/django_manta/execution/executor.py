"""
Executes one claimed run and says how it ended.

Nothing a task does gets past here: whatever it raises, ``SystemExit`` included, and whatever it
returns becomes a settlement that can be stored.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from asgiref.sync import async_to_sync
from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTask
from django.tasks.signals import log_task_finished, task_finished, task_started
from django.utils import timezone

from django_manta import payload, text
from django_manta.context import TaskContext
from django_manta.current import CurrentRun, Running
from django_manta.exceptions import BadTaskSignature, LostLease, TaskNotFound, TaskTimeout, TooManyLaters
from django_manta.execution import announce, filling, limits, middleware, policy, tending
from django_manta.execution.admission import Admitted, admit, refuse
from django_manta.execution.desk import LedgerDesk
from django_manta.execution.limits import InOneProcess, Limit
from django_manta.ledger import (
    Claimed,
    DjangoSession,
    Ledger,
    Settleable,
    Settlement,
    Written,
    conflicts,
    graph,
    house,
    rows,
)
from django_manta.result import TaskResult
from django_manta.ringing import ring_after_commit
from django_manta.states import ENDS, Outcome, State, may_start_again, status_of
from django_manta.workflow.later import Later

logger = logging.getLogger("django_manta")

_HERE = str(Path(__file__).resolve().parent.parent)

#: An atomic run's own settlement tries this often when somebody holds its row, and pauses so long.
_FENCE_TRIES, _FENCE_PAUSE_SECONDS = 100, 0.05

#: After an atomic run has lost a conflict it is tried again, a moment later; not at the same moment as its rival.
_CONFLICT_PAUSE_SECONDS = 0.5

#: A coroutine that was told to end has so long to do so.
_CANCEL_SECONDS = 1.0

#: So many conflicts in a row charge nobody. The next one is a failure like any other, or it would go on for ever.
UNCHARGED_CONFLICTS = 5

#: What Django raises when the database server cannot be reached, or does not let this process in.
_UNREACHABLE = (OperationalError, InterfaceError)


class Execution(NamedTuple):
    """How an execution ended. ``settled``: the run's row says so already."""

    settlement: Settleable | None
    settled: bool = False


def execute(
    claim: Claimed,
    *,
    executor: str = "",
    interruptible: bool = False,
    output: Callable[[], str] = str,
    adoptable: bool = False,
    log_ref: Callable[[Outcome], str] | None = None,
    in_writing: bool = False,
) -> Execution:
    """
    Execute a claimed run.

    ``executor`` names this process, ``output`` tells the tail of what it printed, ``log_ref`` where all of it is.
    ``interruptible`` lets KeyboardInterrupt through, for a runner whose process a person may stop
    with Ctrl-C; the caller then settles the run as interrupted. ``adoptable``: another worker may take
    the execution over, so what it settles itself is fenced by its token alone. ``in_writing``: who calls would write
    the settlement down next, and so a success is Written from the start, which takes half as long.
    """
    started = time.monotonic()
    callers = tending.begin()
    try:
        execution = _execute(claim, executor, started, interruptible, output, callers, adoptable, log_ref, in_writing)
    except BaseException as error:
        if interruptible and isinstance(error, KeyboardInterrupt):
            raise
        # Around the task, not in it: a row or a policy that nobody foresaw must not take its neighbours along.
        logger.exception("Run %s could not be executed.", claim.id)
        execution = Execution(_failed(claim, executor, started, error))
    finally:
        left_open = tending.end(callers)
    succeeded = execution.settlement is not None and execution.settlement.outcome is Outcome.SUCCESSFUL
    if left_open and succeeded and not execution.settled:
        # Whatever it wrote is gone with the transaction that it began and did not end.
        words = f"The task left a transaction open on {', '.join(sorted(left_open))}; what it wrote is lost."
        logger.error("Run %s: %s", claim.id, words)
        execution = Execution(_failed(claim, executor, started, TransactionManagementError(words)))
    if log_ref is not None and isinstance(execution.settlement, Settlement) and not execution.settled:
        execution.settlement.log_ref = log_ref(execution.settlement.outcome)
    return execution


def _execute(
    claim: Claimed,
    executor: str,
    started: float,
    interruptible: bool,
    output: Callable[[], str],
    callers: frozenset[str],
    adoptable: bool,
    log_ref: Callable[[Outcome], str] | None,
    in_writing: bool,
) -> Execution:
    try:
        admitted = admit(claim)
    except (TaskNotFound, BadTaskSignature) as refusal:
        return Execution(refuse(claim, refusal, executor))
    current = CurrentRun(admitted.run_id, claim.task, claim.attempts, claim.deadline, claim.token, claim.workflow)
    with Running(current):
        run = _Run(admitted, executor, started, interruptible, output, callers, adoptable, log_ref)
        # What an atomic run is settled by is its own, and a log is referred to when it is complete.
        run.in_writing = in_writing and log_ref is None and not run.options.atomic
        return run.execute()


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


class _TakenBack(Exception):
    """The task returned, and failed all the same."""


class _NotBegun(Exception):
    """The database could not be reached for something that is needed before the task's function is called."""

    def __init__(self, cause: OperationalError | InterfaceError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextlib.contextmanager
def _before_the_call() -> Iterator[None]:
    """
    Raise _NotBegun if the database cannot be reached in this block. What the database answers (a statement took too
    long, a table is missing) may be the same the next time, and is a failure like any other.
    """
    try:
        yield
    except _UNREACHABLE as error:
        if conflicts.is_answer(error):
            raise
        raise _NotBegun(error) from error


# -- the call ----------------------------------------------------------------------------------------


class _Run:
    """One execution, from the start signal to its settlement."""

    __slots__ = (
        "admitted",
        "adoptable",
        "backend",
        "callers",
        "claim",
        "committing",
        "connection_lost",
        "desk",
        "executor",
        "in_writing",
        "interruptible",
        "limit",
        "log_ref",
        "options",
        "output",
        "started",
    )

    def __init__(
        self,
        admitted: Admitted,
        executor: str,
        started: float,
        interruptible: bool,
        output: Callable[[], str],
        callers: frozenset[str],
        adoptable: bool,
        log_ref: Callable[[Outcome], str] | None,
    ) -> None:
        self.admitted = admitted
        self.log_ref = log_ref
        self.adoptable = adoptable
        self.claim = admitted.claim
        self.backend = admitted.backend
        self.options = admitted.options
        self.limit = Limit(admitted.options.timeout)
        self.executor = executor
        self.started = started
        self.interruptible = interruptible
        self.output = output
        self.callers = callers
        #: Where the context leaves what it is told, if there is one.
        self.desk: LedgerDesk | None = None
        #: A success is written down at once.
        self.in_writing = False
        #: The atomic task has returned: what fails now is our settlement, or the commit.
        self.committing = False
        #: The connection of the atomic task's transaction was lost before the COMMIT was acknowledged.
        self.connection_lost = False

    @property
    def result(self) -> TaskResult:
        return self.admitted.result

    def execute(self) -> Execution:
        sender = type(self.backend)
        if task_started.receivers and task_started.has_listeners(sender):
            task_started.send_robust(sender=sender, task_result=self.result)
        try:
            if self.claim.references is not None:
                with _before_the_call():
                    filling.fill_in(self.admitted)
            if self.options.atomic:
                return self._execute_atomically()
            return self._finish(self._ended_with(self._returned()))
        except LostLease as error:
            logger.warning("%s", error)
            return Execution(None)
        except _NotBegun as error:
            return self._finish(self._given_back(error.cause))
        except Later as later:
            # Whatever it wrote inside an atomic block is gone with it; the rest is kept.
            return self._finish(self._rolled_back(later) or self._deferred(later))
        except BaseException as error:
            if self.interruptible and isinstance(error, KeyboardInterrupt):
                raise
            # Still inside the handler: receivers of task_finished read the live exception.
            return self._fail(error)

    def _returned(self) -> Any:
        """What the task returned. From then on its time limit is not for what is left to do."""
        try:
            return self._call()
        finally:
            if on_returned is not None and self.limit.seconds is not None:
                on_returned(self.claim.token)

    def _call(self) -> Any:
        chained = self.backend.config.middleware
        if not chained and not self.admitted.task.takes_context:
            # Nobody would look at the context.
            return _call_task(self.limit, self.admitted, self.admitted.args)
        database, atomic = self.backend.database, self.options.atomic
        within = database in self.callers
        self.desk = LedgerDesk(database, self.claim.id, self.claim.token, within=within, atomic=atomic)
        context: TaskContext = TaskContext(
            task_result=self.result,
            is_last_attempt=self.claim.failures + 1 >= self.options.max_attempts,
            _desk=self.desk,
            _call=partial(_call_with_context, self.limit, self.admitted),
        )
        try:
            return _chain(chained)(context)
        finally:
            context._flush()

    def _execute_atomically(self) -> Execution:
        """The task's writes and its success, in one transaction. The settlement is the fence, and last."""
        if self.admitted.is_coroutine:
            raise InvalidTask(f"{self.claim.task} is a coroutine: it holds no transaction and cannot be atomic.")
        database = self.backend.database
        committed = False
        driver: Any = None
        heralds: tuple[UUID, ...] = ()

        def note() -> None:
            nonlocal committed
            committed = True

        try:
            with contextlib.ExitStack() as stack:
                with _before_the_call():
                    stack.enter_context(transaction.atomic(using=database))
                # What a block cannot roll back Django closes, and opens anew if it can.
                driver = connections[database].connection
                # First in line, so that a hook of the task's that raises finds the commit noted.
                transaction.on_commit(note, using=database)
                settlement = self._ended_with(self._returned())
                if settlement.next_state is State.FAILED:
                    # It asked too often to be called again: what it wrote goes with its success.
                    raise _TakenBack
                self.committing = True
                if self.desk is not None:
                    self.desk.write_held_back(within=True)
                heralds = self._fence(settlement, database)
        except _TakenBack:
            return self._finish(settlement)
        except Exception as error:
            if not committed:
                self.connection_lost = _is_unreachable(error) and connections[database].connection is not driver
                raise
            logger.exception("An on_commit hook of run %s failed; the run is settled.", self.claim.id)
        finally:
            if self.desk is not None and not committed:
                self.desk.write_held_back()
        if heralds:
            self._tell(heralds, database)
        return Execution(self._finish(settlement).settlement, settled=True)

    def _tell(self, heralds: tuple[UUID, ...], database: str) -> None:
        """The transaction has committed: who waited for this run may know. If that fails, the caretaker tells them."""
        try:
            ledger = Ledger(DjangoSession(database))
            if not ledger.session.in_transaction():
                passed = graph.tell(ledger, heralds)
                passed |= graph.arm(ledger, heralds)
                for queue in passed.queues:
                    ring_after_commit(database, self.backend.config.cluster, queue)
                announce.ended(self.backend, passed.ended, ledger)
        except DatabaseError:
            logger.warning("Could not tell who waits for run %s; the caretaker will.", self.claim.id, exc_info=True)

    def _fence(self, settlement: Settleable, database: str) -> tuple[UUID, ...]:
        ledger = Ledger(DjangoSession(database))
        if self.log_ref is not None and isinstance(settlement, Settlement):
            settlement.log_ref = self.log_ref(settlement.outcome)
        for _ in range(_FENCE_TRIES):
            # In the worker's name: when its lease is lost this execution is no longer wanted either, even
            # before somebody has recovered the run. Unless another worker may adopt it: then its token, which
            # survives that and nothing else, is the fence.
            settled = ledger.settle([settlement], None if self.adoptable else self.claim.worker)
            if settled.moved:
                return settled.heralds
            if settled.not_mine:
                raise LostLease(f"Run {self.claim.id} no longer belongs to this execution; its writes are rolled back.")
            if words := settled.refused.get(self.claim.token):
                raise DatabaseError(f"The database refuses to settle run {self.claim.id}: {words}")
            time.sleep(_FENCE_PAUSE_SECONDS)
        raise DatabaseError(f"The row of run {self.claim.id} stayed locked by somebody else.")

    # -- ends ------------------------------------------------------------------------------------

    def _ended_with(self, value: Any) -> Settleable:
        """What the task returned: a value, a result to delegate to, or the wish to be called again."""
        if isinstance(value, Later):
            return self._deferred(value)
        delegates = payload.references_in(value)
        return self._success(value) if delegates is None else self._delegated(delegates)

    def _delegated(self, delegates: str | list[str]) -> Settlement:
        stored = payload.encode(delegates, "delegate")
        return Settlement(
            run_id=self.claim.id,
            token=self.claim.token,
            outcome=Outcome.DELEGATED,
            next_state=State.WAITING,
            duration=time.monotonic() - self.started,
            delegate=stored,
            # Who reads its value through the pointer can trust the pointer.
            result_signature=self.backend.seal.sign_delegate(self.admitted.run_id, stored),
            reason="It waits for what it delegated to.",
            executor=self.executor,
        )

    def _deferred(self, later: Later) -> Settlement:
        """Called again, unless it has asked too often."""
        allowed = self.options.max_laters
        if self.claim.laters >= allowed:
            words = f"It asked to be called again more than {allowed} times: max_laters."
            return _failed(self.claim, self.executor, self.started, TooManyLaters(words))
        waits = later.after is not None
        delay = self._delay(later)
        message = text.storable(later.message, text.MESSAGE_LIMIT)
        return Settlement(
            run_id=self.claim.id,
            token=self.claim.token,
            outcome=Outcome.DEFERRED,
            next_state=State.WAITING if waits else State.READY if delay is None else State.SCHEDULED,
            delay=delay,
            after=later.after or (),
            at_once=not waits,
            duration=time.monotonic() - self.started,
            reason=message,
            # In the history, too: the next attempt has a reason of its own.
            error_message=message,
            executor=self.executor,
        )

    def _delay(self, later: Later) -> float | None:
        """Seconds until it is due. A date is meant by the database's clock, which decides everywhere."""
        if not isinstance(later.until, datetime):
            return later.delay_from(None)
        return later.delay_from(house.clock(Ledger(DjangoSession(self.backend.database))))

    def _rolled_back(self, later: Later) -> Settlement | None:
        """The end of a run that would wait for runs which its own raise has undone."""
        if not later.after:
            return None
        known = {run.id for run in Ledger(DjangoSession(self.backend.database)).fetch(later.after, history=False)}
        gone = [str(run_id) for run_id in later.after if run_id not in known]
        if not gone:
            return None
        words = (
            f"It raised Later(after=…) with run {gone[0]}, which does not exist: what is enqueued in an atomic block "
            "is undone when an exception leaves it. Return the Later instead."
        )
        return _failed(self.claim, self.executor, self.started, ValueError(words))

    def _success(self, value: Any) -> Settleable:
        kept = payload.normalize(value, "return value")
        stored = payload.dump(kept, "return value")
        payload.refuse_large(stored, payload.RESULT_LIMIT, "The task returned")
        if self.admitted.has_result or self._is_heard_of():
            object.__setattr__(self.result, "_return_value", kept)
        claim, run_id = self.claim, self.admitted.run_id
        signature = self.backend.seal.sign_result(run_id, stored)
        duration = time.monotonic() - self.started
        if self.in_writing:
            return rows.written_well(claim.id, run_id, claim.token, duration, stored, signature, self.executor)
        return Settlement(
            run_id=claim.id,
            token=claim.token,
            outcome=Outcome.SUCCESSFUL,
            next_state=State.SUCCESSFUL,
            duration=duration,
            result=stored,
            result_signature=signature,
            executor=self.executor,
        )

    def _fail(self, error: BaseException) -> Execution:
        if self.limit.interrupted is not None and self.limit.interrupted[0] is Outcome.INTERRUPTED:
            return self._interrupted(self.limit.interrupted[1])
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

    def _interrupted(self, reason: str) -> Execution:
        """The worker stops: what was raised inside is ours and no failure, and hundreds may end in this moment."""
        verdict = policy.after_unfinished(self.options.max_losses, reason)
        settlement = Settlement(
            run_id=self.claim.id,
            token=self.claim.token,
            outcome=Outcome.INTERRUPTED,
            next_state=verdict.state,
            duration=time.monotonic() - self.started,
            reason=verdict.reason,
            executor=self.executor,
        )
        return self._finish(settlement)

    def _given_back(self, error: OperationalError | InterfaceError) -> Settlement:
        """The task was not called: it is tried again later, each time a little later, and charged with nothing."""
        words = f"The database could not be reached before the task was called: {_message(error).strip()}"
        logger.warning("Run %s is given back. %s", self.claim.id, words)
        verdict = policy.after_unreachable(self.claim.refused_for)
        message = text.storable(words, text.MESSAGE_LIMIT)
        return Settlement(
            run_id=self.claim.id,
            token=self.claim.token,
            outcome=Outcome.RETURNED,
            next_state=verdict.state,
            delay=verdict.delay,
            duration=time.monotonic() - self.started,
            reason=message,
            executor=self.executor,
            error_class=_path(type(error)),
            error_message=message,
            refused=True,
        )

    def _judge(self, error: BaseException) -> tuple[Outcome, policy.Verdict]:
        """What the failure counts as. Whatever the task made of our interruption, it was ours."""
        if self.limit.interrupted is not None:
            outcome, reason = self.limit.interrupted
            if outcome is Outcome.CANCELLED:
                return outcome, policy.Verdict(State.CANCELLED, reason=reason)
            return outcome, policy.after_unfinished(self.options.max_losses, reason)
        if self._lost_its_transaction(error):
            # Nobody's fault, so not charged.
            return Outcome.INTERRUPTED, policy.again_after(_CONFLICT_PAUSE_SECONDS * (1 + random.random()))
        outcome = Outcome.TIMED_OUT if self.limit.reached else Outcome.FAILED
        return outcome, policy.after_failure(error, self.claim.failures + 1, self.options, self.result)

    def _lost_its_transaction(self, error: BaseException) -> bool:
        """
        Whether this atomic run's transaction is gone through no fault of its own, in a statement of the task's, in our
        own, or at the COMMIT: the database sacrificed it for another one, or the connection was lost. And has not been
        lost so too often in a row.
        """
        if not self.options.atomic or (self.limit.reached and not self.committing):
            return False
        if not _is_conflict(error) and not self.connection_lost:
            return False
        if not may_start_again(self.options.max_losses):
            return False
        in_a_row = 0
        for attempt in reversed(self.claim.history):
            if attempt.outcome is Outcome.INTERRUPTED and attempt.error_class:
                in_a_row += 1
            elif attempt.outcome is not Outcome.RETURNED:
                break
        return in_a_row < UNCHARGED_CONFLICTS

    def _finish(self, settlement: Settleable) -> Execution:
        """Tell Django's receivers, of ends only. A receiver that raises is logged and changes nothing."""
        ended = settlement.next_state in ENDS
        # The end is told here, even if nobody wants to hear it.
        settlement.told = ended
        heard = ended and self._is_heard_of()
        failed = ended and settlement.next_state is not State.SUCCESSFUL
        if not (heard or failed or self.admitted.has_result):
            return Execution(settlement)
        result = self.result
        object.__setattr__(result, "state", settlement.next_state)
        object.__setattr__(result, "status", status_of(settlement.next_state))
        object.__setattr__(result, "reason", "" if isinstance(settlement, Written) else settlement.reason)
        if ended:
            object.__setattr__(result, "finished_at", timezone.now())
        if failed and logs_failures:
            log_task_finished(sender=type(self.backend), task_result=result)
        if heard:
            task_finished.send_robust(sender=type(self.backend), task_result=result)
        return Execution(settlement)

    def _is_heard_of(self) -> bool:
        return bool(task_finished.receivers) and task_finished.has_listeners(type(self.backend))


#: Is given the token of a run with a time limit when its task, with its middleware, has returned or raised: to encode
#: and store a large value may take longer than the limit. A process that is killed by others puts its own way here.
on_returned: Callable[[int], None] | None = None

#: Whether failures are logged as Django does. For a process that has taken Django's own receivers off the
#: signals (see runners.child): a signal that nobody receives costs nothing.
logs_failures = False


@lru_cache(maxsize=64)
def _chain(paths: tuple[str, ...]) -> middleware.GetValue:
    return middleware.chain(paths, lambda context: context._call(context))


def _call_with_context(limit: Limit, admitted: Admitted, context: TaskContext) -> Any:
    """The end of the middleware chain."""
    args = [context, *admitted.args] if admitted.task.takes_context else admitted.args
    return _call_task(limit, admitted, args)


def _call_task(limit: Limit, admitted: Admitted, args: list[Any]) -> Any:
    """The innermost step: the task's function, under its time limit."""
    with InOneProcess():
        if admitted.is_coroutine:
            return call_coroutine(limit, admitted.task.func, args, admitted.kwargs)
        return limits.call(limit, admitted.task.func, args, admitted.kwargs)


def _call_alone(limit: Limit, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A coroutine in a loop of its own. The alarm reaches a loop that its own code blocks."""
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []
    over = threading.Event()

    async def call() -> Any:
        begun.append((asyncio.get_running_loop(), asyncio.current_task()))
        try:
            return await _call_coroutine(limit, function, args, kwargs)
        finally:
            over.set()

    try:
        return limits.call(limit, async_to_sync(call), (), {})
    except BaseException:
        for loop, task in begun:
            # It was raised in this thread. The loop has another, where the coroutine would go on beside the next run.
            if not over.is_set() and task is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(task.cancel)
                over.wait(_CANCEL_SECONDS)
        raise


def call_apart(limit: Limit, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The same, in a process that has nothing else to do: the connections that it used are not the next run's."""
    tending.close_after()
    return _call_alone(limit, function, args, kwargs)


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


def _is_conflict(error: BaseException | None) -> bool:
    """Whether it came of two transactions in each other's way, one of which had to go."""
    while error is not None:
        if isinstance(error, DatabaseError) and conflicts.code_of(error) in conflicts.CONFLICTS:
            return True
        # Django says that the transaction is broken, and by what.
        error = error.__cause__
    return False


def _is_unreachable(error: BaseException | None) -> bool:
    """Whether it came of a connection that was lost or refused, of whichever database."""
    while error is not None:
        if isinstance(error, _UNREACHABLE) and not conflicts.is_answer(error):
            return True
        error = error.__cause__
    return False
