"""The test case of the rewritten tests: it has a database, and watches what reaches the ledger."""

import os
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any
from unittest import mock

from django.db import connections
from django.tasks import task_backends
from django.tasks.base import TaskResult
from django.tasks.signals import task_enqueued
from django.test import TransactionTestCase

from django_manta.backend import MantaBackend
from django_manta.models import Attempt, Run

#: Async tests that call a synchronous method on purpose. Django's examples touch no database, ours does,
#: so Django's guard would stop them. In all other async tests the guard is on, and proves that our async
#: methods leave the event loop alone.
SYNCHRONOUS_IN_ASYNC = {
    "tasks.test_dummy_backend.DummyBackendTestCase.test_enqueue_task_async",
    "tasks.test_dummy_backend.DummyBackendTestCase.test_refresh_result_async",
    "tasks.test_tasks.TaskTestCase.test_enqueue_task_async",
    "tasks.test_tasks.TaskTestCase.test_refresh_result",
}

#: Runs found in the ledger's table right after their enqueue, and attempts found there after each test,
#: by test class.
runs_seen: Counter[str] = Counter()
attempts_seen: Counter[str] = Counter()


class LedgerTestCase(TransactionTestCase):
    """
    Stands where SimpleTestCase stood, which forbids databases.

    Not TestCase: an async test runs in a thread, and so on a connection, of its own, where it could not
    see what is uncommitted here.
    """

    available_apps = ["django_manta"]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, function in list(vars(cls).items()):
            if iscoroutinefunction(function):
                test = f"{cls.__module__}.{cls.__qualname__}.{name}"
                setattr(cls, name, _in_its_own_thread(function, allow=test in SYNCHRONOUS_IN_ASYNC))

    def run(self, *args: Any, **kwargs: Any) -> Any:
        task_enqueued.connect(self._look_it_up)
        try:
            return super().run(*args, **kwargs)
        finally:
            task_enqueued.disconnect(self._look_it_up)

    def _look_it_up(self, sender: type, task_result: TaskResult, **kwargs: Any) -> None:  # type: ignore[type-arg]
        if issubclass(sender, MantaBackend):
            runs_seen[type(self).__qualname__] += Run.objects.filter(id=task_result.id).count()

    def tearDown(self) -> None:
        # Before Django empties the tables.
        assert isinstance(task_backends["default"], MantaBackend), task_backends["default"]
        attempts_seen[type(self).__qualname__] += Attempt.objects.count()


def _in_its_own_thread(test: Callable[..., Awaitable[None]], *, allow: bool) -> Callable[..., Awaitable[None]]:
    @wraps(test)
    async def wrapped(self: LedgerTestCase) -> None:
        if not allow:
            return await test(self)
        with mock.patch.dict(os.environ, DJANGO_ALLOW_ASYNC_UNSAFE="1"):
            try:
                await test(self)
            finally:
                connections.close_all()  # those of this thread, which nobody else can close
        return None

    return wrapped
