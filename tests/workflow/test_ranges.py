"""map_queryset(): runs over the rows of a table, a range of primary keys each."""

from typing import Any

import pytest
from django.db import connection
from django.db.models import Exists, OuterRef
from django.test.utils import CaptureQueriesContext

from django_manta import State, map_queryset
from django_manta.models import Run
from django_manta.testing import run_all
from django_manta.workflow.ranges import ranges
from tests.app.models import Ledgerline
from tests.workflow.conftest import states
from tests.workflow.tasks import add_up, same


def lines(count: int, label: str = "line") -> list[int]:
    made = Ledgerline.objects.bulk_create(Ledgerline(label=label, amount=n) for n in range(count))
    return [line.pk for line in made]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 7])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_every_row_is_in_one_range(count: int, size: int) -> None:
    keys = lines(count)
    expected = [(keys[n], keys[min(n + size, count) - 1]) for n in range(0, count, size)]
    assert ranges(Ledgerline.objects.order_by("-amount"), size) == expected


def test_its_runs_do_all_rows_once() -> None:
    lines(10)
    lines(7, "other")
    Ledgerline.objects.filter(amount__in=[2, 3]).delete()
    with CaptureQueriesContext(connection) as asked:
        sums = map_queryset(add_up, Ledgerline.objects.filter(label="line"), 3, label="line")
    enqueued = [query for query in asked if "INSERT" in query["sql"]]
    assert (len(sums), len(enqueued)) == (3, 1)
    run_all()
    assert states(*sums) == [State.SUCCESSFUL] * 3
    assert sum(sums.join()) == sum(range(10)) - 5


def test_a_queryset_with_joins_repeats_no_row() -> None:
    keys = lines(4)
    doubled = Ledgerline.objects.filter(Exists(Ledgerline.objects.filter(amount__lte=OuterRef("amount")))).distinct()
    assert ranges(doubled.annotate(), 2) == [(keys[0], keys[1]), (keys[2], keys[3])]


def test_keys_that_json_does_not_know_travel_as_text() -> None:
    same.map(range(3))
    keys = sorted(str(key) for key in Run.objects.values_list("pk", flat=True))
    assert ranges(Run.objects.all(), 2) == [(keys[0], keys[1]), (keys[2], keys[2])]


@pytest.mark.parametrize(
    ("rows", "size", "error", "words"),
    [
        (lambda: [1, 2], 10, TypeError, "goes over a queryset, not"),
        (lambda: Ledgerline, 10, TypeError, "goes over a queryset, not"),
        (lambda: Ledgerline.objects.all()[:5], 10, ValueError, "cannot go over a slice"),
        (Ledgerline.objects.all, 0, ValueError, "1 or more, not 0"),
        (Ledgerline.objects.all, 2.5, ValueError, "1 or more, not 2.5"),
        (Ledgerline.objects.all, True, ValueError, "1 or more, not True"),
    ],
)
def test_nonsense_is_refused(rows: Any, size: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        map_queryset(add_up, rows(), size)
    assert not Run.objects.exists()
