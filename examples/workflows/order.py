"""
An order: stock is reserved, a person approves what is expensive, the customer pays, the parcel leaves.

Whatever goes wrong on the way, or if nobody approves in time, `close` undoes what had been done.
"""

from datetime import timedelta

from django.db.models import F
from django_manta import State, TaskContext, TaskResult, promise, task, workflow

from .models import Item, Order

#: Above this a person has to approve.
EXPENSIVE = 1_000


def place(order: Order) -> TaskResult:
    """
    Start the workflow of an order: once, however often this is called.

    `resolve(f"approval of order {order.pk}")` approves an expensive one, `reject(…, "why")` does not.
    """
    with workflow("order", unique_key=str(order.pk)):
        reserved = reserve.enqueue(order.pk)
        conditions = [reserved]
        if order.price > EXPENSIVE:
            conditions.append(promise(f"approval of order {order.pk}", expires=timedelta(days=3)))
        paid = charge.using(after=conditions).enqueue(order.pk)
        shipped = ship.using(after=[paid]).enqueue(order.pk)
        return close.using(after=[reserved, paid, shipped], when="all_finished").enqueue(order.pk)


# Each step is atomic: its writes are there if, and only if, its run is SUCCESSFUL.


@task(atomic=True)
def reserve(order_id: int) -> None:
    order = Order.objects.get(pk=order_id)
    if not Item.objects.filter(pk=order.item_id, stock__gte=order.quantity).update(stock=F("stock") - order.quantity):
        raise RuntimeError(f"There are not {order.quantity} of {order.item} left.")


@task(atomic=True)
def charge(order_id: int) -> None:
    Order.objects.filter(pk=order_id).update(paid=F("price"))


@task(atomic=True)
def ship(order_id: int) -> None:
    if not Order.objects.get(pk=order_id).address:
        raise ValueError("Where to? The order has no address.")


@task(takes_context=True, atomic=True)
def close(context: TaskContext, order_id: int) -> str:
    """The last step, in good and in bad: the compensation."""
    order = Order.objects.get(pk=order_id)
    reserved, paid, shipped = (each.state is State.SUCCESSFUL for each in context.upstream)
    if paid and not shipped:
        order.paid = 0
    if reserved and not shipped:
        Item.objects.filter(pk=order.item_id).update(stock=F("stock") + order.quantity)
    order.status = Order.Status.SHIPPED if shipped else Order.Status.CANCELLED
    order.save()
    return order.status
