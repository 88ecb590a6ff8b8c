"""Which run this code is executing, if any."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class CurrentRun:
    run_id: str
    task: str
    attempt: int
    deadline: datetime
    token: int


_current: ContextVar[CurrentRun | None] = ContextVar("django_manta.current_run", default=None)


def current_run() -> CurrentRun | None:
    """The run being executed here, or None outside a task."""
    return _current.get()


@contextmanager
def running(run: CurrentRun) -> Iterator[None]:
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)
