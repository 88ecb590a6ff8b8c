"""A module that nobody signed for. Whoever imports it is found out."""

import os
from pathlib import Path
from typing import Any

from django_manta import task

if "MANTA_TEST_MARK" in os.environ:
    with Path(os.environ["MANTA_TEST_MARK"]).open("a") as marks:
        marks.write(f"{os.getpid()}\n")


@task
def wanted(number: int) -> int:
    return number


def give_up(error: BaseException, result: Any) -> None:
    return None


@task(max_losses=0)
def once(number: int) -> int:
    return number
