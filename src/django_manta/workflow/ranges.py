"""Durable runs over the rows of a table, a range of primary keys each."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import F, QuerySet, Window
from django.db.models.functions import Mod, RowNumber

from django_manta.workflow.group import Group

if TYPE_CHECKING:
    from django_manta.task import Task


def map_queryset[R](task: "Task[..., R]", queryset: QuerySet[Any], chunk_size: int = 1_000, **kwargs: Any) -> Group[R]:
    """
    Enqueue ``task(first, last, **kwargs)`` for every ``chunk_size`` rows of ``queryset``: two primary keys each.

    The task reads its rows by ``pk__range=(first, last)``, from the same queryset: a row that was added to the range
    meanwhile is in it, one that was deleted is not. Keys that JSON does not know (UUIDs) travel as text. The database
    finds the ranges in one statement; no row travels. Everything is enqueued, or nothing.
    """
    given: Any = queryset
    if not isinstance(given, QuerySet):
        raise TypeError(f"map_queryset() goes over a queryset, not {queryset!r:.200}.")
    if queryset.query.is_sliced:
        raise ValueError("map_queryset() cannot go over a slice: say which rows by filter().")
    size: Any = chunk_size
    if type(size) is not int or size < 1:
        raise ValueError(f"chunk_size must be a whole number of rows, 1 or more, not {chunk_size!r}.")
    calls = (((first, last), kwargs) for first, last in ranges(queryset, chunk_size))
    return task.enqueue_many(calls)


def ranges(queryset: QuerySet[Any], chunk_size: int) -> list[tuple[Any, Any]]:
    """The first and the last primary key of every ``chunk_size`` rows, in their order."""
    # A plain queryset of the same rows: joins and DISTINCT would be counted along.
    rows = queryset.model._base_manager.using(queryset.db).filter(pk__in=queryset.order_by().values("pk"))
    place = Mod(Window(RowNumber(), order_by=F("pk").asc()) - 1, chunk_size)
    edges = rows.annotate(place=place).filter(place__in={0, chunk_size - 1}).order_by("pk").values_list("pk", "place")
    found: list[tuple[Any, Any]] = []
    first: Any = None
    for key, at in edges.iterator():
        if at == 0:
            first = key
        if at == chunk_size - 1:
            found.append((_plain(first), _plain(key)))
            first = None
    if first is not None:
        # The last chunk, which is not full; as the table is now, a moment later.
        last = rows.order_by("-pk").values_list("pk", flat=True).filter(pk__gte=first).first()
        found.append((_plain(first), _plain(first if last is None else last)))
    return found


def _plain(key: Any) -> Any:
    return str(key) if isinstance(key, UUID) else key
