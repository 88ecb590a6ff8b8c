"""A module that no signed run names. Importing it leaves a line in the file that the environment names."""

import os
from pathlib import Path
from typing import Any

from django_manta import task

if "MANTA_CHAOS_MARK" in os.environ:
    with Path(os.environ["MANTA_CHAOS_MARK"]).open("a") as marks:
        marks.write(f"{os.getpid()}\n")


@task
def wanted(number: int) -> int:
    return number


def give_up(error: BaseException, result: Any) -> None:
    return None
