"""info, list and show: what operators look at."""

import re
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management.base import CommandError
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_manta import State, workflow
from django_manta.commands import info
from django_manta.ledger import Ledger
from django_manta.models import Run
from django_manta.testing import run_all
from tests.app import flows, tasks
from tests.commands.conftest import manta, manta_json
from tests.ledger.given import settlement, worker_record

pytestmark = pytest.mark.django_db


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [run["id"] for run in found]


# -- list --------------------------------------------------------------------------------------------


def test_list_shows_the_newest_first() -> None:
    results = [tasks.add.enqueue(n, n) for n in range(3)]
    assert ids(manta_json("list")) == [result.id for result in reversed(results)]
    shown = manta("list")
    assert shown.lines[0].split() == [
        *("id", "state", "task", "queue"),
        *("attempts", "enqueued", "finished", "reason"),
    ]
    assert [line.split()[0] for line in shown.lines[1:]] == [result.id for result in reversed(results)]


def test_list_stops_at_its_limit_and_says_so() -> None:
    tasks.add.starmap([(n, n) for n in range(5)])
    assert len(manta_json("list", "--limit", 2)) == 2
    assert "--limit shows more than 2" in manta("list", "--limit", 2).lines[-1]
    assert "more" not in manta("list", "--limit", 5).lines[-1]
    with pytest.raises(CommandError, match="--limit is '0', but it takes a whole number above 0"):
        manta("list", "--limit", 0)


def test_list_filters() -> None:
    failed = tasks.fail.enqueue()
    run_all()
    slow = tasks.add.using(queue_name="slow").enqueue(1, 1)
    held = tasks.add.using(hold=True).enqueue(1, 1)
    assert ids(manta_json("list", "--state", "failed")) == [failed.id]
    assert ids(manta_json("list", "--state", "FAILED,held")) == [held.id, failed.id]
    assert ids(manta_json("list", "--state", "FAILED", "--state", "READY")) == [slow.id, failed.id]
    assert ids(manta_json("list", "--queue", "slow")) == [slow.id]
    assert ids(manta_json("list", "--task", "tests.app.tasks.fail")) == [failed.id]
    assert ids(manta_json("list", "--task", "tests.app.tasks.add", "--queue", "default")) == [held.id]
    assert manta_json("list", "--queue", "nowhere") == []
    assert manta("list", "--queue", "nowhere").out == "No runs match.\n"


def test_list_of_nothing_says_so() -> None:
    assert manta("list").out == "There are no runs.\n"


@pytest.mark.parametrize(
    ("since", "found"),
    [("10m", 1), ("30s", 1), ("2h", 2), ("1d", 2), ("1w", 3), ("0001-01-01", 3), ("2999-01-01T00:00:00+05:00", 0)],
)
def test_since_takes_durations_and_dates(since: str, found: int) -> None:
    now = Run.objects.get(pk=tasks.add.enqueue(1, 1).id).enqueued_at
    for age in (timedelta(hours=1), timedelta(days=3)):
        # As it was enqueued then: with the id and the time of then.
        Run(
            id=_id_at(now - age),
            task="then",
            backend="default",
            queue="default",
            arguments="[[],{}]",
            state="READY",
            enqueued_at=now - age,
            deadline=now,
        ).save(force_insert=True)
    assert len(manta_json("list", "--since", since)) == found


def _id_at(moment: datetime) -> UUID:
    return UUID(int=int(moment.timestamp() * 1000) << 80 | 0x7 << 76 | uuid4().int >> 66)


def test_a_machine_with_a_wrong_clock_is_found_all_the_same() -> None:
    """Its ids are of another hour; the database's clock says when it was enqueued."""
    result = tasks.add.enqueue(1, 1)
    run = Run.objects.get(pk=result.id)
    Run(
        id=_id_at(run.enqueued_at - timedelta(hours=20)),
        task="skewed",
        backend="default",
        queue="default",
        arguments="[[],{}]",
        state="READY",
        deadline=run.deadline,
    ).save(force_insert=True)
    assert [found["task"] for found in manta_json("list", "--since", "1m")] == ["tests.app.tasks.add", "skewed"]


