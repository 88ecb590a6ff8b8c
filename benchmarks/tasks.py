"""What is enqueued: a task with the kind of arguments that tasks have, and its row in plain columns."""

import os
import time
from pathlib import Path
from typing import Any

from django_manta import task


@task
def resize(image: str, width: int, height: int, *, quality: int = 80) -> dict[str, int]:
    """Does nothing, and returns what one that did would."""
    return {"width": width, "height": height}


def arguments(number: int) -> tuple[list[Any], dict[str, Any]]:
    return [f"media/2026/11/{number:08}.jpg", 640, 480], {"quality": 85}


@task
def how_many(parts: list[dict[str, int]]) -> int:
    """Of what others have returned."""
    return len(parts)


@task
def stamp(seconds: float = 0.0) -> tuple[int, int]:
    """When its first line ran, by the clock that all processes of a machine share, and in which of them."""
    now = time.monotonic_ns()
    if seconds:
        time.sleep(seconds)
    return now, os.getpid()


@task
def nap(seconds: float) -> None:
    time.sleep(seconds)


@task
def meet(place: str, expected: int) -> None:
    """Waits until as many processes as expected have come to the same place."""
    (Path(place) / str(os.getpid())).touch()
    deadline = time.monotonic() + 60
    while len(list(Path(place).iterdir())) < expected:
        if time.monotonic() >= deadline:
            raise TimeoutError(f"Of {expected} processes not all have come.")
        time.sleep(0.01)


#: As long as a signature, and signs nothing.
SIGNATURE = "AFtnRqZWOUaRZ3cI9Ck0KvRVCFqLF5PdrBqvW7Bm6p8"

#: The columns that all runs of ``resize`` share, for those who insert them without the project.
PLAIN = {
    "task": "benchmarks.tasks.resize",
    "backend": "default",
    "queue": "default",
    "priority": 0,
    "state": "READY",
    "overrides": "",
    "signature": SIGNATURE,
}


@task
def stay(place: str, how: str, seconds: float) -> None:
    """Says that it has begun by a file, and does not want to end."""
    Path(place).touch()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if how == "busy":
            continue
        try:
            time.sleep(until - time.monotonic())
        except BaseException:
            if how != "stubborn":
                raise
