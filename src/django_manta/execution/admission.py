"""
Who may run: the signature is verified, the task found, its options resolved, its arguments decoded.

What this code cannot vouch for is refused: given back for a while, in case a newer release knows
it, and then failed.
"""

import logging
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from inspect import iscoroutinefunction
from typing import Any

from django.core.signals import setting_changed
from django.db import Error as DatabaseError
from django.dispatch import receiver
from django.tasks import task_backends
from django.tasks.exceptions import InvalidTaskBackend

from django_manta import options, payload, text
from django_manta.conf import SETTINGS, Config
from django_manta.exceptions import BadTaskSignature, TaskNotFound
from django_manta.execution import policy
from django_manta.ledger import Claimed, DjangoSession, Ledger, RunRecord, Settlement
from django_manta.moments import to_datetime, to_datetime_or_none
from django_manta.result import TaskResult, attempt_errors, default_database, workers_of
from django_manta.states import Outcome, State, status_of
from django_manta.task import find, find_loaded, rebuild, unchecked_replace
from django_manta.typed import AnyTask

logger = logging.getLogger("django_manta")


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the code says about a run."""

    task: AnyTask
    options: options.Effective
    is_coroutine: bool


class Admitted:
    """A claimed run that this code vouches for."""

    __slots__ = ("_result", "args", "backend", "claim", "is_coroutine", "kwargs", "options", "run_id", "task")

    def __init__(self, claim: Claimed, backend: Any, run_id: str, resolved: Resolved) -> None:
        self.claim = claim
        self.backend = backend
        self.run_id = run_id
        self.task = resolved.task
        self.options = resolved.options
        self.is_coroutine = resolved.is_coroutine
        self.args, self.kwargs = payload.decode_arguments(claim.arguments)
        self._result: TaskResult | None = None

    @property
    def result(self) -> TaskResult:
        """The run as receivers, middleware and contexts see it. Made when the first of them asks."""
        if self._result is None:
            self._result = _running_result(self)
        return self._result

    @property
    def has_result(self) -> bool:
        """Whether somebody has seen the result, and so may look at it again."""
        return self._result is not None


def admit(claim: Claimed) -> Admitted:
    """Raise BadTaskSignature or TaskNotFound for what must not run."""
    backend = backend_of(claim.backend)
    run_id = _verify(backend, claim)
    if backend.queues and claim.queue not in backend.queues:
        raise TaskNotFound(f"Queue {claim.queue!r} is not among the QUEUES of TASKS[{claim.backend!r}].")
    return Admitted(
        claim,
        backend,
        run_id,
        resolve_signed(backend.config, claim.task, claim.queue, claim.priority, claim.backend, claim.overrides),
    )


def _verify(backend: Any, run: Claimed | RunRecord) -> str:
    """The run's id, as text."""
    run_id = str(run.id)
    if not backend.seal.run_is_genuine(run.signature, run_id, run.task, run.arguments, run.overrides, run.references):
        raise BadTaskSignature(
            f"The signature of run {run_id} does not match its task, arguments and overrides: the row was "
            "altered, or written with another SECRET_KEY or CLUSTER."
        )
    return run_id


def resolve(run: Claimed | RunRecord) -> Resolved:
    """
    The task of a run and the options that hold for it, for who does not execute it. Raise TaskNotFound or
    BadTaskSignature.

    The signature is verified where it matters: before a module is imported that the row names, and before an override
    holds. A row without overrides whose task is loaded names nothing else; its executor verifies it.
    """
    backend = backend_of(run.backend)
    if run.overrides or find_loaded(run.task) is None:
        _verify(backend, run)
    return resolve_signed(backend.config, run.task, run.queue, run.priority, run.backend, run.overrides)


def max_losses_of(run: Claimed | RunRecord) -> int:
    """
    How often a run may be lost, as it was given to the run or as the code says. 0 where this code cannot tell: nothing
    starts twice for want of a module.
    """
    try:
        return resolve(run).options.max_losses
    except Exception as error:
        logger.warning("The options of run %s are not known here: %s", run.id, error)
        return own_max_losses(run.overrides) or 0


def own_max_losses(overrides: str) -> int | None:
    """
    What a row says itself, if it says anything, verified or not: with this alone nobody can have anything executed.
    """
    try:
        given = payload.decode(overrides).get("max_losses") if overrides else None
    except Exception:
        return None
    return given if isinstance(given, int) else None