@pytest.mark.parametrize("since", ["never", "10", "10 minutes", "5y", "99999999999d", "2026-13-01", ""])
def test_a_time_that_is_none_is_refused(since: str) -> None:
    with pytest.raises(CommandError, match=r"is no time. Give a duration such as 90s, 10m"):
        manta("list", "--since", since)


def test_a_state_that_is_none_is_refused_by_its_likeness() -> None:
    with pytest.raises(CommandError, match=r"There is no state 'faild'. Did you mean FAILED\?"):
        manta("list", "--state", "faild")
    with pytest.raises(CommandError, match=r"There is no state 'xx'. The states: HELD, SCHEDULED"):
        manta("list", "--state", "xx")


@pytest.mark.parametrize("flag", ["--state", "--queue", "--task"])
def test_an_empty_filter_is_refused(flag: str) -> None:
    with pytest.raises(CommandError, match=f"{flag} was given an empty name"):
        manta("list", flag, "")


def test_the_backend_must_be_one_of_ours() -> None:
    with pytest.raises(CommandError, match=r"There is no backend 'nope' in TASKS. --backend takes one of: d"):
        manta("list", "--backend", "nope")


# -- show --------------------------------------------------------------------------------------------


def test_show_tells_the_whole_story() -> None:
    result = tasks.fail_first.using(metadata={"order": 7}).enqueue()
    run_all()
    told = manta_json("show", result.id)
    assert (told["id"], told["state"], told["result"]) == (result.id, "SUCCESSFUL", 2)
    assert told["metadata"] == {"order": 7}
    assert told["arguments"] == [[], {}]
    assert [attempt["outcome"] for attempt in told["history"]] == ["FAILED", "SUCCESSFUL"]
    assert told["history"][0]["error_class"] == "builtins.RuntimeError"
    assert "raise RuntimeError" in told["history"][0]["traceback"]
    assert told["history"][0]["duration_seconds"] >= 0
    shown = manta("show", result.id).out
    for words in (
        "tests.app.tasks.fail_first",
        "SUCCESSFUL",
        '"order"',
        "2 (1 failures, 0 crashes, 0 losses)",
        "attempt 1: FAILED after",
        "attempt 2: SUCCESSFUL after",
        "builtins.RuntimeError: first",
        'raise RuntimeError("first")',
    ):
        assert words in shown, words


def test_show_shows_arguments_as_a_call_and_progress() -> None:
    result = tasks.echo.enqueue("ä", 2, key=[None])
    ledger = Ledger()
    [claim] = ledger.claim("worker", ["default"], 1)
    ledger.save_progress(claim.id, claim.token, '{"done": 3, "total": 4, "message": "nearly"}')
    shown = manta("show", result.id).out
    assert '("ä", 2, key=[null])' in shown
    assert "3 of 4 nearly" in shown
    assert manta_json("show", result.id)["progress"] == {"done": 3, "total": 4, "message": "nearly"}


def test_show_says_why_a_run_stands_where_it_stands() -> None:
    ledger = Ledger()
    ready, held = tasks.add.enqueue(1, 1), tasks.add.using(hold=True).enqueue(1, 1)
    later = tasks.add.using(run_after=timedelta(hours=1)).enqueue(1, 1)

    def why(result: Any) -> str:
        text: str = manta_json("show", result.id)["why"]
        return text

    assert why(ready).startswith("No live worker claims from queue 'default'")
    ledger.register(worker_record(queues=("default",)))
    assert why(ready).startswith("A worker takes it at its next look.")
    ledger.pause("default")
    assert why(ready).startswith("Queue 'default' is paused since")
    ledger.resume("default")
    assert f"`manta release {held.id}` lets it go." in why(held)
    assert "it is due in " in why(later)
    ledger.claim("worker", ["default"], 1)
    assert why(ready).startswith("Worker worker has it")
    ledger.settle([settlement(claim) for claim in ledger.claim("worker", ["default"], 1)])
    assert manta_json("show", held.id)["state"] == "HELD"
    run_all(include_scheduled=True)
    assert why(later) == ""


