"""
Results: a run as the caller holds it.

Django's ``TaskResult`` with what we know beyond it. Built from the ledger's records, never from
models, so that a result costs two statements and survives code that has moved on.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import batched
from types import GenericAlias, MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router, transaction
from django.tasks import task_backends
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTaskBackend, TaskResultDoesNotExist
from django.tasks.signals import task_finished

from django_manta import exceptions, payload
from django_manta.current import current_run
from django_manta.ids import parse_run_id
from django_manta.ledger import AttemptRecord, DjangoSession, Ledger, RunRecord, Value, values
from django_manta.ledger.book import CANCEL_BATCH
from django_manta.patience import HEAD_START_SECONDS, is_new, pauses
from django_manta.ringing import CANCEL, ring_after_commit
from django_manta.signals import run_settled
from django_manta.states import BAD_ENDS, ENDS, OWNED, UNSTARTED, Outcome, State, status_of
from django_manta.task import rebuild
from django_manta.typed import GenericTaskResult, P, R
from django_manta.workflow import own

#: The class that names each bad end which has no exception of its own.
_END_ERRORS: dict[State, type[BaseException]] = {
    State.CANCELLED: exceptions.TaskCancelled,
    State.LOST: exceptions.TaskLost,
    State.EXPIRED: exceptions.TaskExpired,
    State.QUARANTINED: exceptions.TaskQuarantined,
    State.UPSTREAM_FAILED: exceptions.UpstreamFailed,
}

_ERRORS = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.LOST, Outcome.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run says it has come."""

    done: float
    total: float | None
    message: str

    @property
    def share(self) -> float | None:
        """Between 0 and 1, or None when the total is not known."""
        return min(self.done / self.total, 1.0) if self.total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult(GenericTaskResult[P, R]):  # type: ignore[misc]  # Django's is frozen; its stub forgot
    """A run: Django's fields, and ours."""

    state: State
    #: Why the run stands where it stands, for people; often empty.
    reason: str
    deadline: datetime
    expires_at: datetime | None
    metadata: dict[str, Any]
    progress: Progress | None
    #: The ended attempts, oldest first, also those that never started user code.
    history: tuple[AttemptRecord, ...]

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)

    def __post_init__(self) -> None:
        # Django normalizes the arguments here; ours come from the payload, which already has.
        pass

    def manta_references(self) -> str:
        """What this stands for among the arguments of another run."""
        return self.id

    def refresh(self) -> None:
        """Reload everything that can change. Two statements."""
        try:
            backend: Any = task_backends[self.backend]
        except InvalidTaskBackend:
            # Its alias was removed from the settings; the run is still there.
            self._take_over(get_result(self.id))
        else:
            self._take_over(backend.get_result(self.id))

    async def arefresh(self) -> None:
        """See refresh()."""
        await sync_to_async(self.refresh, thread_sensitive=True)()

    def _take_over(self, other: "TaskResult") -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, getattr(other, each.name))

    # -- waiting ---------------------------------------------------------------------------------

    def join(self, timeout: float | None = None) -> R:
        """
        Wait until the run has ended, refresh, and return its value.

        Raise TimeoutError after ``timeout`` seconds, ValueError if the run ended badly (as
        ``return_value`` does). Refuses to wait where waiting cannot end: inside ``atomic()``, where
        the run is not committed yet, and inside a task, where it would hold a slot.
        """
        if self.state in ENDS:
            return self.return_value
        self._refuse_to_wait()
        if is_new(self.enqueued_at) and timeout != 0:
            time.sleep(HEAD_START_SECONDS)
        for pause in pauses(timeout):
            if self._has_ended():
                break
            if pause is None:
                raise self._too_late(timeout)
            time.sleep(pause)
        return self.return_value

    async def ajoin(self, timeout: float | None = None) -> R:
        """See join()."""
        if self.state in ENDS:
            return self.return_value
        await sync_to_async(self._refuse_to_wait, thread_sensitive=True)()
        if is_new(self.enqueued_at) and timeout != 0:
            await asyncio.sleep(HEAD_START_SECONDS)
        for pause in pauses(timeout):
            if await sync_to_async(self._has_ended, thread_sensitive=True)():
                break
            if pause is None:
                raise self._too_late(timeout)
            await asyncio.sleep(pause)
        return self.return_value

    def _refuse_to_wait(self) -> None:
        running = current_run()
        if running is not None:
            raise RuntimeError(
                f"join() inside a task ({running.task}) would hold its slot while it waits. Enqueue a task "
                "that needs the result instead."
            )
        if connections[_database_of(self.backend)].in_atomic_block:
            raise RuntimeError(
                "join() inside atomic() could wait for ever: what is enqueued there exists only once it commits."
            )

    def _has_ended(self) -> bool:
        """Whether it has; if so, this is refreshed."""
        ledger = _ledger(_database_of(self.backend))
        try:
            record = ledger.ended(UUID(self.id))
        except LookupError:
            raise TaskResultDoesNotExist(self.id) from None
        if record is None:
            return False
        self._take_over(from_record(record, _delegated(ledger, [record])))
        return True

    def _too_late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"Run {self.id} had not ended after {timeout or 0:g} s.")

    # -- what a person decides -------------------------------------------------------------------

    def cancel(self, reason: str = "", *, cascade: bool = False) -> State:
        """
        Ask that the run does not go on; refresh and return its state.

        A pending run is CANCELLED at once, a running one CANCELLING until nothing of it runs any
        more, a finished one stays as it is. What it has delegated to is cancelled, too. With ``cascade`` also
        everything that waits for it, directly or not; otherwise those learn that it ended badly.
        """
        database = _database_of(self.backend)
        ledger = _ledger(database)
        moved = ledger.cancel([UUID(self.id)], reason, cascade=cascade)
        self.refresh()
        spread_the_word(database, _cluster_of(self.backend), moved, [self])
        return self.state

    def _tell_the_end(self) -> None:
        """No executor will: nothing of the run was running."""
        sender = type(task_backends[self.backend]) if self.backend in task_backends.settings else None
        task_finished.send_robust(sender=sender, task_result=self)
        run_settled.send_robust(sender=sender, run_id=self.id, state=self.state)

    async def acancel(self, reason: str = "", *, cascade: bool = False) -> State:
        """See cancel()."""
        return await sync_to_async(self.cancel, thread_sensitive=True)(reason, cascade=cascade)

    def retry(self) -> State:
        """
        Make a run that ended badly ready again, with a fresh budget; refresh and return its state.

        Raise ValueError if it has not ended badly.
        """
        database = _database_of(self.backend)
        moved = _ledger(database).retry([UUID(self.id)])
        self.refresh()
        spread_the_word(database, _cluster_of(self.backend), moved, [self], self.task.queue_name)
        if not moved:
            raise ValueError(f"Run {self.id} is {self.state}; only a run that ended badly can be retried.")
        return self.state

    async def aretry(self) -> State:
        """See retry()."""
        return await sync_to_async(self.retry, thread_sensitive=True)()


