"""Every test here runs inside a transaction that never commits, and again with everything committed."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from django_manta.ledger import Ledger, fsck
from django_manta.result import TaskResult
from django_manta.states import State
from tests.workflow import tasks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        commits: Any = getattr(item, "callspec", None)
        if commits is not None and "ending" in commits.params:
            item.add_marker(pytest.mark.django_db(transaction=commits.params["ending"] == "committed"))


@pytest.fixture(autouse=True, params=["within", "committed"])
def ending(request: pytest.FixtureRequest) -> Iterator[str]:
    """
    Within a TestCase's transaction what waits is counted by ``run_all()``; with real commits at once.

    Whatever a test did, the ledger is clean afterwards and nobody is left untold.
    """
    tasks.SCRIPTS.clear()
    tasks.BROKEN.clear()
    yield request.param
    assert fsck.check(Ledger()) == []


type Script = Callable[..., str]


@pytest.fixture
def script() -> Script:
    """Names a script for the scripted tasks: what they do at the first call, at the second, and so on."""

    def name(*steps: Callable[[], Any]) -> str:
        named = uuid4().hex
        tasks.SCRIPTS[named] = list(steps)
        return named

    return name


def state(result: TaskResult) -> State:
    result.refresh()
    return result.state


def states(*results: TaskResult) -> list[State]:
    return [state(result) for result in results]
