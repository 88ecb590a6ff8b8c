"""The examples of workflows do what they say, on committed rows and with the real ledger."""

from datetime import date, timedelta
from random import Random

import pytest

from django_manta import Outcome, State, TaskResult, WorkflowExists, get_promise, reject, resolve
from django_manta.execution.runners.inline import drain
from django_manta.ledger import Ledger, fsck
from django_manta.models import Run
from django_manta.testing import run_all
from examples.workflows import merge_sort, order, partition_sort, takings, twenty
from examples.workflows.models import Item, Order, Sale, Takings

pytestmark = pytest.mark.django_db(transaction=True)


def ended(result: TaskResult) -> TaskResult:
    """A result whose run has ended, and with it everything that there was to do."""
    result.refresh()
    assert result.is_finished, result.state
    assert not Run.objects.exclude(pk__in=Run.objects.finished()).exists()
    assert fsck.check(Ledger()) == []
    return result


def numbers(count: int, seed: int = 0) -> list[int]:
    return [Random(seed + number).randrange(count) for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_merge_sort_sorts(count: int) -> None:
    result = merge_sort.merge_sort.enqueue(numbers(count))
    run_all()
    assert ended(result).return_value == sorted(numbers(count))


def test_merge_sort_runs_each_list_once_and_holds_nobody_while_it_waits() -> None:
    result = merge_sort.merge_sort.enqueue(numbers(8))
    done = run_all()
    # Seven lists of two or more, each with a join; eight of one.
    assert done.outcomes == {Outcome.DELEGATED: 7, Outcome.SUCCESSFUL: 7 + 8}
    assert [attempt.outcome for attempt in ended(result).history] == [Outcome.DELEGATED]


@pytest.mark.parametrize("count", [0, 4, 50])
def test_partition_sort_sorts(count: int) -> None:
    result = partition_sort.partition_sort.enqueue(numbers(count))
    run_all()
    assert ended(result).return_value == sorted(numbers(count))


def test_partition_sort_is_woken_by_each_part() -> None:
    result = partition_sort.partition_sort.enqueue([5, 1, 2, 3, 4, 6, 7, 8, 9, 6, 7])
    seen = []
    while drain(max_runs=1).runs:
        for run in Run.objects.filter(task=partition_sort.collect.module_path, history__outcome=Outcome.DEFERRED):
            seen.append(run.metadata["in place"])
    collected = [run.result for run in Run.objects.filter(task=partition_sort.collect.module_path)]
    assert ended(result).return_value == [1, 2, 3, 4, 5, 6, 6, 7, 7, 8, 9]
    for each in collected:
        assert [attempt.outcome for attempt in each.history] == [Outcome.DEFERRED, Outcome.SUCCESSFUL]
        assert each.metadata["in place"] == len(each.return_value)
    assert min(seen) < 11


def test_twenty_runs_are_reported_whatever_became_of_them() -> None:
    tosses, report = twenty.start()
    assert tosses.progress == {State.READY: 20}
    run_all()
    heads = tosses.progress[State.SUCCESSFUL]
    assert 0 < heads < 20
    assert tosses.progress == {State.SUCCESSFUL: heads, State.FAILED: 20 - heads}
    assert ended(report).return_value == {"heads": heads, "tails": 20 - heads}


@pytest.fixture
def item() -> Item:
    return Item.objects.create(name="lamp", stock=5)


def an_order(item: Item, **fields: object) -> Order:
    return Order.objects.create(item=item, **{"quantity": 2, "price": 100, "address": "Home", **fields})


def is_left(order: Order, *, status: str, paid: int, stock: int) -> None:
    order.refresh_from_db()
    order.item.refresh_from_db()
    assert (order.status, order.paid, order.item.stock) == (status, paid, stock)


def test_a_cheap_order_is_shipped(item: Item) -> None:
    cheap = an_order(item)
    end = order.place(cheap)
    run_all()
    assert ended(end).return_value == "shipped"
    is_left(cheap, status="shipped", paid=100, stock=3)


def test_an_expensive_order_waits_for_its_approval(item: Item) -> None:
    dear = an_order(item, price=5_000)
    end = order.place(dear)
    run_all()
    end.refresh()
    assert end.state is State.WAITING
    is_left(dear, status="placed", paid=0, stock=3)

    resolve(f"approval of order {dear.pk}")
    run_all()
    assert ended(end).return_value == "shipped"
    is_left(dear, status="shipped", paid=5_000, stock=3)


def test_an_order_that_is_not_approved_leaves_nothing_behind(item: Item) -> None:
    dear = an_order(item, price=5_000)
    end = order.place(dear)
    run_all()
    reject(f"approval of order {dear.pk}", "Too dear.")
    run_all()
    assert ended(end).return_value == "cancelled"
    is_left(dear, status="cancelled", paid=0, stock=5)


def test_an_order_that_nobody_approves_in_time_leaves_nothing_behind(
    item: Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "timedelta", lambda days: timedelta(0))
    dear = an_order(item, price=5_000)
    end = order.place(dear)
    approval = get_promise(f"approval of order {dear.pk}")
    run_all()
    approval.refresh()
    assert approval.state is State.EXPIRED
    assert ended(end).return_value == "cancelled"
    is_left(dear, status="cancelled", paid=0, stock=5)


def test_an_order_that_cannot_be_shipped_is_paid_back(item: Item) -> None:
    lost = an_order(item, address="")
    end = order.place(lost)
    run_all()
    assert ended(end).return_value == "cancelled"
    is_left(lost, status="cancelled", paid=0, stock=5)


def test_an_order_of_more_than_there_is_costs_nobody_anything(item: Item) -> None:
    many = an_order(item, quantity=6)
    end = order.place(many)
    run_all()
    assert ended(end).return_value == "cancelled"
    is_left(many, status="cancelled", paid=0, stock=5)


def test_an_order_is_placed_once(item: Item) -> None:
    cheap = an_order(item)
    order.place(cheap)
    before = Run.objects.count()
    with pytest.raises(WorkflowExists):
        order.place(cheap)
    assert Run.objects.count() == before


DAY = date(2026, 11, 15)


def test_the_sales_of_a_day_are_added_up_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takings, "CHUNK", 7)
    Sale.objects.bulk_create(Sale(day=DAY, shop=shop, amount=number) for number in range(20) for shop in "AB")
    Sale.objects.create(day=date(2026, 11, 16), shop="A", amount=1_000)

    result = takings.start(DAY)
    run_all()

    assert ended(result).return_value == {"A": 190, "B": 190}
    assert Run.objects.filter(task=takings.add_up.module_path).count() == 6
    assert sorted(Takings.objects.values_list("day", "shop", "amount")) == [(DAY, "A", 190), (DAY, "B", 190)]


def test_a_day_without_sales_has_no_takings() -> None:
    result = takings.start(DAY)
    run_all()
    assert ended(result).return_value == {}


def test_a_day_is_started_once() -> None:
    takings.start(DAY)
    with pytest.raises(WorkflowExists):
        takings.start(DAY)
    assert Run.objects.filter(workflow__name="takings", workflow__unique_key="2026-11-15").count() == 1
