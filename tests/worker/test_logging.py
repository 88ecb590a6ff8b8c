"""What a worker logs: every event of every run, for people or for machines."""

import json
import logging
import signal
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.tasks import task_backends

from django_manta.ledger import Ledger
from django_manta.worker import events
from django_manta.worker.caretaker import recover
from tests.app import tasks
from tests.ledger.given import claimed, lose, sql
from tests.worker.conftest import Start, WorkerProcess, ended, marked

#: What every event of a run tells.
FACTS = {"run", "task", "queue", "attempt", "worker"}

#: Settings of a project that has configured structlog, and sends its lines to standard output as JSON.
STRUCTLOG = """
import structlog
from tests.settings import *

structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        lambda logger, method, event: {**event, "project": "tests"},
        structlog.processors.JSONRenderer(),
    ],
)
"""


def records(worker: WorkerProcess) -> list[dict[str, Any]]:
    """Every line, which must be JSON, except for what a task printed."""
    return [json.loads(line) for line in worker.lines() if line != "last words"]


def events_of(run: Any, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in told if record.get("run") == run.id]


#: Another line, a clear screen, and a bell; then what ends a line for str.splitlines(), and a sequence of C1.
FORGED = "x\n2026-01-01 00:00:00,000 INFO    forged\x1b[2J\x07\r\u2028\x85\x9b31m"


@pytest.mark.parametrize("formatter", [events.TextFormatter(), events.JsonFormatter()])
def test_what_a_row_holds_is_on_one_line_and_steers_no_terminal(formatter: logging.Formatter) -> None:
    record = logging.LogRecord(events.LOGGER, logging.INFO, "", 0, "lost %s", (FORGED,), None)
    record.manta_facts = {"run": 1, "task": FORGED, "queue": FORGED}
    told = formatter.format(record)
    assert len(told.splitlines()) == 1
    assert not any(unicodedata.category(character) in ("Cc", "Zl") for character in told)
    assert "forged" in told


def test_no_line_of_an_exception_begins_like_one_of_the_log() -> None:
    record = logging.LogRecord("django_manta", logging.ERROR, "", 0, "failed", (), None)
    try:
        raise ValueError(FORGED)
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *rest = events.TextFormatter().format(record).split("\n")
    assert first.endswith("failed")
    assert rest
    assert all(line.startswith("  ") for line in rest)
    assert not any(unicodedata.category(character) == "Cc" for line in rest for character in line)


def test_a_worker_logs_no_line_that_a_row_has_written(start_worker: Start) -> None:
    forged, good = tasks.add.enqueue(1, 2), tasks.add.enqueue(3, 4)
    statement = "UPDATE manta_run SET task = %s WHERE id = %s"
    pk = forged.id if connection.vendor == "postgresql" else forged.id.replace("-", "")
    sql(Ledger(), statement, [FORGED, pk])
    worker = start_worker("--processes", "1", "-v", "2", SKEW_SECONDS=0)
    ended(forged, good, worker=worker)
    assert not any(line.startswith("2026-01-01") for line in worker.lines())
    assert "\x1b" not in worker.log.read_text()


def test_every_line_is_json_and_every_event_tells_its_run(start_worker: Start) -> None:
    add = tasks.add.module_path
    good, failing = tasks.add.using(queue_name="urgent").enqueue(1, 2), tasks.fail_first.enqueue()
    crashing, altered = tasks.segfault.enqueue(), tasks.add.enqueue(1, 2)
    sql(Ledger(), "UPDATE manta_run SET signature = 'forged' WHERE task = %s AND queue = 'default'", [add])
    worker = start_worker("--burst", "--log-format", "json", "-v", "2", "--name", "json")
    assert worker.wait(60) == 0, worker.tell()
    ended(good, failing, crashing)
    told = records(worker)
    assert {"time", "level", "logger", "event"} <= set.intersection(*map(set, told))
    for run in (good, failing, crashing, altered):
        for event in events_of(run, told):
            assert set(event) >= FACTS, event
            assert event["task"] == run.task.module_path
            assert event["worker"].startswith(f"json-{worker.pid}-")
    claimed, started, settled = events_of(good, told)
    assert [each["event"] for each in (claimed, started, settled)] == ["claimed", "started", "settled"]
    assert (settled["queue"], settled["attempt"], settled["level"]) == ("urgent", 1, "INFO")
    assert (settled["outcome"], settled["state"]) == ("SUCCESSFUL", "SUCCESSFUL")
    assert 0 <= settled["seconds"] < 30
    assert [each["attempt"] for each in events_of(failing, told)] == [1, 1, 1, 2, 2, 2]
    ends = [each for each in events_of(crashing, told) if each["event"] not in ("claimed", "started")]
    assert [(each["outcome"], each["level"]) for each in ends] == [("CRASHED", "WARNING")] * 3
    returned = events_of(altered, told)[-1]
    assert (returned["event"], returned["outcome"], returned["state"]) == ("returned", "RETURNED", "SCHEDULED")


