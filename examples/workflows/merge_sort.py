"""
Merge sort: a task that enqueues itself for each half, and a join, and delegates to the join.

How deep the graph grows is decided while it runs. No worker is held by a list whose halves are being sorted.
"""

from typing import Any

from django_manta import task


# Atomic, so that the halves, the join, and the delegation to it exist together or not at all.
@task(atomic=True)
def merge_sort(numbers: list[int]) -> Any:
    if len(numbers) < 2:
        return numbers
    half = len(numbers) // 2
    return merge.enqueue(merge_sort.enqueue(numbers[:half]), merge_sort.enqueue(numbers[half:]))


@task
def merge(left: list[int], right: list[int]) -> list[int]:
    merged = []
    while left and right:
        merged.append((left if left[0] <= right[0] else right).pop(0))
    return merged + left + right
