"""The same work as tasks of Django's own framework, for all peers that are a backend of it, and for us."""

import time
from typing import Any

from django.tasks import task

from benchmarks.peers import work


@task
def resize(image: str, width: int, height: int, quality: int = 80) -> dict[str, int]:
    return work.resize(image, width, height, quality)


@task
def stamp(seconds: float = 0.0) -> list[int]:
    return work.stamp(seconds)


@task
def nap(seconds: float) -> None:
    work.nap(seconds)


@task
def link(before: int = 0) -> int:
    return work.link(before)


@task
def count(parts: list[Any]) -> int:
    return work.count(parts)


def enqueue(name: str, *args: Any) -> Any:
    return globals()[name].enqueue(*args)


#: Between two looks at a result that cannot be waited for otherwise.
LOOK_SECONDS = 0.002


def value(result: Any, timeout: float) -> Any:
    """Django's framework offers no way to wait: one looks again and again."""
    deadline = time.monotonic() + timeout
    while not result.is_finished:
        if time.monotonic() >= deadline:
            raise TimeoutError(f"The run {result.id} has not ended within {timeout:g} s.")
        time.sleep(LOOK_SECONDS)
        result.refresh()
    return result.return_value
