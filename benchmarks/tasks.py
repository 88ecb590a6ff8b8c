"""What is enqueued: a task with the kind of arguments that tasks have, and its row in plain columns."""

from typing import Any

from django_manta import task


@task
def resize(image: str, width: int, height: int, *, quality: int = 80) -> None:
    """Nothing executes it; only its runs are measured."""


def arguments(number: int) -> tuple[list[Any], dict[str, Any]]:
    return [f"media/2026/11/{number:08}.jpg", 640, 480], {"quality": 85}


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
