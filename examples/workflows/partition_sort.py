"""
Partition sort: `collect` is called again each time that another part has been sorted.

It waits for *any* of its parts, puts in place what there is, and asks to be called again while something is
missing. Whoever looks at its metadata meanwhile sees how much of the list stands.
"""

from typing import Any

from django_manta import Later, State, TaskContext, task

#: Short lists are sorted at once.
SHORT = 4


@task(atomic=True)
def partition_sort(numbers: list[int]) -> Any:
    if len(numbers) <= SHORT:
        return sorted(numbers)
    pivot = numbers[len(numbers) // 2]
    small = partition_sort.enqueue([number for number in numbers if number < pivot])
    large = partition_sort.enqueue([number for number in numbers if number > pivot])
    # Before the other parts in the queue, so that what is sorted shows soon.
    collecting = collect.using(after=[small, large], when="any_successful", priority=10)
    return collecting.enqueue([number for number in numbers if number == pivot])


@task(takes_context=True)
def collect(context: TaskContext, middle: list[int]) -> list[int] | Later:
    small, large = context.upstream
    for part in (small, large):
        if part.is_finished and part.state is not State.SUCCESSFUL:
            raise RuntimeError(f"A part ended {part.state}: {part.reason}")
    there = [part for part in (small, large) if part.is_finished]
    context.metadata["in place"] = len(middle) + sum(len(part.return_value) for part in there)
    context.save_metadata()
    if len(there) < 2:
        return Later(message=f"{context.metadata['in place']} numbers are in place, the others are not sorted yet.")
    return small.return_value + middle + large.return_value