def test_show_tells_what_is_around_a_run() -> None:
    with workflow("orders", unique_key="4711") as flow:
        first = tasks.add.enqueue(1, 1)
        result = flows.note.using(after=[first], when="all_finished").enqueue(tasks.add.enqueue(2, 2))
    delegated = flows.delegate.enqueue(1, 2)
    told = manta_json("show", result.id)
    assert told["workflow"] == {"id": str(flow.id), "name": "orders"}
    assert (told["when"], told["laters"], told["waited_for_by"]) == ("all_finished", 0, [])
    assert {(run["role"], run["state"]) for run in told["waits_for"]} == {("value", "READY"), ("after", "READY")}
    assert told["references"][0][1] != first.id
    shown = manta("show", result.id).out
    assert f"waits for  {told['waits_for'][0]['id']} READY tests.app.tasks.add" in shown
    assert f"orders {flow.id}" in shown
    [dependent] = manta_json("show", first.id)["waited_for_by"]
    assert dependent == {"id": result.id, "role": "after", "task": "tests.app.flows.note", "state": "WAITING"}
    run_all()
    [child] = manta_json("show", delegated.id)["waits_for"]
    assert child["role"] == "delegate"
    assert re.search(f"delegated to +{child['id']}", manta("show", delegated.id).out)


def test_show_names_no_more_runs_around_it_than_are_worth_reading() -> None:
    result = flows.total.enqueue(tasks.add.starmap([(n, n) for n in range(120)]))
    told = manta_json("show", result.id)
    assert len(told["waits_for"]) == 100
    assert told["more"] == {"waits_for": True, "waited_for_by": False}
    assert "… and more: `manta graph` draws them" in manta("show", result.id).out


def test_show_of_a_row_altered_by_hand_shows_it() -> None:
    run = Run(task="gone", backend="x", queue="q", arguments="no json", state="FAILED", reason="who knows")
    run.deadline = Run.objects.get(pk=tasks.add.enqueue(1, 1).id).deadline
    run.save(force_insert=True)
    assert "no json" in manta("show", run.pk).out
    assert manta_json("show", run.pk)["arguments"] == "no json"


def test_show_keeps_control_characters_from_the_terminal() -> None:
    result = tasks.fail.enqueue("red \x1b[31m bell \x07")
    run_all()
    shown = manta("show", result.id)
    assert "\x1b" not in shown.out
    assert "\x07" not in shown.out
    assert "red \\x1b[31m bell \\x07" in shown.out


@pytest.mark.parametrize("wrong", ["12", "", "not-an-id", "019a8f3e-5c1b-7d42-9a60-3f1c2b4d5e6"])
def test_a_malformed_id_is_refused(wrong: str) -> None:
    with pytest.raises(CommandError, match="is not the id of a run"):
        manta("show", wrong)


def test_an_id_of_nothing_is_refused() -> None:
    with pytest.raises(CommandError, match=r"There is no run .*: it never was, or retention removed it"):
        manta("show", uuid4())


# -- info --------------------------------------------------------------------------------------------