@lru_cache(maxsize=4096)
def resolve_signed(config: Config, path: str, queue: str, priority: int, backend: str, overrides: str) -> Resolved:
    """
    The task of a run that was verified, and the options that hold for it. Raise TaskNotFound.

    Remembered, because most runs are alike: nothing that it depends on changes in the life of a process.
    """
    find(path)
    task = rebuild(
        path,
        priority=priority,
        queue_name=queue,
        run_after=None,
        backend=backend,
        overrides=overrides,
        is_genuine=lambda: True,
    )
    try:
        return Resolved(task, options.effective(task, config, overrides), iscoroutinefunction(task.func))
    except ImportError as error:
        raise TaskNotFound(f"An override cannot be found: {error}.") from None


@lru_cache(maxsize=64)
def backend_of(alias: str) -> Any:
    """The backend of an alias. Remembered: what Django does to find it costs more than to verify a run."""
    try:
        backend = task_backends[alias]
    except InvalidTaskBackend as error:
        raise TaskNotFound(f"Backend {alias!r} is not configured in TASKS: {error}") from None
    if not hasattr(backend, "seal"):
        raise TaskNotFound(f"Backend {alias!r} is {type(backend).__name__}, not a MantaBackend.")
    return backend


@receiver(setting_changed)
def _forget_backends(*, setting: str, **kwargs: Any) -> None:
    if setting == "TASKS":
        backend_of.cache_clear()


def _running_result(admitted: Admitted) -> TaskResult:
    claim, task = admitted.claim, admitted.task
    return TaskResult(
        task=task if claim.run_after is None else unchecked_replace(task, run_after=to_datetime(claim.run_after)),
        id=admitted.run_id,
        status=status_of(State.RUNNING),
        enqueued_at=to_datetime(claim.enqueued_at),
        started_at=to_datetime(claim.started_at),
        finished_at=None,
        last_attempted_at=to_datetime(claim.last_attempted_at),
        args=admitted.args,
        kwargs=admitted.kwargs,
        backend=claim.backend,
        errors=attempt_errors(claim.history),
        worker_ids=workers_of(claim.history, claim.worker),
        state=State.RUNNING,
        reason="",
        deadline=to_datetime(claim.deadline),
        expires_at=to_datetime_or_none(claim.expires_at),
        metadata=payload.decode(claim.metadata),
        progress=None,
        history=claim.history,
    )


def refuse(claim: Claimed, refusal: Exception, executor: str) -> Settlement:
    """Give the run back for a while, in case a newer release knows it; then fail it."""
    verdict = _after_refusal(claim)
    message = text.storable(str(refusal), text.MESSAGE_LIMIT)
    kind = f"{type(refusal).__module__}.{type(refusal).__qualname__}"
    return Settlement(
        run_id=claim.id,
        token=claim.token,
        outcome=Outcome.FAILED if verdict is None else Outcome.RETURNED,
        next_state=State.FAILED if verdict is None else verdict.state,
        delay=None if verdict is None else verdict.delay,
        reason=message,
        executor=executor,
        error_class=kind,
        error_message=message,
        traceback=f"{kind}: {message}\n",
        refused=True,
    )


def _after_refusal(claim: Claimed) -> policy.Verdict | None:
    """
    See policy.after_refusal(). ``refused_for`` includes the time in which executors could not reach their database,
    which says nothing of the code. So the history is read, but only before the run would be failed for good.
    """
    skew = skew_seconds(claim.backend)
    verdict = policy.after_refusal(claim.refused_for, skew)
    if verdict is not None or not claim.refused_for or skew <= 0:
        return verdict
    try:
        database = backend_of(claim.backend).database
    except TaskNotFound:
        database = default_database()
    try:
        history = Ledger(DjangoSession(database)).history([claim.id]).get(claim.id, ())
    except DatabaseError:
        logger.warning("Could not read why run %s was given back before; it is given back again.", claim.id)
        return policy.Verdict(State.SCHEDULED, policy.LAST_REFUSAL_SECONDS)
    claimed_at = to_datetime(claim.last_attempted_at)
    since = policy.refused_since(history, claimed_at - timedelta(seconds=claim.refused_for))
    return policy.after_refusal(None if since is None else (claimed_at - since).total_seconds(), skew)


def skew_seconds(alias: str) -> float:
    """For how long what this code does not know is left to a newer release."""
    try:
        skew: float = backend_of(alias).config.skew_seconds
    except TaskNotFound:
        skew = SETTINGS["SKEW_SECONDS"].default
    return skew
