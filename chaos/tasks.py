"""What the storms enqueue."""

import asyncio
import ctypes
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from django.conf import settings
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


@task(takes_context=True)
def note_start(context: TaskContext, starts_file: str, seconds: float, size: int = 0) -> str:
    """Writes its start into a file, without the database, and returns a text of ``size`` characters."""
    _note(starts_file, context)
    time.sleep(seconds)
    return "x" * size


@task(takes_context=True, atomic=True)
def note_start_and_effect(context: TaskContext, starts_file: str, seconds: float) -> None:
    """Writes its start into a file, and leaves a mark in the database if and only if it succeeds."""
    _note(starts_file, context)
    time.sleep(seconds)
    _mark("chaos_effect", context)


@task(takes_context=True)
def crash_while_sending(context: TaskContext, starts_file: str, size: int) -> str:
    """Its first process dies of a segmentation fault in a thread while the outcome is being sent."""
    _note(starts_file, context)
    if context.attempt == 1:
        note = partial(_note, starts_file + ".crashed", context)
        threading.Thread(target=_crash_while_sending, args=(note,), daemon=True).start()
    return "x" * size


def _crash_while_sending(note: Callable[[], None]) -> None:
    deadline = time.monotonic() + 30
    while not _is_sending():
        if time.monotonic() > deadline:
            return
        time.sleep(0.0002)
    # A part of the outcome has left by then. If all has, a crash would hit whatever this process executes next.
    time.sleep(random.uniform(0.0, 0.005))
    if _is_sending():
        note()
        ctypes.string_at(0)


def _is_sending() -> bool:
    """Whether the main thread is in a function of the runner that sends."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and "/runners/ray/" in frame.f_code.co_filename and "send" in frame.f_code.co_name


@task(takes_context=True)
def tell_project(context: TaskContext, starts_file: str) -> list[str]:
    """Which project the code sees: its settings module, and its database."""
    _note(starts_file, context)
    return _project()


@task(takes_context=True, atomic=True)
def tell_project_atomically(context: TaskContext, starts_file: str) -> list[str]:
    _note(starts_file, context)
    _mark("chaos_effect", context)
    return _project()


def _project() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        [database] = cursor.fetchone()
    return [settings.SETTINGS_MODULE, database]


def _note(starts_file: str, context: TaskContext) -> None:
    # One write to a file that is appended to: no line ends up inside another.
    with Path(starts_file).open("ab", buffering=0) as file:
        file.write(f"{context.run_id} {os.getpid()} {time.time():.3f}\n".encode())
