"""Tasks that the tests enqueue. Each does one thing worth watching."""

import asyncio
import contextlib
import ctypes
import hashlib
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from django.conf import settings
from django.db import connection, connections, transaction
from django.tasks import default_task_backend

from django_manta import TaskContext, task
from django_manta.ledger import Ledger
from django_manta.parallel import parallel_map
from tests.app.models import Ledgerline


@task
def add(a: int, b: int) -> int:
    return a + b


@task
async def add_async(a: int, b: int) -> int:
    return a + b


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    return [list(args), kwargs]


@task
def fail(message: str = "no") -> None:
    raise ValueError(message)


@task(max_attempts=3, backoff=0)
def fail_thrice() -> None:
    raise ValueError("again")


@task(takes_context=True)
def describe(context: TaskContext) -> dict[str, Any]:
    return {"run_id": context.run_id, "attempt": context.attempt, "last": context.is_last_attempt}


@task(max_attempts=2, backoff=0, takes_context=True)
def fail_first(context: TaskContext) -> int:
    if context.attempt == 1:
        raise RuntimeError("first")
    return context.attempt


@task
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@task
def leave() -> None:
    raise SystemExit(3)


@task
def write_line(label: str, amount: int) -> int:
    return Ledgerline.objects.create(label=label, amount=amount).pk


@task(atomic=True)
def lose_its_connection() -> None:
    """As a server does that is restarted in the middle of it."""
    Ledgerline.objects.create(label="lost", amount=1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@task(atomic=True)
def write_atomically(label: str, amount: int, fails: bool = False) -> int:
    line = Ledgerline.objects.create(label=label, amount=amount)
    if fails:
        raise ValueError("after the write")
    return line.pk


@task(atomic=True)
def write_then_hook_fails(label: str) -> None:
    Ledgerline.objects.create(label=label, amount=1)

    def hook() -> None:
        raise RuntimeError("a hook of the task's")

    transaction.on_commit(hook)


@task
def join_another(result_id: str) -> Any:
    return default_task_backend.get_result(result_id).join(timeout=5)


@task(takes_context=True, max_attempts=3)
def cancel_itself(context: TaskContext, fails: bool = False) -> None:
    context.task_result.task.get_result(context.run_id).cancel("by itself")
    if fails:
        raise RuntimeError("stopped")


@task(takes_context=True)
def tell_progress(context: TaskContext, steps: int) -> None:
    for _ in context.track(range(steps), message="stepping"):
        pass
    context.metadata["seen"] = steps
    context.save_metadata()


@task(takes_context=True, atomic=True)
def tell_progress_atomically(context: TaskContext) -> Any:
    context.progress(1, 2, "half")
    context.metadata["told"] = True
    context.save_metadata()
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(_look_from_elsewhere, context.run_id).result()


def _look_from_elsewhere(run_id: str) -> Any:
    try:
        result = default_task_backend.get_result(run_id)
        return [result.progress.done if result.progress else None, result.metadata]
    finally:
        connections.close_all()


@task(timeout=0.2, max_attempts=2, backoff=0)
def sleep_too_long() -> None:
    time.sleep(30)


@task(timeout=0.2)
def spin_too_long() -> None:
    while True:
        pass


@task(timeout=0.2)
async def sleep_too_long_async() -> None:
    await asyncio.sleep(30)


@task
def fail_unspeakably(kind: str) -> None:
    match kind:
        case "nul":
            raise ValueError("a\0b\ud800c")
        case "long":
            raise ValueError("x" * 10_000_000)
        case "str":
            raise UnspeakableError


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@task
def return_unstorable(kind: str) -> Any:
    return {"object": object(), "nan": float("nan"), "nul": "a\0b", "keys": {1: 2}}[kind]


@task(aliases=["tests.app.tasks.former_name"])
def present_name() -> str:
    return "found"


@task
def enqueue_another() -> str:
    return add.enqueue(1, 2).id


@task
def log_a_line() -> None:
    logging.getLogger("tests.app").warning("working")


@task(atomic=True)
def write_and_lose(label: str) -> None:
    """Somebody else settles the run while it works: nothing it writes may stay."""
    Ledgerline.objects.create(label=label, amount=1)
    Ledger().recover(lambda orphan: 3)


@task(atomic=True, max_attempts=2, backoff=0)
def break_a_constraint() -> None:
    Ledgerline.objects.create(pk=1, label="twice")
    Ledgerline.objects.create(pk=1, label="twice")


@task
def interrupt() -> None:
    raise KeyboardInterrupt


@task
def doomed(value: str) -> str:
    return value


AlsoValueError = ValueError


def give_up(error: BaseException, result: Any) -> None:
    assert isinstance(error, ValueError)
    assert result.attempts == 1


def once_more(error: BaseException, result: Any) -> float | None:
    return 0 if result.attempts < 2 else None


def broken_backoff(error: BaseException, result: Any) -> float:
    raise RuntimeError("broken")


# -- middleware --------------------------------------------------------------------------------------

TRAIL: list[str] = []


def outer(get_value: Any) -> Any:
    def middleware(context: TaskContext) -> Any:
        TRAIL.append("outer in")
        value = get_value(context)
        TRAIL.append(f"outer out {value}")
        return value

    return middleware


def inner(get_value: Any) -> Any:
    def middleware(context: TaskContext) -> Any:
        TRAIL.append("inner in")
        value = get_value(context)
        TRAIL.append(f"inner out {value}")
        return value * 10

    return middleware


def refusing(get_value: Any) -> Any:
    def middleware(context: TaskContext) -> Any:
        raise PermissionError(context.run_id)

    return middleware


def stamp(enqueue: Any) -> Any:
    def middleware(calls: list[Any]) -> Any:
        return enqueue([call.replace(task=call.task.using(metadata={"stamped": len(calls)})) for call in calls])

    return middleware


@task
def enqueue_itself() -> None:
    enqueue_itself.enqueue()


# -- killers -----------------------------------------------------------------------------------------


@task
def segfault() -> None:
    print("last words\n", end="", flush=True)
    ctypes.string_at(0)


@task(timeout=0.2)
def swallow_its_timeout() -> None:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(30)


@task
def stay(label: str, how: str) -> None:
    """Leaves a mark when it has started, and then stays for a minute."""
    Ledgerline.objects.create(label=label)
    _stay(how)


@task
def stay_for(label: str, seconds: float) -> None:
    """Leaves a mark when it has started, and then stays for so long."""
    Ledgerline.objects.create(label=label)
    time.sleep(seconds)


@task
async def stay_async(label: str) -> None:
    await Ledgerline.objects.acreate(label=label)
    await asyncio.sleep(60)


@task(takes_context=True)
def stay_at_first(context: TaskContext, label: str) -> int:
    """Stays only the first time it is tried."""
    if context.attempt == 1:
        Ledgerline.objects.create(label=label)
        _stay("asleep")
    return context.attempt


def _stay(how: str) -> None:
    end = time.monotonic() + 60
    match how:
        case "asleep":
            time.sleep(60)
        case "busy":
            while time.monotonic() < end:
                pass
        case "stubborn":
            while time.monotonic() < end:
                with contextlib.suppress(BaseException):
                    time.sleep(end - time.monotonic())
        case "in C":
            hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000_000)  # a minute or more, and no way in


