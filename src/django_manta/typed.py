"""
What type checkers see of tasks; at run time there is next to nothing here.

django-stubs makes Task, TaskResult and TaskContext generic in the parameters of the task's function
and in what it returns; Django's classes are not. So ours derive from ``GenericTask[P, R]``, which
is Django's own class when the program runs, and ``task`` is Django's ``task`` with our keywords::

    @task(max_attempts=3)
    def add(a: int, b: int) -> int: ...        # Task[[int, int], int], and so it is for `async def`

    add.using(timeout=5).enqueue(1, 2)         # TaskResult[[int, int], int]
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Protocol, TypedDict, Unpack, cast, overload
from uuid import UUID

from django import tasks

from django_manta.backoff import Exponential
from django_manta.options import Moment
from django_manta.states import When

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    from django_manta.context import TaskContext
    from django_manta.result import TaskResult
    from django_manta.task import Task

    # With defaults, so that a bare `TaskContext` is a complete annotation, also in strict mode.
    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)

    GenericTask = tasks.Task
    GenericTaskContext = tasks.TaskContext
    GenericTaskResult = tasks.TaskResult
else:
    from typing import ParamSpec, TypeVar

    P, R = ParamSpec("P"), TypeVar("R")

    class _Subscriptable:
        """``_Subscriptable(cls)[P, R]`` is ``cls``."""

        def __init__(self, cls):
            self.cls = cls

        def __getitem__(self, parameters):
            return self.cls

    GenericTask = _Subscriptable(tasks.Task)
    GenericTaskContext = _Subscriptable(tasks.TaskContext)
    GenericTaskResult = _Subscriptable(tasks.TaskResult)

#: Any task, any result: Django's or ours.
type AnyTask = tasks.Task[..., Any]
type AnyTaskResult = tasks.TaskResult[..., Any]

# -- options -----------------------------------------------------------------------------------------

type BackoffOption = (
    float
    | timedelta
    | Literal["exponential"]
    | Exponential
    | Callable[[BaseException, TaskResult], float | timedelta | None]
)
type Errors = Iterable[type[BaseException] | str]


class Keywords(TypedDict, total=False):
    """What both ``@task(...)`` and ``.using(...)`` take. The options are those of ``options.OPTIONS``."""

    max_attempts: int
    max_losses: int
    backoff: BackoffOption
    retry_on: Errors | None
    no_retry_on: Errors
    atomic: bool
    timeout: float | timedelta | None
    expires: Moment | None
    deadline: Moment
    metadata: Mapping[str, Any]
    max_laters: int
    ray: Mapping[str, Any]


class DecoratorKeywords(Keywords, total=False):
    priority: int
    queue_name: str
    backend: str
    aliases: Iterable[str]


class UsingKeywords(Keywords, total=False):
    priority: int | None
    queue_name: str | None
    backend: str | None
    run_after: Moment | None
    hold: bool
    after: "Iterable[TaskResult | Iterable[TaskResult] | str | UUID] | TaskResult"
    when: Literal["all_successful", "all_finished", "any_successful", "any_finished"] | When


# -- the decorator -----------------------------------------------------------------------------------


class Decorator(Protocol):
    """``task(...)``, to be put above a function."""

    @overload
    def __call__[**P, R](self, function: Callable[P, Coroutine[Any, Any, R]], /) -> "Task[P, R]": ...
    @overload
    def __call__[**P, R](self, function: Callable[P, R], /) -> "Task[P, R]": ...


class ContextDecorator(Protocol):
    """``task(takes_context=True, ...)``: whoever enqueues does not give the context."""

    @overload
    def __call__[**P, R](
        self, function: "Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]]", /
    ) -> "Task[P, R]": ...
    @overload
    def __call__[**P, R](self, function: "Callable[Concatenate[TaskContext, P], R]", /) -> "Task[P, R]": ...


class TaskDecorator(Protocol):
    """``task`` itself."""

    @overload
    def __call__[**P, R](
        self,
        function: "Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]]",
        *,
        takes_context: Literal[True],
        **keywords: Unpack[DecoratorKeywords],
    ) -> "Task[P, R]": ...
    @overload
    def __call__[**P, R](
        self,
        function: "Callable[Concatenate[TaskContext, P], R]",
        *,
        takes_context: Literal[True],
        **keywords: Unpack[DecoratorKeywords],
    ) -> "Task[P, R]": ...
    @overload
    def __call__[**P, R](
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        *,
        takes_context: Literal[False] = False,
        **keywords: Unpack[DecoratorKeywords],
    ) -> "Task[P, R]": ...
    @overload
    def __call__[**P, R](
        self,
        function: Callable[P, R],
        *,
        takes_context: Literal[False] = False,
        **keywords: Unpack[DecoratorKeywords],
    ) -> "Task[P, R]": ...
    @overload
    def __call__(self, *, takes_context: Literal[True], **keywords: Unpack[DecoratorKeywords]) -> ContextDecorator: ...
    @overload
    def __call__(
        self, *, takes_context: Literal[False] = False, **keywords: Unpack[DecoratorKeywords]
    ) -> Decorator: ...


#: Django's own.
task = cast(TaskDecorator, tasks.task)


class TakesOne[X](Protocol):
    """A task that can be enqueued with one argument."""

    def enqueue(self, value: X, /) -> object: ...
