"""A workflow has a name, and its enqueues are atomic."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction

from django_manta import text
from django_manta.current import current_run
from django_manta.ids import new_run_id
from django_manta.workflow import together

_current: ContextVar[UUID | None] = ContextVar("django_manta.workflow", default=None)


def current_workflow() -> UUID | None:
    """The workflow that runs enqueued here belong to, if any: the block's, or that of the run being executed."""
    opened = _current.get()
    if opened is None:
        run = current_run()
        return UUID(run.workflow) if run is not None and run.workflow is not None else None
    return opened


class WorkflowExists(Exception):
    """There is a workflow of this name and unique key already."""

    def __init__(self, name: str, unique_key: str, workflow_id: UUID) -> None:
        super().__init__(f"Workflow {name!r} with unique key {unique_key!r} exists already: {workflow_id}.")
        self.name = name
        self.unique_key = unique_key
        self.workflow_id = workflow_id


@dataclass(frozen=True, slots=True)
class Flow:
    """A workflow that is being enqueued, or was."""

    id: UUID
    name: str
    unique_key: str | None = None

    @property
    def runs(self) -> Any:
        """Its runs, as a queryset."""
        from django_manta.models import Run

        return Run.objects.filter(workflow_id=self.id)


def _check(what: str, given: Any) -> None:
    if not isinstance(given, str):
        raise TypeError(f"A workflow's {what} must be a string, not {given!r:.200}.")
    if not given:
        raise ValueError(f"A workflow needs a {what}.")
    if not text.is_storable(given):
        raise ValueError(f"A workflow's {what} must not hold NUL characters or lone surrogates: {given!r:.200}.")


class workflow:  # noqa: N801 (used like a function, as a context manager or a decorator)
    """
    ``with workflow("import", unique_key=day) as flow:`` names the runs enqueued inside, all of which exist if
    the block ends well, and none if it does not. Also a decorator of a function that enqueues.

    With ``unique_key`` there is one workflow of that name and key as long as it is kept: entering a second one
    raises WorkflowExists before anything is enqueued.
    """

    def __init__(self, name: str, *, unique_key: str | None = None, using: str | None = None) -> None:
        _check("name", name)
        if unique_key is not None:
            _check("unique_key", unique_key)
        self.name = name
        self.unique_key = unique_key
        self.using = using
        self._open: list[Any] = []

    def __enter__(self) -> Flow:
        block = self._block()
        flow = block.__enter__()
        self._open.append(block)
        return flow

    def __exit__(self, *error: Any) -> bool | None:
        left: bool | None = self._open.pop().__exit__(*error)
        return left

    def __call__[**P, R](self, function: Callable[P, R]) -> Callable[P, R]:
        if iscoroutinefunction(function) or isasyncgenfunction(function) or isgeneratorfunction(function):
            # Its body runs when the block is over.
            raise TypeError(
                f"@workflow cannot go round {function.__qualname__!r}, which is async or a generator: a transaction "
                "would not span it. Put the enqueues into a plain function, and call that with sync_to_async()."
            )

        @wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._block():
                return function(*args, **kwargs)

        return inside

    @contextmanager
    def _block(self) -> Iterator[Flow]:
        from django_manta.models import Workflow
        from django_manta.result import default_database

        database = self.using or default_database()
        flow = Flow(new_run_id(), self.name, self.unique_key)
        with transaction.atomic(using=database):
            try:
                with transaction.atomic(using=database):
                    Workflow.objects.using(database).create(id=flow.id, name=self.name, unique_key=self.unique_key)
            except IntegrityError:
                known = Workflow.objects.using(database).get(name=self.name, unique_key=self.unique_key)
                raise WorkflowExists(self.name, self.unique_key or "", known.id) from None
            token = _current.set(flow.id)
            try:
                with together.opened(database):
                    yield flow
            finally:
                _current.reset(token)