# -- building --------------------------------------------------------------------------------------


def default_database() -> str:
    """Where the routers send manta's tables."""
    if not apps.is_installed("django_manta"):
        raise ImproperlyConfigured("Add 'django_manta' to INSTALLED_APPS: its tables are where runs live.")
    from django_manta.models import Run

    return router.db_for_write(Run)


def data_databases(module: str = "") -> list[str]:
    """Where the routers send the project's data: the models of the app that ``module`` is of, or else all models."""
    app = apps.get_containing_app_config(module)
    models = [*app.get_models()] if app is not None else []
    models = models or [model for model in apps.get_models() if model._meta.app_label != "manta"]
    return sorted({router.db_for_write(model) for model in models}) or [default_database()]


def _database_of(backend: str) -> str:
    """The database of a backend alias, also of one that is no longer configured."""
    try:
        configured = task_backends[backend]
    except InvalidTaskBackend:
        return default_database()
    return getattr(configured, "database", None) or default_database()


def _cluster_of(backend: str) -> str:
    try:
        config: Any = getattr(task_backends[backend], "config", None)
    except InvalidTaskBackend:
        config = None
    return config.cluster if config is not None else "default"


def _ledger(using: str) -> Ledger:
    return Ledger(DjangoSession(using))


def get_result(result_id: object, using: str | None = None) -> TaskResult:
    """The result of a run by its id. Raise TaskResultDoesNotExist, also for a malformed id."""
    run_id = parse_run_id(result_id)
    if run_id is None:
        raise TaskResultDoesNotExist(result_id)
    ledger = _ledger(using or default_database())
    records = ledger.fetch([run_id])
    if not records:
        raise TaskResultDoesNotExist(result_id)
    return from_record(records[0], _delegated(ledger, records))


