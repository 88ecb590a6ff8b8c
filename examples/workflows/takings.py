"""
Extract, transform, load: the sales of a day are added up in chunks, in parallel, and stored together.

The rows stay where they are. A chunk is two primary keys; what travels between the runs is sums.
"""

from collections import Counter
from datetime import date
from typing import Any

from django.db.models import Sum
from django_manta import TaskResult, map_queryset, task, workflow

from .models import Sale, Takings

#: Rows that one run reads.
CHUNK = 1_000


def start(day: date) -> TaskResult:
    """Add up a day. Raises WorkflowExists if that day has been started before."""
    with workflow("takings", unique_key=day.isoformat()):
        return split.enqueue(day.isoformat())


# Atomic, so that a second attempt cannot leave the chunks of the first one behind.
@task(atomic=True)
def split(day: str) -> Any:
    sums = map_queryset(add_up, Sale.objects.filter(day=day), CHUNK, day=day)
    return store.enqueue(day, sums)


@task(max_attempts=3)
def add_up(first: int, last: int, day: str) -> dict[str, int]:
    rows = Sale.objects.filter(day=day, pk__range=(first, last))
    return dict(rows.values_list("shop").annotate(Sum("amount")).order_by("shop"))


@task(atomic=True)
def store(day: str, sums: list[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in sums:
        total.update(each)
    Takings.objects.bulk_create(Takings(day=day, shop=shop, amount=amount) for shop, amount in total.items())
    return dict(total)
