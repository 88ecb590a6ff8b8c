"""What a task tells while it runs."""

from typing import Any

import pytest
from django.db import connection
from django.tasks import default_task_backend

from django_manta import Progress, State
from django_manta.context import PROGRESS_MESSAGE_LIMIT, TaskContext
from django_manta.exceptions import LostLease
from django_manta.execution.desk import LedgerDesk
from django_manta.models import Run
from django_manta.testing import run_all
from tests.app import tasks


@pytest.mark.django_db
def test_the_context_knows_its_run() -> None:
    result = tasks.describe.using(max_attempts=2).enqueue()
    run_all()
    result.refresh()
    assert result.return_value == {"run_id": result.id, "attempt": 1, "last": False}


@pytest.mark.parametrize("committed", [True, False])
def test_progress_and_metadata_are_kept(request: pytest.FixtureRequest, committed: bool) -> None:
    request.getfixturevalue("transactional_db" if committed else "db")
    result = tasks.tell_progress.using(metadata={"team": "a"}).enqueue(500)
    run_all()
    result.refresh()
    assert result.state == State.SUCCESSFUL
    assert result.progress == Progress(done=500, total=500, message="stepping")
    assert result.progress.share == 1.0
    assert result.metadata == {"team": "a", "seen": 500}


@pytest.mark.django_db(transaction=True)
def test_progress_shows_from_inside_an_atomic_task() -> None:
    result = tasks.tell_progress_atomically.enqueue()
    run_all()
    result.refresh()
    assert result.state == State.SUCCESSFUL
    # On SQLite the transaction holds the only write lock: what is told shows when it commits.
    seen = [1, {"told": True}] if connection.vendor == "postgresql" else [None, {}]
    assert result.return_value == seen
    assert result.progress == Progress(done=1, total=2, message="half")


class Desk:
    def __init__(self) -> None:
        self.saved: list[str] = []

    def save_progress(self, progress: str) -> None:
        self.saved.append(progress)

    def save_metadata(self, metadata: str) -> None:
        self.saved.append(metadata)


def context_with(desk: Any, result: Any) -> TaskContext:
    return TaskContext(task_result=result, is_last_attempt=True, _desk=desk, _call=lambda context: None)


@pytest.mark.django_db
def test_progress_is_throttled_and_the_last_word_is_kept() -> None:
    desk = Desk()
    context = context_with(desk, tasks.add.enqueue(1, 2))
    for done in range(1000):
        context.progress(done)
    assert len(desk.saved) < 5
    context._flush()
    assert desk.saved[-1] == '{"done":999,"total":null,"message":""}'
    context._flush()
    assert desk.saved[-1] == desk.saved[-1]
    assert len(desk.saved) < 6


@pytest.mark.parametrize(("done", "total"), [("1", None), (1, "2"), (True, None)])
@pytest.mark.django_db
def test_progress_takes_numbers(done: Any, total: Any) -> None:
    context = context_with(Desk(), tasks.add.enqueue(1, 2))
    with pytest.raises(TypeError, match="must be a number"):
        context.progress(done, total)


@pytest.mark.django_db
def test_a_progress_message_of_any_length_and_content_is_stored() -> None:
    desk = Desk()
    context_with(desk, tasks.add.enqueue(1, 2)).progress(1, message="a\0\ud800" + "x" * 100_000)
    assert len(desk.saved[0]) < PROGRESS_MESSAGE_LIMIT + 100


@pytest.mark.django_db
def test_an_execution_that_lost_its_run_can_save_nothing() -> None:
    tasks.add.enqueue(1, 2)
    [claim] = default_task_backend.ledger.claim("w", ["default"], 1)
    desk = LedgerDesk("default", claim.id, claim.token + 1)
    desk.save_progress('{"done": 1}')
    with pytest.raises(LostLease, match="no longer belongs to this execution"):
        desk.save_metadata("{}")
    assert Run.objects.get().progress is None
