"""
Our Task: Django's, with the options of ``options.py`` riding on Django's own decorator.

Django hands the unknown keywords of ``@task(...)`` to the backend's ``task_class``; this is that
class. Frozen, slotted, hashable and picklable, like Django's.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import lru_cache
from inspect import iscoroutinefunction
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Self, Unpack
from uuid import UUID

from asgiref.sync import sync_to_async
from django.apps import apps
from django.tasks.base import Task as DjangoTask
from django.tasks.exceptions import InvalidTask
from django.utils.module_loading import module_has_submodule

from django_manta import importing, options
from django_manta.backoff import Backoff
from django_manta.exceptions import TaskNotFound
from django_manta.options import NOT_GIVEN, Moment, NotGiven
from django_manta.states import When
from django_manta.typed import AnyTask, GenericTask, P, R, TakesOne, UsingKeywords
from django_manta.workflow.group import Group

if TYPE_CHECKING:
    from django_manta.result import TaskResult

logger = logging.getLogger("django_manta")

#: Keywords of Django's own that ``.using()`` takes, with None for "not given".
_DJANGO_KEYWORDS = frozenset({"priority", "queue_name", "run_after", "backend"})

#: Positional arguments, as a list or a tuple: a string is a sequence too, and always a mistake.
type Args = list[Any] | tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(GenericTask[P, R]):
    """A task and its options. An option left out is NOT_GIVEN here and resolved when it is needed."""

    max_attempts: int | NotGiven = NOT_GIVEN
    max_losses: int | NotGiven = NOT_GIVEN
    backoff: Backoff | NotGiven = NOT_GIVEN
    retry_on: tuple[str, ...] | NotGiven | None = NOT_GIVEN
    no_retry_on: tuple[str, ...] | NotGiven = NOT_GIVEN
    timeout: float | NotGiven | None = NOT_GIVEN
    expires: Moment | NotGiven | None = NOT_GIVEN
    deadline: Moment | NotGiven = NOT_GIVEN
    atomic: bool | NotGiven = NOT_GIVEN
    metadata: dict[str, Any] | NotGiven = field(default=NOT_GIVEN, hash=False)
    aliases: tuple[str, ...] | NotGiven = NOT_GIVEN
    hold: bool | NotGiven = NOT_GIVEN
    after: tuple[UUID, ...] | NotGiven = NOT_GIVEN
    when: When | NotGiven = NOT_GIVEN
    max_laters: int | NotGiven = NOT_GIVEN
    ray: dict[str, Any] | NotGiven = field(default=NOT_GIVEN, hash=False)
    #: Names of the options that ``.using()`` gave: they travel with the run.
    overridden: frozenset[str] = frozenset()

    def __new__(cls, **keywords: Any) -> Self:
        # Before the generated __init__, whose TypeError could only say "unexpected keyword".
        for name, value in keywords.items():
            if name not in cls.__dataclass_fields__:
                raise TypeError(options.unknown(name, value))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        if not isinstance(self.run_after, datetime | timedelta | None):
            raise InvalidTask(f"run_after must be an aware datetime or a timedelta, not {self.run_after!r}.")
        if self.atomic and iscoroutinefunction(self.func):
            raise InvalidTask(f"{self.name}: atomic=True needs a plain function; a coroutine holds no transaction.")
        for name, value in options.given(self).items():
            if not options.OPTIONS[name].in_decorator and name not in self.overridden:
                raise TypeError(f"Task option {name!r} can only be given to .using(), not to @task.")
            object.__setattr__(self, name, options.parse(name, value))
        DjangoTask.__post_init__(self)
        for path in self.aliases or ():
            _ALIASES[path] = self.module_path

    # Django's slotted dataclass makes zero-argument super() unusable here.
    def using(self, **changes: Unpack[UsingKeywords]) -> "Task[P, R]":
        """
        A copy with other options: Django's (``priority``, ``queue_name``, ``run_after``, ``backend``)
        and those of ``options.OPTIONS``. An option given here also holds for later attempts of the
        runs enqueued with it, whatever the code says by then.
        """
        given: dict[str, Any] = {
            name: value for name, value in changes.items() if name not in _DJANGO_KEYWORDS or value is not None
        }
        ours = set()
        for name, value in list(given.items()):
            if name in _DJANGO_KEYWORDS:
                continue
            option = options.OPTIONS.get(name)
            if option is None:
                raise TypeError(options.unknown(name, value))
            if not option.in_using:
                raise TypeError(f"Task option {name!r} belongs to @task; .using() cannot change it.")
            if value is NOT_GIVEN:
                del given[name]
            else:
                ours.add(name)
        return replace(self, **given, overridden=self.overridden | ours)

    if TYPE_CHECKING:
        #: What was decorated, with the context among its parameters and a coroutine for its result.
        func: Callable[..., Any]

        # Django's, which return our results.
        def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> "TaskResult[P, R]": ...
        async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> "TaskResult[P, R]": ...
        def get_result(self, result_id: str) -> "TaskResult[P, R]": ...
        async def aget_result(self, result_id: str) -> "TaskResult[P, R]": ...
    else:
        # `Task[[int], str]` is an annotation that costs nothing.
        __class_getitem__ = classmethod(GenericAlias)

    # -- enqueue many ----------------------------------------------------------------------------

    def enqueue_many(self, calls: Iterable[tuple[Args, Mapping[str, Any]]]) -> "Group[R]":
        """Enqueue one run for each ``(args, kwargs)``: all of them or, if one is refused, none."""
        return _enqueue_many(self, [(self, *_checked(call, place)) for place, call in enumerate(calls)])

    async def aenqueue_many(self, calls: Iterable[tuple[Args, Mapping[str, Any]]]) -> "Group[R]":
        """See enqueue_many()."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)

    def map[X](self: TakesOne[X], values: Iterable[X]) -> "Group[R]":
        """Enqueue one run for each value, given to the task as its only argument."""
        return _enqueue_many(self, [(self, (value,), {}) for value in values])

    async def amap[X](self: TakesOne[X], values: Iterable[X]) -> "Group[R]":
        """See map()."""
        enqueue_many = sync_to_async(_enqueue_many, thread_sensitive=True)
        return await enqueue_many(self, [(self, (value,), {}) for value in values])

    def starmap(self, arguments: Iterable[Args]) -> "Group[R]":
        """Enqueue one run for each tuple of positional arguments."""
        return self.enqueue_many((_checked_args(args, place), {}) for place, args in enumerate(arguments))

    async def astarmap(self, arguments: Iterable[Args]) -> "Group[R]":
        """See starmap()."""
        return await self.aenqueue_many([(_checked_args(args, place), {}) for place, args in enumerate(arguments)])


