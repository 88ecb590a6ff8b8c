"""cancel, retry, hold, release: by id and by filter, in batches, and what they tell."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management.base import CommandError
from django.db import connection
from django.tasks.signals import task_finished
from django.test.utils import CaptureQueriesContext

from django_manta import State
from django_manta.commands import moving
from django_manta.ledger import Ledger, fsck
from django_manta.models import Run
from django_manta.ringing import CANCEL
from django_manta.signals import run_settled
from django_manta.testing import run_all
from django_manta.worker.doorbell import PostgresDoorbell
from tests.app import tasks
from tests.commands.conftest import Done, manta, manta_json
from tests.worker.conftest import wait_for

pytestmark = pytest.mark.django_db

VERBS = ["cancel", "retry", "hold", "release"]


def states() -> dict[str, int]:
    counted: dict[str, int] = {}
    for state in Run.objects.values_list("state", flat=True):
        counted[state] = counted.get(state, 0) + 1
    return counted


def enqueue(count: int, **using: Any) -> list[str]:
    return [result.id for result in tasks.add.using(**using).starmap([(n, n) for n in range(count)])]


# -- by id -------------------------------------------------------------------------------------------


def test_each_verb_moves_runs_by_id() -> None:
    [one, other] = enqueue(2)
    assert manta("hold", one, other).out == "Held 2 runs: 2 HELD.\n"
    assert manta("release", one).out == "Released 1 run: 1 READY.\n"
    assert manta("cancel", one, other).out == "Cancelled 2 runs: 2 CANCELLED.\n"
    assert manta("retry", one).out == "Retried 1 run: 1 READY.\n"
    assert states() == {"READY": 1, "CANCELLED": 1}


def test_a_running_run_is_cancelling_until_nothing_of_it_runs() -> None:
    [run_id] = enqueue(1)
    Ledger().claim("worker", ["default"], 1)
    assert manta_json("cancel", run_id)["moved"] == {"CANCELLING": 1}
    # It is on its way where it was sent: nothing to complain of.
    assert manta("cancel", run_id).code == 0


def test_what_cannot_be_moved_is_left_and_told() -> None:
    [done] = enqueue(1)
    run_all()
    missing = uuid4()
    ended = manta("cancel", done, missing)
    assert ended.code == 1
    assert ended.lines == [
        "Cancelled 0 runs.",
        "Left as they are: 1 SUCCESSFUL.",
        f"There is no run {missing}.",
    ]
    told = manta("retry", done, missing, "--format", "json")
    assert (told.code, told.data["left"], told.data["missing"]) == (1, {"SUCCESSFUL": 1}, [str(missing)])


def test_an_id_given_twice_is_moved_once() -> None:
    [run_id] = enqueue(1)
    assert manta_json("cancel", run_id, run_id.replace("-", "").upper())["moved"] == {"CANCELLED": 1}


@pytest.mark.parametrize("verb", VERBS)
def test_a_malformed_id_moves_nothing(verb: str) -> None:
    [run_id] = enqueue(1)
    with pytest.raises(CommandError, match="'12345' is not the id of a run"):
        manta(verb, run_id, "12345")
    assert states() == {"READY": 1}


def test_a_reason_is_kept_with_the_run() -> None:
    [one, other] = enqueue(2)
    manta("cancel", one, "--reason", "ordered by mistake")
    manta("hold", other)
    assert Run.objects.get(pk=one).reason == "ordered by mistake"
    assert Run.objects.get(pk=other).reason == "It is held."


# -- by filter ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_moved_unless_it_is_said_what(verb: str) -> None:
    with pytest.raises(CommandError, match=f"Say which runs to {verb}: by id, by filter .*, or --all"):
        manta(verb)


@pytest.mark.parametrize(
    "arguments", [("--all", "--queue", "slow"), (str(UUID(int=1)), "--all"), (str(UUID(int=1)), "--queue", "slow")]
)
def test_what_to_move_is_said_in_one_way(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="in one way"):
        manta("cancel", *arguments)


@pytest.mark.parametrize("flag", ["--state", "--queue", "--task", "--since"])
def test_an_empty_filter_does_not_mean_everything(flag: str) -> None:
    enqueue(1)
    with pytest.raises(CommandError):
        manta("cancel", flag, "")
    assert states() == {"READY": 1}


def test_filters_choose() -> None:
    enqueue(2)
    enqueue(3, queue_name="slow")
    tasks.fail.enqueue()
    assert manta_json("hold", "--queue", "slow")["moved"] == {"HELD": 3}
    assert manta_json("hold", "--task", "tests.app.tasks.fail", "--since", "1h")["moved"] == {"HELD": 1}
    assert manta_json("cancel", "--state", "ready")["moved"] == {"CANCELLED": 2}
    assert states() == {"HELD": 4, "CANCELLED": 2}


def test_all_means_all_that_the_verb_moves() -> None:
    enqueue(2)
    enqueue(1, run_after=timedelta(hours=1))
    run_all()
    enqueue(1)
    assert manta_json("cancel", "--all") == {
        "verb": "cancel",
        "dry_run": False,
        "moved": {"CANCELLED": 2},
        "left": {},
        "missing": [],
        "runs": [],
    }
    assert states() == {"SUCCESSFUL": 2, "CANCELLED": 2}


def test_release_goes_back_to_waiting_for_a_date_that_is_ahead() -> None:
    enqueue(1)
    enqueue(1, run_after=timedelta(hours=1))
    manta("hold", "--all")
    assert manta_json("release", "--all", "--dry-run")["moved"] == {"READY": 1, "SCHEDULED": 1}
    assert manta_json("release", "--all")["moved"] == {"READY": 1, "SCHEDULED": 1}


def test_retry_by_filter_leaves_what_was_cancelled_on_purpose() -> None:
    [cancelled] = enqueue(1)
    manta("cancel", cancelled)
    tasks.fail.enqueue()
    run_all()
    assert manta_json("retry", "--all")["moved"] == {"READY": 1}
    assert Run.objects.get(pk=cancelled).state == State.CANCELLED
    assert manta_json("retry", "--state", "CANCELLED")["moved"] == {"READY": 1}


def test_a_state_that_a_verb_does_not_move_is_refused() -> None:
    with pytest.raises(CommandError, match=r"`retry` moves no run that is SUCCESSFUL. --state can be: FAILED, "):
        manta("retry", "--state", "SUCCESSFUL")
    with pytest.raises(CommandError, match=r"`release` moves no run that is READY. --state can be: HELD."):
        manta("release", "--state", "ready")


def test_a_dry_run_says_what_would_be_moved_and_moves_nothing() -> None:
    enqueue(moving.SHOWN + 5)
    Ledger().claim("worker", ["default"], 1)
    told = manta_json("cancel", "--all", "--dry-run")
    assert told["moved"] == {"CANCELLING": 1, "CANCELLED": moving.SHOWN + 4}
    assert len(told["runs"]) == moving.SHOWN
    assert set(told["runs"][0]) == {"id", "task", "queue", "from", "to"}
    shown = manta("cancel", "--all", "--dry-run").lines
    assert shown[-2:] == [
        "… and 5 more",
        f"Would have cancelled {moving.SHOWN + 5} runs: 1 CANCELLING, {moving.SHOWN + 4} CANCELLED.",
    ]
    assert states() == {"RUNNING": 1, "READY": moving.SHOWN + 4}


@pytest.mark.parametrize("verb", VERBS)
def test_a_dry_run_of_ids_tells_what_the_verb_would_do(verb: str) -> None:
    [ready, held] = enqueue(2)
    manta("hold", held)
    cancelled = enqueue(1)
    manta("cancel", *cancelled)
    told = manta_json(verb, ready, held, *cancelled, "--dry-run")
    assert manta_json(verb, ready, held, *cancelled)["moved"] == told["moved"]


def test_many_are_moved_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "BATCH", 10)
    monkeypatch.setattr(moving, "_PROGRESS_SECONDS", 0.0)
    enqueue(25)
    with CaptureQueriesContext(connection) as asked:
        done = manta("hold", "--all")
    moves = [query for query in asked if "state = 'HELD'" in query["sql"]]
    assert len(moves) == 3
    assert done.out == "Held 25 runs: 25 HELD.\n"
    assert done.err.splitlines() == [f"Held {count} runs so far …" for count in (10, 20, 25)]
    assert manta("release", "--all", "-v", "0").err == ""
    assert manta_json("cancel", *Run.objects.values_list("pk", flat=True))["moved"] == {"CANCELLED": 25}


def test_what_is_enqueued_meanwhile_is_not_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer as fast as the command would otherwise keep it busy for ever."""
    monkeypatch.setattr(moving, "BATCH", 5)
    enqueue(10)
    hold = Ledger.hold

    def hold_while_others_enqueue(self: Ledger, *args: Any, **kwargs: Any) -> Any:
        enqueue(5)
        return hold(self, *args, **kwargs)

    monkeypatch.setattr(Ledger, "hold", hold_while_others_enqueue)
    assert manta_json("hold", "--all")["moved"] == {"HELD": 10}