def _delegated(ledger: Ledger, records: Sequence[RunRecord]) -> dict[str, Value]:
    """The values of those runs that ended well and have none of their own."""
    ids = [record.id.hex for record in records if record.delegate is not None and record.state is State.SUCCESSFUL]
    return values.fetch(ledger, ids, limit=None) if ids else {}


def results_of(ledger: Ledger, ids: Iterable[UUID]) -> list[TaskResult]:
    """The results of runs, in order: two statements, and one for each step of delegation."""
    records = ledger.fetch(ids)
    values = _delegated(ledger, records)
    return [from_record(record, values) for record in records]


def refresh_all(results: "Sequence[TaskResult]") -> None:
    """Reload results that may be of several databases."""
    by_database: dict[str, list[TaskResult]] = {}
    for result in results:
        by_database.setdefault(_database_of(result.backend), []).append(result)
    for database, of_one in by_database.items():
        ledger = _ledger(database)
        records = ledger.fetch([UUID(result.id) for result in of_one])
        values = _delegated(ledger, records)
        found = {str(record.id): from_record(record, values) for record in records}
        for result in of_one:
            if result.id not in found:
                raise TaskResultDoesNotExist(result.id)
            result._take_over(found[result.id])


def states_of(results: "Sequence[TaskResult]") -> list[State]:
    """Where runs stand now. One statement a database."""
    by_database: dict[str, list[UUID]] = {}
    for result in results:
        by_database.setdefault(_database_of(result.backend), []).append(UUID(result.id))
    states: list[State] = []
    for database, ids in by_database.items():
        found = _ledger(database).states(ids)
        states += [found[run_id] for run_id in ids if run_id in found]
    return states


def cancel_all(results: "Sequence[TaskResult]", reason: str = "") -> None:
    """Ask that none of the runs goes on: CANCEL_BATCH in a transaction, unless the caller's is open."""
    by_backend: dict[str, list[TaskResult]] = {}
    for result in results:
        by_backend.setdefault(result.backend, []).append(result)
    for backend, of_one in by_backend.items():
        database = _database_of(backend)
        # In the order in which all cancel runs, see Ledger.cancel().
        for some in batched(sorted(of_one, key=lambda result: result.id), CANCEL_BATCH):
            moved = _ledger(database).cancel([UUID(result.id) for result in some], reason)
            refresh_all(some)
            spread_the_word(database, _cluster_of(backend), moved, some)


def spread_the_word(
    database: str, cluster: str, moved: Mapping[UUID, State], known: "Sequence[TaskResult]", word: str = CANCEL
) -> None:
    """Somebody decided, and runs moved: wake the workers, and tell of the ends, which no executor knows of."""
    if not moved:
        return
    if connections[database].in_atomic_block or any(state not in ENDS for state in moved.values()):
        ring_after_commit(database, cluster, word)
    told = [result for result in known if moved.get(UUID(result.id)) in ENDS]
    others = moved.keys() - {UUID(result.id) for result in known}
    ended = [run_id for run_id in others if moved[run_id] in ENDS]

    def tell() -> None:
        for result in told:
            result._tell_the_end()
        for some in batched(ended, CANCEL_BATCH):
            for result in results_of(_ledger(database), some):
                result._tell_the_end()

    if (told or ended) and own.is_heard_of(database):
        transaction.on_commit(tell, using=database, robust=True)


def from_record(run: RunRecord, values: Mapping[str, Value] = MappingProxyType({})) -> TaskResult:
    args, kwargs = _arguments(run.arguments)
    result = TaskResult(
        task=rebuild(
            run.task,
            priority=run.priority,
            queue_name=run.queue,
            run_after=run.run_after,
            backend=run.backend,
            overrides=run.overrides,
            is_genuine=lambda: _is_genuine(run),
        ),
        id=str(run.id),
        status=status_of(run.state),
        enqueued_at=run.enqueued_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        last_attempted_at=run.last_attempted_at,
        args=args,
        kwargs=kwargs,
        backend=run.backend,
        errors=errors_of(run),
        worker_ids=workers_of(run.history, run.worker if run.state in OWNED else ""),
        state=run.state,
        reason=run.reason,
        deadline=run.deadline,
        expires_at=run.expires_at,
        metadata=_tolerantly(payload.decode, run.metadata) or {},
        progress=read_progress(run.progress),
        history=run.history,
    )
    if run.state is State.SUCCESSFUL and run.result is not None:
        object.__setattr__(result, "_return_value", _tolerantly(payload.decode, run.result))
    elif run.state is State.SUCCESSFUL and run.delegate is not None:
        object.__setattr__(result, "_return_value", _tolerantly(lambda _: value_from(run.id.hex, values), ""))
    return result


