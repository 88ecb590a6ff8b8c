"""What is asked of everybody: plain functions, the same for all."""

import os
import time
from typing import Any


def resize(image: str, width: int, height: int, quality: int = 80) -> dict[str, int]:
    """Does nothing, and returns what one that did would."""
    return {"width": width, "height": height}


#: The arguments of every ``resize``: of the kind that tasks have.
ARGUMENTS: tuple[str, int, int, int] = ("media/2026/11/00000042.jpg", 640, 480, 85)


def stamp(seconds: float = 0.0) -> list[int]:
    """When its first line ran, by the clock that all processes of a machine share, and in which of them."""
    now = time.monotonic_ns()
    if seconds:
        time.sleep(seconds)
    return [now, os.getpid()]


def nap(seconds: float) -> None:
    time.sleep(seconds)


def link(before: int = 0) -> int:
    """One step of a chain. Where values are handed on, the last one is the length."""
    return before + 1


def count(parts: list[Any]) -> int:
    """The join of a fan-out, where the join is given the values."""
    return len(parts)