def _enqueue_many(task: Any, calls: list[tuple[Any, Args, Mapping[str, Any]]]) -> Group[Any]:
    backend = task.get_backend()
    if hasattr(backend, "enqueue_many"):
        return Group(backend.enqueue_many(calls))
    return Group(backend.enqueue(one, list(args), dict(kwargs)) for one, args, kwargs in calls)


def _checked(call: Any, place: int) -> tuple[Args, Mapping[str, Any]]:
    match call:
        case [(list() | tuple()) as args, (dict() | Mapping()) as kwargs]:
            return args, kwargs
        case _:
            raise TypeError(f"Call {place} must be (args, kwargs), such as ((1, 2), {{}}), not {call!r}.")


def _checked_args(args: Any, place: int) -> Args:
    if not isinstance(args, list | tuple):
        raise TypeError(f"Arguments {place} must be a list or tuple of positional arguments, not {args!r}.")
    return args


# -- finding and rebuilding --------------------------------------------------------------------------


def find(path: str) -> AnyTask:
    """
    The Task that ``path`` names, or that lists it among its ``aliases``. Its module is imported: the path must come
    from code, from the settings, or from a run whose signature was verified.

    Only a Task instance will do: a dotted path in a row must never reach an arbitrary callable.
    Raise TaskNotFound with a sentence that says what is missing.
    """
    try:
        found = importing.load(path)
    except ImportError as error:
        moved_to = _moved_to(path)
        if moved_to is not None:
            return find(moved_to)
        raise TaskNotFound(_missing_words(path, error)) from None
    if not _is_task(found):
        raise TaskNotFound(f"{path!r} is not a Task; decorate the function with @task.")
    task: AnyTask = found
    return task


