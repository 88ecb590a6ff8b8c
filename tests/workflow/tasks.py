"""Tasks of workflows. What the scripted ones do is decided by the test that enqueues them, in the same process."""

from collections.abc import Callable
from typing import Any

from django_manta import Later, TaskContext, task
from tests.app.models import Ledgerline

SCRIPTS: dict[str, list[Callable[[], Any]]] = {}
BROKEN: set[str] = set()


def raising(error: BaseException) -> Callable[[], Any]:
    def step() -> None:
        raise error

    return step


@task
def scripted(name: str) -> Any:
    """The next step of a script."""
    return SCRIPTS[name].pop(0)()


@task(atomic=True)
def scripted_atomically(name: str) -> Any:
    """The next step of a script, after a write."""
    Ledgerline.objects.create(label=name, amount=1)
    return SCRIPTS[name].pop(0)()


@task
def fragile(name: str) -> str:
    """Fails as long as its name is among the broken ones."""
    if name in BROKEN:
        raise ValueError(f"{name} is broken")
    return name


@task
def total(numbers: list[int], **more: Any) -> Any:
    return [sum(numbers), more] if more else sum(numbers)


@task
def same(value: Any = None) -> Any:
    return value


@task(takes_context=True)
def look_upstream(context: TaskContext) -> list[Any]:
    return [[result.task.name, result.state.value] for result in context.upstream]


@task
def merge(left: list[int], right: list[int]) -> list[int]:
    return sorted([*left, *right])


@task(atomic=True)
def merge_sort(numbers: list[int]) -> Any:
    if len(numbers) < 2:
        return numbers
    half = len(numbers) // 2
    return merge.enqueue(merge_sort.enqueue(numbers[:half]), merge_sort.enqueue(numbers[half:]))


@task
def descend(depth: int) -> Any:
    return descend.enqueue(depth - 1) if depth else "the ground"


@task
def spread(names: list[str]) -> Any:
    """Delegates to a group."""
    return fragile.map(names)


@task
def hand_over(name: str, **options: Any) -> Any:
    """Delegates to one that may fail."""
    return fragile.using(**options).enqueue(name)


@task(takes_context=True)
def enqueue_inside(context: TaskContext) -> list[str]:
    """The deadlines of a run enqueued inside, and of its own."""
    inside = same.enqueue()
    return [inside.deadline.isoformat(), context.task_result.deadline.isoformat()]


@task(takes_context=True)
def later_twice(context: TaskContext, others: bool = False) -> Any:
    if context.attempt < 3:
        return Later(after=[same.enqueue(1)] if others else (), message="not yet")
    return context.attempt


@task
def add_up(first: int, last: int, label: str) -> int:
    rows = Ledgerline.objects.filter(pk__range=(first, last), label=label)
    return sum(rows.values_list("amount", flat=True))
