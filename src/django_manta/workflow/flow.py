"""A workflow has a name, and its enqueues are atomic."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends

from django_manta import text
from django_manta.current import current_run
from django_manta.ids import new_run_id
from django_manta.ledger import DjangoSession, Ledger, house, own_session
from django_manta.workflow import together

#: The workflow whose block is open here.
_current: ContextVar["Flow | None"] = ContextVar("django_manta.workflow", default=None)

#: The blocks that were entered here by ``with``, each with the object that it was entered by.
_entered: ContextVar[tuple[tuple[object, Any], ...]] = ContextVar("django_manta.workflow.entered", default=())


def current_workflow(database: str) -> UUID | None:
    """
    The workflow that runs enqueued here into ``database`` belong to, if any: the block's, or that of the run being
    executed. Raise ValueError where the block's transaction is on another database: it could not undo the enqueue.
    """
    opened = _current.get()
    if opened is None:
        run = current_run()
        return UUID(run.workflow) if run is not None and run.workflow is not None else None
    if opened.database != database:
        raise ValueError(
            f"Inside workflow {opened.name!r} everything is enqueued in database {opened.database!r}, or nothing; this "
            f"run would be in {database!r}. Enqueue it outside the block, or open the block with using={database!r}."
        )
    return opened.id


def _usual_database() -> str:
    """Where the default backend keeps its runs, or, if that is none of ours, the first one that is."""
    from django_manta.result import default_database

    for alias in sorted(task_backends.settings, key=lambda alias: alias != DEFAULT_TASK_BACKEND_ALIAS):
        database: str | None = getattr(task_backends[alias], "database", None)
        if database is not None:
            return database
    return default_database()


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
    #: Where it and its runs are.
    database: str | None = None

    @property
    def runs(self) -> Any:
        """Its runs, as a queryset."""
        from django_manta.models import Run

        return Run.objects.using(self.database).filter(workflow_id=self.id)


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

    Its transaction is on the database ``using``, which is that of the default backend unless given. What would be
    enqueued in another database inside the block is refused.
    """

    def __init__(self, name: str, *, unique_key: str | None = None, using: str | None = None) -> None:
        _check("name", name)
        if unique_key is not None:
            _check("unique_key", unique_key)
        self.name = name
        self.unique_key = unique_key
        self.using = using

    def __enter__(self) -> Flow:
        block = self._block()
        flow = block.__enter__()
        _entered.set((*_entered.get(), (self, block)))
        return flow

    def __exit__(self, *error: Any) -> bool | None:
        # Other threads and tasks may be in blocks of the same object.
        entered = _entered.get()
        place = max(place for place, (by, _) in enumerate(entered) if by is self)
        _entered.set(entered[:place] + entered[place + 1 :])
        left: bool | None = entered[place][1].__exit__(*error)
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

        database = self.using or _usual_database()
        flow = Flow(new_run_id(), self.name, self.unique_key, database)
        with transaction.atomic(using=database):
            try:
                with transaction.atomic(using=database):
                    Workflow.objects.using(database).create(id=flow.id, name=self.name, unique_key=self.unique_key)
            except IntegrityError:
                known = self._known(database)
                if known is None:
                    raise
                raise WorkflowExists(self.name, self.unique_key or "", known) from None
            token = _current.set(flow)
            try:
                with together.opened(database):
                    yield flow
            finally:
                _current.reset(token)

    def _known(self, database: str) -> UUID | None:
        """Which one is in the way."""
        asked = self.name, self.unique_key or ""
        known = house.find_workflow(Ledger(DjangoSession(database)), *asked)
        if known is None:
            # Committed since the caller's transaction began, which does not see it if it is REPEATABLE READ.
            with closing(own_session(database)) as session:
                known = house.find_workflow(Ledger(session), *asked)
        return known
