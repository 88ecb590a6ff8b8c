"""Tasks that the tests enqueue. Each does one thing worth watching."""

import time
from typing import Any

from django.db import transaction

from django_manta import TaskContext, task

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
