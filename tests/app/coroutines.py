"""Coroutines that use the database, print, and wait, side by side with others in one process."""

import asyncio
import os
import time
from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection

from django_manta import TaskContext, task
from tests.app.models import Ledgerline

#: How many coroutines of this process have come to the point at which they wait for each other.
_arrived: list[str] = []


async def _all_arrive(count: int) -> None:
    _arrived.append("")
    while len(_arrived) < count:
        await asyncio.sleep(0.01)


def _ask(statement: str, *parameters: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchone()[0] if cursor.description else None


_aask = sync_to_async(_ask)


@task
async def wait_in_the_database(seconds: float) -> None:
    if connection.vendor == "postgresql":
        await _aask("SELECT 1 FROM pg_sleep(%s)", seconds)
    else:
        await sync_to_async(time.sleep)(seconds)


@task
async def say_who_the_database_takes_it_for(name: str, count: int) -> str:
    """Each of ``count`` tells the database its name before any of them asks for it."""
    await _aask("SELECT set_config('app.tenant', %s, false)", name)
    await _all_arrive(count)
    found: str = await _aask("SELECT current_setting('app.tenant')")
    return found


@task
async def leave_something_in_the_session() -> int:
    await _aask("SELECT set_config('app.tenant', 'alice', false)")
    await _aask("SELECT pg_try_advisory_lock(4711)")
    await _aask("CREATE TEMPORARY TABLE left_behind AS SELECT 1")
    await _aask("SET ROLE pg_monitor")
    pid: int = await _aask("SELECT pg_backend_pid()")
    return pid


@task
async def look_at_the_session() -> list[Any]:
    return [
        await _aask("SELECT current_setting('app.tenant', true)"),
        await _aask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711"),
        await _aask("SELECT to_regclass('pg_temp.left_behind')::text"),
        await _aask("SELECT session_user = current_user"),
    ]


@task(takes_context=True)
async def use_every_connection(context: TaskContext, label: str) -> int:
    """Its own, that of progress and metadata, and those of nobody else's while ten of them do so."""
    await Ledgerline.objects.acreate(label=label)
    await context.aprogress(1, 4, "half")
    await context.aprogress(2, 4, "three quarters")
    context.metadata["label"] = label
    await context.asave_metadata()
    await _all_arrive(10)
    return os.getpid()


@task
async def begin_by_hand() -> None:
    await _aask("BEGIN")


@task
async def write_line(label: str) -> int:
    return (await Ledgerline.objects.acreate(label=label)).pk


@task(timeout=0.3)
async def block_its_own_thread(seconds: float) -> None:
    await sync_to_async(time.sleep)(seconds)


@task
async def block_its_own_thread_until_cancelled(label: str) -> None:
    await Ledgerline.objects.acreate(label=label)
    await sync_to_async(time.sleep)(10)


@task
async def print_and_fail(word: str, count: int) -> None:
    await sync_to_async(print)(f"{word} in a thread")
    print(f"{word} in the loop")
    await _all_arrive(count)
    raise ValueError(word)


_user: ContextVar[str] = ContextVar("user", default="nobody")


def sign_in(get_value: Any) -> Any:
    """A middleware that leaves a context variable as it has set it."""

    def middleware(context: TaskContext) -> Any:
        before = _user.get()
        _user.set(context.run_id)
        return [before, get_value(context)]

    return middleware


@task
async def do_nothing() -> None:
    pass


TRAIL: list[str] = []


@task
async def interrupt_itself(number: int) -> None:
    """Sends its process a signal; leaves a mark when it is cancelled, and another if it is not."""
    try:
        os.kill(os.getpid(), number)
        # Longer than a busy machine needs to hear of the signal.
        await asyncio.sleep(20)
        TRAIL.append("went on")
    except asyncio.CancelledError:
        TRAIL.append("was cancelled")
        raise