def test_a_retry_and_a_quarantine_are_events_of_their_own(start_worker: Start) -> None:
    failing, crashing = tasks.fail_first.enqueue(), tasks.exit_with.enqueue(1)
    worker = start_worker("--burst", "--log-format", "json", "-v", "2")
    assert worker.wait(60) == 0, worker.tell()
    ended(failing, crashing)
    told = records(worker)
    assert [each["event"] for each in events_of(failing, told)][2::3] == ["retried", "settled"]
    assert [each["event"] for each in events_of(crashing, told)][2::3] == ["crashed", "crashed", "quarantined"]


def test_a_run_that_was_lost_is_told_by_the_worker_that_missed_it(start_worker: Start) -> None:
    staying = tasks.stay_at_first.enqueue("staying")
    first = start_worker("--name", "first", LEASE_SECONDS=2).ready()
    marked("staying", first)
    second = start_worker("--log-format", "json", "--name", "second", LEASE_SECONDS=2).ready()
    first.signal(signal.SIGKILL)
    ended(staying, limit=30, worker=second)
    [lost] = [each for each in events_of(staying, records(second)) if each["event"] == "lost"]
    # Without -v 2, too: it is a warning.
    assert lost["level"] == "WARNING"
    assert (lost["task"], lost["queue"], lost["state"]) == ("tests.app.tasks.stay_at_first", "default", "READY")
    assert lost["worker"].startswith(f"first-{first.pid}-")


@pytest.mark.django_db
def test_a_lost_run_is_told_with_its_attempt(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    [claim] = claimed(ledger, worker="gone")
    lose(ledger, "gone")
    with caplog.at_level(logging.WARNING, events.LOGGER):
        assert recover(task_backends["default"], ledger) == 1
    [told] = [getattr(record, "manta_facts", None) for record in caplog.records if record.getMessage() == "lost"]
    assert told["run"] == claim.id
    assert set(told) >= FACTS


def test_how_much_is_told_is_a_matter_of_verbosity(start_worker: Start) -> None:
    def told(*flags: str) -> str:
        runs = [tasks.add.enqueue(1, 2), tasks.fail.enqueue("told")]
        worker = start_worker("--burst", *flags)
        assert worker.wait(60) == 0, worker.tell()
        ended(*runs)
        return "\n".join(worker.lines())

    quiet, chatty = told("-v", "0"), told("-v", "2")
    for text in (quiet, chatty):
        # A bad end is always told, with what was asked and where it was.
        [line] = [line for line in text.splitlines() if "task=tests.app.tasks.fail " in line and "outcome=" in line]
        assert " WARNING settled run=" in line
        assert " queue=default attempt=1 worker=" in line
        assert " outcome=FAILED state=FAILED seconds=" in line
    assert " INFO " not in quiet
    assert "tests.app.tasks.add" not in quiet
    assert chatty.count("task=tests.app.tasks.add ") == 3


@pytest.fixture
def with_settings(tmp_path: Path, subprocess_environment: dict[str, str]) -> Callable[[str], dict[str, str]]:
    """An environment in which Django's settings are this module."""

    def environment(text: str) -> dict[str, str]:
        (tmp_path / "their_settings.py").write_text(text)
        path = f"{tmp_path}:{subprocess_environment.get('PYTHONPATH', '')}".rstrip(":")
        return {"PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "their_settings"}

    return environment


def test_events_go_through_structlog_where_the_project_has_configured_it(
    start_worker: Start, with_settings: Callable[[str], dict[str, str]]
) -> None:
    good, bad = tasks.add.enqueue(1, 2), tasks.fail.enqueue("told")
    worker = start_worker("--burst", "--log-format", "json", "-v", "2", environment=with_settings(STRUCTLOG))
    assert worker.wait(60) == 0, worker.tell()
    ended(good, bad)
    told = records(worker)
    events = events_of(good, told) + events_of(bad, told)
    assert [each["event"] for each in events] == ["claimed", "started", "settled"] * 2
    for event in events:
        # The project's own processors have seen it.
        assert (event["project"], set(event) >= FACTS) == ("tests", True), event
    assert (events[-1]["level"], events[-1]["state"], events[-1]["attempt"]) == ("warning", "FAILED", 1)