def seal_of(alias: str) -> payload.Seal | None:
    """What the backend of an alias signs with. None of one that is gone from the settings."""
    try:
        seal: payload.Seal = task_backends[alias].seal  # type: ignore[attr-defined]
    except (InvalidTaskBackend, ImproperlyConfigured, AttributeError):
        return None
    return seal


def _is_genuine(run: RunRecord) -> bool:
    """Whether the run was signed by this project. One whose backend is gone from the settings cannot be verified."""
    seal = seal_of(run.backend)
    signed = str(run.id), run.task, run.arguments, run.overrides, run.references
    return seal is not None and seal.run_is_genuine(run.signature, *signed)


def value_from(run_id: str, values: Mapping[str, Value]) -> Any:
    """The value of a run, by way of those that it delegated to."""

    def read(each: str) -> Any:
        value = values[UUID(each).hex]
        if value.delegate is not None:
            return payload.Pointer(payload.decode(value.delegate))
        return None if value.result is None else payload.decode(value.result)

    return payload.unfold(run_id, read)


def _arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """A row altered by hand runs nothing, but it must still be shown."""
    try:
        stored: Any = payload.decode_arguments(text)
    except (ValueError, TypeError):
        return [], {}
    return stored if list(map(type, stored)) == [list, dict] else ([], {})


def workers_of(history: Iterable[AttemptRecord], present: str = "") -> list[str]:
    """The workers of the attempts that started, so that ``attempts == len(worker_ids)``."""
    workers = [attempt.worker for attempt in history if attempt.outcome not in UNSTARTED]
    return [*workers, present] if present else workers


def errors_of(run: RunRecord) -> list[TaskError]:
    """One error for each attempt that ended badly, and one for an end that no attempt explains."""
    errors = attempt_errors(run.history)
    if run.state in BAD_ENDS and run.state in _END_ERRORS:
        path = _path(_END_ERRORS[run.state])
        if not errors or errors[-1].exception_class_path != path:
            errors.append(TaskError(exception_class_path=path, traceback=f"{path}: {run.reason}\n"))
    elif run.state is State.FAILED and (not run.history or run.history[-1].outcome not in _ERRORS):
        path = _path(_failure_of(run))
        errors.append(TaskError(exception_class_path=path, traceback=f"{path}: {run.reason}\n"))
    return errors


def _failure_of(run: RunRecord) -> type[BaseException]:
    """Why a run is FAILED that no attempt failed of: its delegate, somebody outside, or a circle."""
    if run.delegate is not None:
        return exceptions.UpstreamFailed
    return exceptions.CircularWait if run.attempts else exceptions.PromiseRejected


def attempt_errors(history: Sequence[AttemptRecord]) -> list[TaskError]:
    return [
        TaskError(
            exception_class_path=attempt.error_class,
            traceback=attempt.traceback or f"{attempt.error_class}: {attempt.error_message}\n",
        )
        for attempt in history
        if attempt.outcome in _ERRORS and attempt.error_class
    ]


def read_progress(stored: str | None) -> Progress | None:
    if stored is None:
        return None
    progress = _tolerantly(lambda text: Progress(**payload.decode(text)), stored)
    if progress is None or not _is_number(progress.done) or not (progress.total is None or _is_number(progress.total)):
        return None
    return progress


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _tolerantly[T](read: Callable[[str], T], stored: str) -> T | None:
    """What was altered by hand cannot be read, but the rest of the run must still be shown."""
    try:
        return read(stored)
    except (ValueError, TypeError, AttributeError, LookupError):
        return None


def _path(error: type[BaseException]) -> str:
    return f"{error.__module__}.{error.__qualname__}"
