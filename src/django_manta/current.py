"""Which run this code is executing, if any."""

from contextvars import ContextVar, Token
from types import TracebackType
from typing import NamedTuple


class CurrentRun(NamedTuple):
    run_id: str
    task: str
    attempt: int
    #: In microseconds (see moments.py).
    deadline: int
    token: int
    workflow: str | None = None


_current: ContextVar[CurrentRun | None] = ContextVar("django_manta.current_run", default=None)


def current_run() -> CurrentRun | None:
    """The run being executed here, or None outside a task."""
    return _current.get()


class Running:
    """``with Running(run):`` says that the block executes it."""

    __slots__ = ("_run", "_token")

    def __init__(self, run: CurrentRun) -> None:
        self._run = run

    def __enter__(self) -> None:
        self._token: Token[CurrentRun | None] = _current.set(self._run)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._token)
