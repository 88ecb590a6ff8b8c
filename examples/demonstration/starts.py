"""
Every start of a task's code, written down: so that one can count them, and kill a worker in the middle of a run.

Attempts are written when they end, by whoever settles them. This is the other side, from inside the executions.
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_manta import TaskContext

#: Names the file to all processes.
FILE = "DEMO_STARTS"


def begin(file: Path) -> None:
    """Before anything is started that is to know of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    os.environ[FILE] = str(file.absolute())


def noted(get_value: "Callable[[TaskContext], Any]") -> "Callable[[TaskContext], Any]":
    """Middleware: the id of the run, a line each time that it starts."""

    def middleware(context: "TaskContext") -> Any:
        # A line is appended as a whole, however many processes do that.
        with Path(os.environ[FILE]).open("a") as file:
            file.write(f"{context.task_result.id}\n")
        return get_value(context)

    return middleware


def counted() -> Counter[str]:
    """How often each run was started, by its id."""
    return Counter(Path(os.environ[FILE]).read_text().split())