def test_the_ledger_is_sound_after_every_verb() -> None:
    enqueue(3)
    for verb in ("hold", "release", "cancel", "retry"):
        manta(verb, "--state", {"hold": "READY", "release": "HELD", "cancel": "READY", "retry": "CANCELLED"}[verb])
    assert states() == {"READY": 3}
    assert fsck.check(Ledger()) == []


# -- what others hear --------------------------------------------------------------------------------


def test_the_end_of_a_cancelled_run_is_told(django_capture_on_commit_callbacks: Any) -> None:
    [run_id] = enqueue(1)
    finished: list[str] = []
    settled: list[tuple[str, State]] = []

    def on_finished(task_result: Any, **kwargs: Any) -> None:
        finished.append(task_result.id)

    def on_settled(run_id: str, state: State, **kwargs: Any) -> None:
        settled.append((run_id, state))

    task_finished.connect(on_finished)
    run_settled.connect(on_settled)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            manta("cancel", run_id)
    finally:
        task_finished.disconnect(on_finished)
        run_settled.disconnect(on_settled)
    assert finished == [run_id]
    assert settled == [(run_id, State.CANCELLED)]


@pytest.fixture
def bell(transactional_db: None) -> Iterator[PostgresDoorbell]:
    bell = PostgresDoorbell("default", "default")
    bell.listen()
    yield bell
    bell.close()


@pytest.mark.postgres
def test_the_doorbell_rings_afterwards(bell: PostgresDoorbell, run_manta: Callable[..., Done]) -> None:
    # Another process, so that its rings are not left out as too close to the ones of our enqueues.
    [run_id] = enqueue(1, queue_name="slow")
    wait_for(bell.rang)
    run_manta("hold", run_id)
    assert bell.rang() == []
    run_manta("release", run_id)
    assert wait_for(bell.rang) == ["slow"]
    Ledger().claim("worker", ["slow"], 1)
    run_manta("cancel", run_id)
    assert wait_for(bell.rang) == [CANCEL]
    run_manta("resume", "urgent")
    assert wait_for(bell.rang) == ["urgent"]
