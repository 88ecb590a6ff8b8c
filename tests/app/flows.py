"""Tasks that wait, delegate, or ask to be called again."""

from datetime import timedelta
from typing import Any

from django_manta import Later, TaskContext, task
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


@task(takes_context=True)
def call_three_times(context: TaskContext) -> Any:
    return Later(message="not yet") if context.attempt < 3 else "at last"


@task(takes_context=True)
def wait_for_a_sum(context: TaskContext) -> Any:
    """Asks for a sum when it is called first, and gives it back when it is called again."""
    if not context.upstream:
        return Later(after=[tasks.add.enqueue(1, 2)])
    return context.upstream[0].return_value
