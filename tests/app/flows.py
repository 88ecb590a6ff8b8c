"""Tasks that wait, delegate, or ask to be called again."""

from datetime import timedelta
from typing import Any

from django_manta import Later, task
from tests.app import tasks


@task
def note(*words: Any) -> str:
    return "noted"


@task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@task
def delegate(*numbers: int) -> Any:
    """Adds through another run."""
    return tasks.add.enqueue(*numbers)


@task
def delegate_to_a_failure() -> Any:
    return tasks.fail.enqueue("the child failed")


@task
def again_in_an_hour() -> Later:
    return Later(until=timedelta(hours=1), message="the shop is closed")


@task
def again_after(run_id: str) -> Later:
    return Later(after=[run_id], message="one more is needed")


@task(max_attempts=3, backoff=600)
def fail_for_ten_minutes() -> None:
    raise ValueError("not now")


@task(timeout=60)
def take_a_minute() -> None: ...