def test_info_pictures_queues_workers_and_rates() -> None:
    ledger = Ledger()
    ledger.register(worker_record("w1", name="one", queues=("default", "slow"), runner="processes"))
    tasks.add.starmap([(n, n) for n in range(3)])
    tasks.fail.enqueue()
    run_all()
    tasks.add.using(run_after=timedelta(hours=1)).enqueue(1, 1)
    tasks.add.using(hold=True, queue_name="slow").enqueue(1, 1)
    tasks.add.starmap([(n, n) for n in range(5)])
    ledger.claim("w1", ["default"], 2)
    ledger.pause("urgent")
    seen = manta_json("info")
    queues = {queue["queue"]: queue for queue in seen["queues"]}
    assert sorted(queues) == ["default", "slow", "urgent"]
    shape = ("ready", "scheduled", "waiting", "held", "running", "paused")
    assert [queues["default"][key] for key in shape] == [3, 1, 0, 0, 2, False]
    assert [queues["slow"][key] for key in shape] == [0, 0, 0, 1, 0, False]
    assert [queues["urgent"][key] for key in shape] == [0, 0, 0, 0, 0, True]
    assert 0 <= queues["default"]["oldest_ready_seconds"] < 60
    assert queues["slow"]["oldest_ready_seconds"] is None
    [worker] = [worker for worker in seen["workers"] if worker["id"] == "w1"]
    assert (worker["running"], worker["alive"], worker["lost"], worker["stopping"]) == (2, True, False, False)
    assert worker["queues"] == ["default", "slow"]
    assert [(rate["seconds"], rate["settled"], rate["failures"]) for rate in seen["rates"]] == [
        (60, 4, 1),
        (900, 4, 1),
    ]
    assert seen["rates"][0]["per_second"] == pytest.approx(4 / 60, abs=0.001)
    shown = manta("info").out
    assert "since" in shown  # the pause
    assert "w1" in shown


def test_info_of_nothing_has_the_declared_queues() -> None:
    seen = manta_json("info")
    assert [queue["queue"] for queue in seen["queues"]] == ["default", "slow", "urgent"]
    assert seen["workers"] == []
    assert "No workers" in manta("info").out


def test_info_shows_lost_and_silent_workers() -> None:
    ledger = Ledger()
    ledger.mark_lost("gone", ledger.register(worker_record("gone")))
    assert manta_json("info")["workers"][0]["lost"] is True
    assert [line.split()[-1] for line in manta("info").lines if line.startswith("gone")] == ["lost"]


def test_info_counts_no_further_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "COUNT_LIMIT", 10)
    monkeypatch.setattr(info, "NEWEST", 20)
    tasks.add.starmap([(n, n) for n in range(15)])
    run_all()
    tasks.add.starmap([(n, n) for n in range(15)])
    tasks.add.using(run_after=timedelta(hours=1)).starmap([(n, n) for n in range(12)])
    seen = manta_json("info")
    queue = seen["queues"][0]
    assert (queue["ready"], queue["scheduled"]) == (10, 10)
    assert queue["capped"] == ["ready", "scheduled", "waiting", "held"]
    assert seen["rates"][0]["settled"] == 10
    assert seen["rates"][0]["capped"] == ["SUCCESSFUL"]
    # Of fifteen at once the newest ten were counted: faster than ten a minute.
    assert seen["rates"][0]["per_second"] > 10 / 60
    cells = manta("info").lines[3].split()
    assert cells[:6] == ["default", "10+", "10+", "0+", "0+", "0"]


def test_info_asks_as_many_questions_of_many_queues_as_of_few() -> None:
    with CaptureQueriesContext(connection) as few:
        manta_json("info")
    for queue in ("default", "slow", "urgent"):
        tasks.add.using(queue_name=queue).starmap([(n, n) for n in range(20)])
    with CaptureQueriesContext(connection) as many:
        manta_json("info")
    assert len(few) == len(many) <= 12


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "nan"])
def test_watching_takes_a_number_of_seconds(wrong: str) -> None:
    with pytest.raises(CommandError, match=r"--watch is .* but it takes a number of seconds above 0"):
        manta("info", f"--watch={wrong}")


def test_the_oldest_ready_run_is_the_one_that_waits_longest() -> None:
    fresh = Run.objects.get(pk=tasks.add.using(priority=5).enqueue(1, 1).id)
    Run(
        task="old",
        backend="default",
        queue="default",
        arguments="[[],{}]",
        state=State.READY,
        enqueued_at=fresh.enqueued_at - timedelta(hours=2),
        run_after=fresh.enqueued_at - timedelta(hours=1),
        deadline=fresh.deadline,
    ).save(force_insert=True)
    assert 3600 <= manta_json("info")["queues"][0]["oldest_ready_seconds"] < 3700
    assert "1h00m" in manta("info").out