def find_loaded(path: str) -> AnyTask | None:
    """The same among the modules that this process has imported: for the path of a row that nobody has verified."""
    found = importing.loaded(path)
    if _is_task(found):
        task: AnyTask = found
        return task
    present = _ALIASES.get(path, path)
    return None if present == path else find_loaded(present)


def _is_task(found: Any) -> bool:
    # Not isinstance(), which asks a lazy object for its class, and so evaluates it.
    return issubclass(type(found), DjangoTask)


def _missing_words(path: str, error: ImportError) -> str:
    absent = isinstance(error, ModuleNotFoundError) and path.startswith(error.name or "?")
    if absent or isinstance(error.__cause__, AttributeError):
        return (
            f"Task {path!r} cannot be found: {error}. If the function moved, name its old path in the "
            "`aliases` of the task."
        )
    words = str(error) if isinstance(error, importing.ImportFailed) else f"{type(error).__name__}: {error}"
    return f"Task {path!r} cannot be imported: {words}."


#: Old dotted path → present one, of tasks that moved. Filled as their modules are imported.
_ALIASES: dict[str, str] = {}


def _moved_to(path: str) -> str | None:
    if path not in _ALIASES:
        # The module that now has the function may not have been imported by this process.
        load_tasks()
    present = _ALIASES.get(path)
    return present if present != path else None


def load_tasks() -> None:
    """Import the tasks module of each app. One that cannot be imported is logged, and the others are imported."""
    for app in apps.get_app_configs():
        if module_has_submodule(app.module, "tasks"):
            try:
                importing.load_module(f"{app.name}.tasks")
            except ImportError:
                logger.warning("The module %s.tasks cannot be imported.", app.name, exc_info=True)


def rebuild(
    path: str,
    *,
    priority: int,
    queue_name: str,
    run_after: datetime | None,
    backend: str,
    overrides: str = "",
    is_genuine: Callable[[], bool],
) -> AnyTask:
    """
    The Task of a stored run, not validated again: its queue, its function or its backend may be gone
    from the code, and the run must still be shown.

    ``is_genuine`` verifies the run's signature. It is asked where that matters: before a module is imported that the
    run names, and before an override holds. A run without overrides whose task is loaded names nothing else.
    """
    task = find_loaded(path)
    genuine = is_genuine() if overrides or task is None else True
    if task is None:
        task = _find_or_missing(path) if genuine else _missing(path)
    changes: dict[str, Any] = {
        "priority": priority,
        "queue_name": queue_name,
        "run_after": run_after,
        "backend": backend,
    }
    if overrides and genuine:
        changes |= _stored_overrides(overrides)
    return unchecked_replace(task, **changes)


def _find_or_missing(path: str) -> AnyTask:
    try:
        return find(path)
    except TaskNotFound:
        return _missing(path)


def _stored_overrides(overrides: str) -> dict[str, Any]:
    try:
        given = options.decode_overrides(overrides)
    except Exception:
        # They name a function that is gone. The executor refuses such a run with the reason; whoever only looks at
        # it gets the options of the code.
        return {}
    return {**given, "overridden": frozenset(given)}


def unchecked_replace[T: AnyTask](task: T, **changes: Any) -> T:
    """``dataclasses.replace`` without the validation."""
    copy = object.__new__(type(task))
    for each in fields(task):
        object.__setattr__(copy, each.name, changes.get(each.name, getattr(task, each.name)))
    return copy


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingTask(Task):
    """Stands in for a task that the code no longer has, or that an unsigned row names, under the path it had."""

    def __reduce__(self) -> tuple[Any, ...]:
        rest = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "func"}
        return _rebuild_missing, (self.module_path, rest)


def _rebuild_missing(path: str, rest: dict[str, Any]) -> MissingTask:
    return unchecked_replace(_missing(path), **rest)


@lru_cache(maxsize=1024)
def _missing(path: str) -> MissingTask:
    def gone(*args: Any, **kwargs: Any) -> None:
        raise TaskNotFound(f"Task {path!r} is not known to this process.")

    module, _, name = path.rpartition(".")
    gone.__module__, gone.__qualname__, gone.__name__ = module, name, name
    task = object.__new__(MissingTask)
    for each in fields(MissingTask):
        default: Any = None if each.name == "func" else each.default
        object.__setattr__(task, each.name, default)
    object.__setattr__(task, "func", gone)
    return task