@task(timeout=0.2)
def compute_too_long() -> None:
    _stay("in C")


@task(timeout=0.2)
async def block_the_loop() -> None:
    time.sleep(30)


@task
async def exit_from_the_loop() -> None:
    await asyncio.sleep(0.3)
    os._exit(7)


@task
def exit_with(code: int) -> None:
    print("last words\n", end="", flush=True)
    os._exit(code)


@task
def kill_itself() -> None:
    print("last words\n", end="", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@task
def kill_its_fork_server() -> None:
    parent = psutil.Process(os.getppid())
    if not any("forkserver" in word for word in parent.cmdline()):
        raise RuntimeError(f"{parent} is somebody else's process.")
    parent.kill()
    time.sleep(30)


@task
def leave_politely() -> None:
    sys.exit()


@task
def tell_process() -> int:
    return os.getpid()


@task
def grow(mebibytes: int) -> int:
    """Needs so much memory, for a moment."""
    held = bytearray(mebibytes * 2**20)
    held[:: resource.getpagesize()] = b"x" * len(range(0, len(held), resource.getpagesize()))
    return os.getpid()


@task
def eat_memory() -> int:
    return len(bytearray(2 * 1024**3))


@task
def count_lines() -> int:
    return Ledgerline.objects.count()


@task
async def count_lines_async() -> int:
    return await Ledgerline.objects.acount()


@task
async def sleep_async(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task
def beat(seconds: float) -> None:
    """Leaves a mark twenty times a second: who is dead leaves none."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        Ledgerline.objects.create(label="beat")
        time.sleep(0.05)


def add_one(enqueue: Any) -> Any:
    return lambda calls: enqueue([*calls, calls[0]])


def return_nothing(enqueue: Any) -> Any:
    return lambda calls: enqueue(calls) and None


@task
def leave_a_transaction_open() -> None:
    transaction.atomic().__enter__()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no words")


@task
def fail_unprintably() -> None:
    raise Unprintable


@task(takes_context=True)
def tell_nonsense(context: TaskContext) -> str:
    context.progress(float("nan"))
    return "never"


@task
def fork_and_exit(seconds: float) -> None:
    """Leaves a process behind that holds whatever it inherited."""
    if os.fork() == 0:
        time.sleep(seconds)
        os._exit(0)
    os._exit(3)


@task
def fork_and_return(number: int) -> int:
    """Both processes return from it."""
    if os.fork() == 0:
        connections.close_all()
    return number


@task
def fork_a_beater() -> None:
    connections.close_all()
    if os.fork() == 0:
        while True:
            Ledgerline.objects.create(label="beat")
            time.sleep(0.05)


@task
def close_everything() -> None:
    os.closerange(3, 256)


@task
async def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.1)


@task
def begin_by_hand() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("BEGIN")


class NeverRead(Sequence[int]):
    """It says that it has an element, and never gives it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, place: Any) -> Any:
        while True:
            time.sleep(1)


@task
def return_what_is_never_read() -> Any:
    return NeverRead()


@task
async def return_what_is_never_read_async() -> Any:
    return NeverRead()


@task
def repeat(word: str, times: int) -> str:
    return word * times


@task
async def repeat_async(word: str, times: int) -> str:
    return word * times


@task
def measure(word: str) -> int:
    return len(word)


@task(timeout=1, max_attempts=1)
async def block_or_sleep(block: bool) -> None:
    if block:
        time.sleep(10)
    await asyncio.sleep(0.2)


# -- on Ray ------------------------------------------------------------------------------------------


@task
def exit_at(number: int, last: int) -> int:
    """One of many short ones ends its process."""
    if number == last:
        os._exit(9)
    return number


@task(atomic=True)
def write_after(label: str, seconds: float) -> None:
    """Short enough to share a Ray task with others."""
    Ledgerline.objects.create(label=label)
    time.sleep(seconds)


@task
def name_settings() -> str:
    return str(settings.SETTINGS_MODULE)


@task
def random_text(size: int) -> str:
    """Hexadecimal digits of random bytes: twice as many characters, which can be compressed to about half."""
    return os.urandom(size).hex()


@task(ray={"num_cpus": 0.05})
def stay_on_ray(label: str, until: str) -> str:
    """
    Leaves a mark when it has started, and stays until there is a file. It takes so little of a processor that
    many can stay at a time.
    """
    Ledgerline.objects.create(label=label, amount=os.getpid())
    _stay_until(until)
    return label


@task(atomic=True, timeout=300, ray={"num_cpus": 0.05})
def write_slowly_on_ray(label: str, until: str) -> None:
    Path(f"{until} {label}").touch()
    _stay_until(until)
    Ledgerline.objects.create(label=label)


@task(ray={"resources": {"doomed_node": 0.01}})
def stay_on_the_doomed_node(label: str, until: str) -> None:
    Ledgerline.objects.create(label=label)
    _stay_until(until)


@task(ray={"num_cpus": 0.05})
def stay_beside(begun: str, until: str) -> str:
    """The same without the database."""
    Path(begun).touch()
    _stay_until(until)
    return "done"


@task(ray={"resources": {"small_node": 1}})
def hold_memory(mebibytes: int, seconds: float) -> None:
    held = bytearray(mebibytes * 2**20)
    held[:: resource.getpagesize()] = b"x" * len(range(0, len(held), resource.getpagesize()))
    time.sleep(seconds)


@task
def speak(words: str) -> None:
    print(f"{words}, aloud")
    print(f"{words}, aside", file=sys.stderr)


@task(ray={"num_cpus": 0.05})
def speak_and_stay(label: str, until: str) -> None:
    print("so far", flush=True)
    Ledgerline.objects.create(label=label)
    _stay_until(until)
    print("and on")


@task(takes_context=True, ray={"num_cpus": 0.05})
def die_while_telling(context: TaskContext, begun: str, until: str) -> str:
    """At the first attempt another thread ends the process while its large result is half sent."""
    if context.attempt > 1:
        return "whole"
    threading.Thread(target=_die_while_sending, daemon=True).start()
    Path(begun).touch()
    _stay_until(until)
    return "x" * 40_000_000


def _die_while_sending() -> None:
    from django_manta.execution.runners.ray import chunk

    executor = chunk._the_executor
    assert executor is not None
    while executor._current is not None or not _is_held(executor._sending):
        time.sleep(0.001)
    # So far that the kernel takes no more.
    time.sleep(0.5)
    ctypes.string_at(0)


def _is_held(lock: Any) -> bool:
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


@task(ray={"num_cpus": 0.05})
def say_garbage(words: str) -> None:
    """Writes to the connection with the foreman, and lives on."""
    from django_manta.execution.runners.ray import chunk

    executor = chunk._the_executor
    assert executor is not None
    assert executor._connection is not None
    print("last words", flush=True)
    executor._connection.sendall(words.replace("KEY", executor._current or "").encode() + b"\n")
    time.sleep(300)


@task(ray={"num_cpus": 0.05})
def fork_mark_and_exit(mark: str) -> None:
    """Dies, and leaves a process behind that holds whatever it inherited, for as long as there is a file."""
    with Path(mark).open("a") as file:
        file.write("x")
    if os.fork() == 0:
        while Path(mark).exists():
            time.sleep(0.05)
        os._exit(0)
    os._exit(3)


@task(ray={"num_cpus": 0.05})
def repeat_when_told(begun: str, until: str, times: int) -> str:
    Path(begun).touch()
    _stay_until(until)
    return "x" * times


def square(number: int) -> int:
    return number * number


@task(ray={"num_cpus": 0.05})
def sum_of_squares(upto: int) -> int:
    """What is done beside it, on Ray, needs this project there."""
    return sum(parallel_map(square, range(upto), concurrency=3, num_cpus=0.1))


def _stay_until(path: str) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end and not Path(path).exists():
        time.sleep(0.05)
