"""
Who may run: the signature is verified, the task found, its options resolved, its arguments decoded.

What this code cannot vouch for is refused: given back for a while, in case a newer release knows
it, and then failed.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.tasks import task_backends
from django.tasks.exceptions import InvalidTaskBackend

from django_manta import options, payload, text
from django_manta.conf import SETTINGS, Config
from django_manta.exceptions import BadTaskSignature, TaskNotFound
from django_manta.execution import policy
from django_manta.ledger import Claimed, Settlement
from django_manta.result import TaskResult, attempt_errors, workers_of
from django_manta.states import Outcome, State, status_of
from django_manta.task import find, rebuild, unchecked_replace
from django_manta.typed import AnyTask


@dataclass(frozen=True, slots=True)
class Admitted:
    """A claimed run that this code vouches for."""

    claim: Claimed
    backend: Any
    options: options.Effective
    result: TaskResult


def admit(claim: Claimed) -> Admitted:
    """Raise BadTaskSignature or TaskNotFound for what must not run."""
    backend = _backend(claim.backend)
    run_id = str(claim.id)
    if not backend.seal.run_is_genuine(claim.signature, run_id, claim.task, claim.arguments, claim.overrides):
        raise BadTaskSignature(
            f"The signature of run {run_id} does not match its task, arguments and overrides: the row was "
            "altered, or written with another SECRET_KEY or CLUSTER."
        )
    if backend.queues and claim.queue not in backend.queues:
        raise TaskNotFound(f"Queue {claim.queue!r} is not among the QUEUES of TASKS[{claim.backend!r}].")
    task, effective = resolve(backend.config, claim.task, claim.queue, claim.priority, claim.backend, claim.overrides)
    return Admitted(claim, backend, effective, _running_result(claim, run_id, task))


@lru_cache(maxsize=4096)
def resolve(
    config: Config, path: str, queue: str, priority: int, backend: str, overrides: str
) -> tuple[AnyTask, options.Effective]:
    """
    The task of a run and the options that hold for it. Raise TaskNotFound.

    Remembered, because most runs are alike: nothing that it depends on changes in the life of a process.
    """
    find(path)
    task = rebuild(path, priority=priority, queue_name=queue, run_after=None, backend=backend, overrides=overrides)
    try:
        return task, options.effective(task, config, overrides)
    except ImportError as error:
        raise TaskNotFound(f"An override cannot be found: {error}.") from None


def _backend(alias: str) -> Any:
    try:
        backend = task_backends[alias]
    except InvalidTaskBackend as error:
        raise TaskNotFound(f"Backend {alias!r} is not configured in TASKS: {error}") from None
    if not hasattr(backend, "seal"):
        raise TaskNotFound(f"Backend {alias!r} is {type(backend).__name__}, not a MantaBackend.")
    return backend


def _running_result(claim: Claimed, run_id: str, task: AnyTask) -> TaskResult:
    args, kwargs = payload.decode_arguments(claim.arguments)
    return TaskResult(
        task=task if claim.run_after is None else unchecked_replace(task, run_after=claim.run_after),
        id=run_id,
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


def refuse(claim: Claimed, refusal: Exception, executor: str) -> Settlement:
    """Give the run back for a while, in case a newer release knows it; then fail it."""
    refused_for = None if claim.refused_for is None else claim.refused_for.total_seconds()
    verdict = policy.after_refusal(refused_for, _skew_seconds(claim.backend))
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


def _skew_seconds(alias: str) -> float:
    try:
        skew: float = _backend(alias).config.skew_seconds
    except TaskNotFound:
        skew = SETTINGS["SKEW_SECONDS"].default
    return skew
