"""
The door: Django's Tasks backend.

Built by ``@task`` at import time, before the apps are ready, once per thread: nothing here touches
a model or the database until a run is enqueued or asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from inspect import iscoroutinefunction
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from asgiref.sync import sync_to_async
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, transaction
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task as DjangoTask
from django.tasks.exceptions import InvalidTask
from django.tasks.signals import task_enqueued

from django_manta import conf, options, payload, result
from django_manta.current import current_run
from django_manta.enqueue import Call, Enqueue, chain
from django_manta.ids import new_run_id
from django_manta.ledger import DjangoSession, Enqueued, Ledger, NewRun
from django_manta.moments import to_datetime
from django_manta.result import TaskResult
from django_manta.ringing import ring_after_commit
from django_manta.states import status_of
from django_manta.task import MissingTask, Task, rebuild, unchecked_replace
from django_manta.typed import AnyTask
from django_manta.workflow import own, together, waits
from django_manta.workflow.flow import current_workflow

#: Of so many tasks the options are remembered; those that ``using()`` makes for one call are forgotten with them.
_REMEMBERED = 256


class _Known(NamedTuple):
    """A task that may be enqueued, its options, and what they make of each of its runs, as fields of NewRun."""

    task: AnyTask
    effective: options.Effective
    shared: dict[str, Any]


class MantaBackend(BaseTaskBackend):
    """Runs live in the project's own database; workers claim them from there."""

    task_class = Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    # -- configuration ---------------------------------------------------------------------------

    @cached_property
    def config(self) -> conf.Config:
        """The settings, checked. Raise ImproperlyConfigured with all that is wrong with them."""
        return conf.read(self.alias, self.options)

    @cached_property
    def seal(self) -> payload.Seal:
        return payload.Seal(self.config.cluster)

    @property
    def database(self) -> str:
        """The alias of the database that holds manta's tables."""
        return self.config.database or result.default_database()

    @property
    def ledger(self) -> Ledger:
        """The ledger through Django's connection: what is done here joins the caller's transaction."""
        return Ledger(DjangoSession(self.database))

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        from django_manta import checks

        return list(checks.check_backend(self))

    # -- validation ------------------------------------------------------------------------------

    def validate_task(self, task: AnyTask) -> None:
        super().validate_task(checkable(task))

    def _known(self, task: AnyTask) -> _Known:
        """What holds for each run of ``task``, remembered while it is: most are of tasks that a module defines."""
        known = self._remembered.get(id(task))
        if known is None or known.task is not task:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            known = self._remembered[id(task)] = self._get_to_know(task)
        elif type(self).validate_task is not MantaBackend.validate_task:
            # Somebody else's rules may say otherwise the next time.
            self.validate_task(task)
        if known.effective.atomic and (database := self.database) != DEFAULT_DB_ALIAS:
            # Not remembered: a router may think otherwise the next time.
            data = result.data_databases(task.func.__module__)
            if database not in data:
                raise InvalidTask(
                    f"{task.module_path}: atomic=True needs manta's tables in the database of your data "
                    f"({', '.join(map(repr, data))}), but they are in {database!r}."
                )
        return known

    @cached_property
    def _remembered(self) -> dict[int, _Known]:
        return {}

    def _get_to_know(self, task: AnyTask) -> _Known:
        """Also what ``validate_task`` cannot know before the apps are ready."""
        self.validate_task(task)
        if isinstance(task, MissingTask):
            # Signed by us, the path of a row that nobody signed would be imported.
            raise InvalidTask(f"{task.module_path} is not known to this process, and cannot be enqueued here.")
        effective = options.effective(task, self.config)
        if effective.atomic and iscoroutinefunction(task.func):
            raise InvalidTask(
                f"{task.module_path} is a coroutine: it holds no transaction and cannot be atomic. Settings say so; "
                "give it atomic=False."
            )
        profile = effective.ray.get("runtime_env")
        if profile is not None and profile not in self.config.runtime_envs:
            known = ", ".join(map(repr, self.config.runtime_envs)) or "none"
            raise InvalidTask(f"{task.module_path}: RUNTIME_ENVS has no profile {profile!r}; it has: {known}.")
        shared = {
            "task": task.module_path,
            "backend": self.alias,
            "queue": task.queue_name,
            "priority": int(task.priority),
            "overrides": options.encode_overrides(task),
            "metadata": payload.dump(effective.metadata),
            "run_after": task.run_after,
            "expires": effective.expires,
            "hold": effective.hold,
            "waits": bool(effective.after),
        }
        return _Known(task, effective, shared)

    # -- enqueue ---------------------------------------------------------------------------------

    def enqueue[**P, R](
        self, task: "DjangoTask[P, R]", args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[P, R]:
        """One INSERT in the caller's transaction."""
        [enqueued] = self._enqueue_all([Call(task, args, kwargs)])
        return cast("TaskResult[P, R]", enqueued)

    async def aenqueue[**P, R](
        self, task: "DjangoTask[P, R]", args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[P, R]:
        """See enqueue()."""
        return await sync_to_async(self.enqueue, thread_sensitive=True)(task, args, kwargs)

    def enqueue_many(
        self,
        calls: Iterable[tuple[AnyTask, Sequence[Any], Mapping[str, Any]]],
    ) -> list[TaskResult]:
        """Enqueue one run for each ``(task, args, kwargs)``: all, or, if one is refused, none."""
        checked = [_checked(call, place) for place, call in enumerate(calls)]
        return self._enqueue_all(checked) if checked else []

    async def aenqueue_many(
        self,
        calls: Iterable[tuple[AnyTask, Sequence[Any], Mapping[str, Any]]],
    ) -> list[TaskResult]:
        """See enqueue_many()."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)

    def _enqueue_all(self, calls: list[Call]) -> list[TaskResult]:
        if not self.config.enqueue_middleware:
            return self._insert(calls)
        # In a transaction, so that a chain that loses or invents runs leaves none behind.
        with transaction.atomic(using=self.database):
            results: Any = self._enqueue(calls)
            if not isinstance(results, list) or len(results) != len(calls):
                raise ImproperlyConfigured(
                    f"ENQUEUE_MIDDLEWARE was given {len(calls)} calls and must return a list of as many results, "
                    f"not {results!r:.200}."
                )
        return cast("list[TaskResult]", results)

    @cached_property
    def _enqueue(self) -> Enqueue:
        return chain(self.config.enqueue_middleware, self._insert)

    def _insert(self, calls: list[Call]) -> list[TaskResult]:
        """The end of the chain: validate, encode, sign, insert, tell Django's receivers."""
        database, cluster = self.database, self.config.cluster
        shared = _once_per_task(self._shared, calls)
        encoded = [payload.encode_arguments(call.args, call.kwargs) for call in calls]
        runs = [self._new_run(shared[id(call.task)], arguments) for call, arguments in zip(calls, encoded, strict=True)]
        inserted = together.note(database, cluster, calls, runs, encoded)
        if inserted is None:
            inserted = waits.enqueue(database, cluster, calls, runs, encoded)
        own.remember(database, (run.id for run in runs))
        results = [
            self._result(call.task, run, row, arguments.args, arguments.kwargs)
            for call, run, row, arguments in zip(calls, runs, inserted, encoded, strict=True)
        ]
        for queue in {run.queue for run in runs if not run.waits}:
            ring_after_commit(database, cluster, queue)
        for each in results:
            # The run is in the caller's transaction now: a receiver cannot take it back by raising.
            task_enqueued.send_robust(type(self), task_result=each)
        return results

    def promise(self, task: AnyTask) -> TaskResult:
        """A run that waits for somebody outside: no gate will ever let it pass."""
        arguments = payload.encode_arguments([], {})
        run = self._new_run(self._shared(task) | {"waits": True}, arguments)
        [row] = self.ledger.enqueue([run])
        own.remember(self.database, [run.id])
        result = self._result(task, run, row, [], {})
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    def _shared(self, task: AnyTask) -> dict[str, Any]:
        """What all runs of ``task`` that are enqueued together have in common, as fields of NewRun."""
        known = self._known(task)
        return {**known.shared, "deadline": _deadline(known.effective), "workflow": current_workflow(self.database)}

    def _new_run(self, shared: dict[str, Any], arguments: payload.Arguments) -> NewRun:
        run_id = new_run_id()
        signature = self.seal.sign_run(
            str(run_id), shared["task"], arguments.text, shared["overrides"], arguments.references
        )
        run = NewRun(id=run_id, arguments=arguments.text, signature=signature, **shared)
        if arguments.references is not None:
            run.references = arguments.references
            run.waits = True
        return run

    def _result(
        self,
        task: AnyTask,
        run: NewRun,
        row: Enqueued,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> TaskResult:
        return TaskResult(
            task=self._as_stored(task, run, row),
            id=str(run.id),
            status=status_of(row.state),
            enqueued_at=row.enqueued_at,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
            state=row.state,
            reason="",
            deadline=row.deadline,
            expires_at=row.expires_at,
            metadata=payload.decode(run.metadata),
            progress=None,
            history=(),
        )

    def _as_stored(self, task: AnyTask, run: NewRun, row: Enqueued) -> AnyTask:
        """The task as ``get_result`` will show it: what was fixed at enqueue is in the row, not in the task."""
        overridden: frozenset[str] = getattr(task, "overridden", frozenset())
        if overridden and any(options.OPTIONS[name].at_enqueue for name in overridden):
            return rebuild(
                run.task,
                priority=run.priority,
                queue_name=run.queue,
                run_after=row.run_after,
                backend=run.backend,
                overrides=run.overrides,
                is_genuine=lambda: True,
            )
        if task.run_after != row.run_after or task.backend != self.alias:
            return unchecked_replace(task, run_after=row.run_after, backend=self.alias)
        return task

    # -- results ---------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> TaskResult:
        return result.get_result(result_id, using=self.database)

    async def aget_result(self, result_id: str) -> TaskResult:
        return await sync_to_async(self.get_result, thread_sensitive=True)(result_id)


def checkable(task: AnyTask) -> AnyTask:
    """
    ``task`` as Django's validation can take it.

    A ``run_after`` counted from enqueue, by the database's clock, is no date that could be validated yet.
    """
    run_after: Any = task.run_after
    if not isinstance(run_after, timedelta):
        return task
    seen = {name: getattr(task, name) for name in ("func", "takes_context", "priority", "queue_name")}
    return cast("AnyTask", SimpleNamespace(**seen, run_after=None))


def _checked(call: Any, place: int) -> Call:
    match call:
        case [DjangoTask() as task, (list() | tuple()) as args, (dict() | Mapping()) as kwargs]:
            return Call(task, args, kwargs)
        case _:
            raise TypeError(f"Call {place} must be (task, args, kwargs), such as (add, (1, 2), {{}}), not {call!r}.")


def _once_per_task[T](validate: Any, calls: list[Call]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for call in calls:
        if id(call.task) not in found:
            found[id(call.task)] = validate(call.task)
    return found


def _deadline(effective: options.Effective) -> datetime | timedelta:
    """A run enqueued inside a run inherits its deadline, unless somebody gave it one."""
    running = current_run()
    if running is not None and effective.deadline is options.OPTIONS["deadline"].default:
        return to_datetime(running.deadline)
    return effective.deadline
