"""What the storms enqueue."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path

from django.db import connection

from django_manta import TaskContext, task


@task
def nap(seconds: float) -> None:
    """Does not touch the database."""
    time.sleep(seconds)


@task
async def nap_beside_others(seconds: float) -> None:
    """Many of these are under way at once."""
    await asyncio.sleep(seconds)


@task(takes_context=True)
def mark_start(context: TaskContext, seconds: float) -> None:
    """Leaves a mark that stays whatever becomes of the run: the connection commits at once."""
    _mark("chaos_start", context)
    time.sleep(seconds)


@task(takes_context=True, atomic=True)
def mark_effect(context: TaskContext, seconds: float) -> None:
    """Leaves a mark that stays if and only if the run succeeds."""
    _mark("chaos_effect", context)
    time.sleep(seconds)


@task(takes_context=True)
def stumble(context: TaskContext, times: int) -> None:
    """Fails so many times first: who enqueues it has the dice."""
    if context.attempt <= times:
        raise ValueError("It was its turn to fail.")


def _mark(table: str, context: TaskContext) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} (run_id) VALUES (%s)", [context.run_id])


@task(takes_context=True, atomic=True, timeout=300)
def mark_start_and_effect(context: TaskContext, seconds: float) -> None:
    """Leaves a mark that stays whatever becomes of the run, and one that stays if and only if it succeeds."""
    beside = connection.copy()
    try:
        with beside.cursor() as cursor:
            cursor.execute("INSERT INTO chaos_start (run_id) VALUES (%s)", [context.run_id])
    finally:
        beside.close()
    time.sleep(seconds)
    _mark("chaos_effect", context)


@task(takes_context=True)
def meet(context: TaskContext, count: int) -> None:
    """Waits until as many have started: each has a process of its own then."""
    _mark("chaos_start", context)
    deadline = time.monotonic() + 180
    with connection.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute("SELECT count(*) FROM chaos_start")
            if cursor.fetchone()[0] >= count:
                return
            time.sleep(0.3)


@task
def tell_time() -> float:
    """By the clock of the machine that it runs on."""
    return time.time()


@task(max_attempts=3, backoff=1.0)
def fail_twice_later() -> None:
    """Always fails: its retries are due by the database's clock."""
    raise ValueError("It fails until its attempts are used up.")


@task
def plan(count: int, seconds: float) -> None:
    """Enqueues runs that are due in a while: whatever time it is here."""
    tell_time.using(run_after=timedelta(seconds=seconds)).enqueue_many([((), {})] * count)


@task
def double(number: int) -> int:
    return 2 * number


@task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@task
def carry(padding: str) -> None:
    """Takes room, and so long that more are waiting than are done."""
    time.sleep(0.03)


@task
def trial(number: int) -> int:
    """Is found by its argument, also where the caller never learned its id."""
    return number


@task(takes_context=True)
def stay(context: TaskContext, until: str) -> None:
    """Leaves a mark that stays whatever becomes of the run, and ends when there is such a file."""
    _mark("chaos_start", context)
    _stay(until)


@task(takes_context=True, atomic=True, timeout=600)
def stay_and_effect(context: TaskContext, until: str) -> None:
    """The same, and leaves a mark that stays if and only if the run succeeds."""
    beside = connection.copy()
    try:
        with beside.cursor() as cursor:
            cursor.execute("INSERT INTO chaos_start (run_id) VALUES (%s)", [context.run_id])
    finally:
        beside.close()
    _stay(until)
    _mark("chaos_effect", context)


def _stay(until: str) -> None:
    deadline = time.monotonic() + 540
    while not Path(until).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
