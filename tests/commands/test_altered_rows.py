"""Rows that somebody altered by hand: every command still shows them, and the rows beside them."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from django_manta import State
from django_manta.execution.runners.inline import drain
from django_manta.ledger import Finding, Ledger, fsck
from django_manta.ledger.records import read_foremen
from django_manta.result import get_result, seal_of
from tests.app import tasks
from tests.commands.conftest import manta, manta_json
from tests.ledger.given import sql, worker_record

pytestmark = pytest.mark.django_db


def alter(table: str, column: str, value: object, run_id: str) -> None:
    key = "id" if table == "manta_run" else "run_id"
    pk = run_id if connection.vendor == "postgresql" else UUID(run_id).hex
    sql(Ledger(), f"UPDATE {table} SET {column} = %s WHERE {key} = %s", [value, pk])


@pytest.fixture
def waiting(db: None) -> Any:
    return tasks.add.using(after=[tasks.add.using(hold=True).enqueue(1, 1)]).enqueue(1, 2)


@pytest.fixture
def failed(db: None) -> Any:
    result = tasks.fail.enqueue()
    drain()
    return result


@pytest.mark.parametrize(
    ("table", "column"), [("manta_run", "state"), ("manta_gate", "mode"), ("manta_dependency", "role")]
)
def test_a_word_that_does_not_exist_is_shown_and_hides_nothing(waiting: Any, table: str, column: str) -> None:
    alter(table, column, "garbage", waiting.id)
    for verb in ("show", "explain", "graph"):
        assert waiting.id[:8] in manta(verb, waiting.id).out
    assert manta_json("show", waiting.id)["id"] == waiting.id
    assert waiting.id in manta("list").out
    for verb in ("hold", "release", "retry", "cancel"):
        manta(verb, waiting.id)


def test_an_outcome_that_does_not_exist_is_shown_as_a_failure(failed: Any) -> None:
    alter("manta_attempt", "outcome", "garbage", failed.id)
    assert get_result(failed.id).history[0].outcome == "FAILED"
    for verb in ("show", "explain", "graph", "logs"):
        manta(verb, failed.id)


@pytest.mark.parametrize("arguments", ["[" * 100_000, "[[],[]]", "[{},[]]", "[1]", "null"])
def test_arguments_that_are_none_are_shown_as_they_are(waiting: Any, arguments: str) -> None:
    alter("manta_run", "arguments", arguments, waiting.id)
    assert (get_result(waiting.id).args, get_result(waiting.id).kwargs) == ([], {})
    assert arguments[:50] in manta("show", waiting.id).out


@pytest.mark.parametrize("progress", ['{"done":"x","total":[],"message":{}}', "[]", '{"done":1}', "7"])
def test_progress_that_is_none_is_shown_as_it_is(waiting: Any, progress: str) -> None:
    alter("manta_run", "progress", progress, waiting.id)
    assert get_result(waiting.id).progress is None
    assert progress[2:6] in manta("show", waiting.id).out


def test_a_delegate_that_nobody_can_read_has_no_value(waiting: Any) -> None:
    alter("manta_run", "state", "SUCCESSFUL", waiting.id)
    itself = f'"{waiting.id}"'
    for stored in ("[" * 100_000, "7", "[7]", "[[]]", "{}", "garbage", itself, f"[{itself}]"):
        alter("manta_run", "delegate", stored, waiting.id)
        assert get_result(waiting.id).state is State.SUCCESSFUL
        manta("show", waiting.id)


@pytest.mark.parametrize(("column", "value"), [("queues", "true"), ("troubles", "[1]"), ("troubles", "{")])
def test_a_worker_s_row_that_cannot_be_read_hides_no_other_worker(db: None, column: str, value: str) -> None:
    ledger = Ledger()
    for worker in ("altered", "other"):
        ledger.register(worker_record(worker))
    sql(ledger, f"UPDATE manta_worker SET {column} = %s WHERE id = 'altered'", [value])
    assert "other" in {each["id"] for each in manta_json("info")["workers"]}
    manta("doctor")
    assert Finding("impossible-value", None, f"worker altered cannot have such {column}") in fsck.check(ledger)


def test_a_refusal_at_the_end_of_the_calendar_is_explained(db: None) -> None:
    result = tasks.add.using(run_after=timedelta(hours=1)).enqueue(1, 2)
    alter("manta_run", "refused_at", "9999-12-31 23:59:59.999999", result.id)
    assert "cannot vouch for it" in manta("explain", result.id).out


def test_foremen_that_are_none_are_nobody() -> None:
    assert read_foremen('[["name", "incarnation"]]') == [("name", "incarnation")]
    for stored in ("garbage", "[" * 100_000, "[1]", '[["a"]]', '{"a":1}', "7"):
        assert read_foremen(stored) == []


# -- fsck --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("task", "tests.app.tasks.fail"),
        ("arguments", "[[3,4],{}]"),
        ("overrides", '{"max_attempts":9}'),
        ("refs", '[[[0,0],"00000000-0000-0000-0000-000000000000"]]'),
        ("signature", "forged"),
    ],
)
def test_fsck_names_an_unfinished_run_that_nobody_signed(waiting: Any, column: str, value: str) -> None:
    assert fsck.check(Ledger(), seals=seal_of) == []
    alter("manta_run", column, value, waiting.id)
    [finding] = fsck.check(Ledger(), seals=seal_of)
    assert (finding.check, finding.run_id) == ("signature-invalid", UUID(waiting.id))
    done = manta("fsck")
    assert done.code == 1
    assert waiting.id in done.out
    assert "signature" in manta("doctor").out


def test_fsck_names_a_run_that_was_given_the_first_id_of_all(db: None) -> None:
    first = UUID(int=0)
    pk = str(first) if connection.vendor == "postgresql" else first.hex
    alter("manta_run", "id", pk, tasks.add.enqueue(1, 2).id)
    assert [(each.check, each.run_id) for each in fsck.check(Ledger(), seals=seal_of)] == [("signature-invalid", first)]


def test_fsck_verifies_all_unfinished_runs_and_no_other(failed: Any) -> None:
    runs = tasks.add.starmap([(n, 1) for n in range(250)])
    alter("manta_run", "signature", "forged", failed.id)
    for run in (runs[0], runs[120], runs[249]):
        alter("manta_run", "signature", "forged", run.id)
    # Of an alias that this process does not have nobody can say.
    alter("manta_run", "signature", "forged", runs[5].id)
    alter("manta_run", "backend", "elsewhere", runs[5].id)
    found = fsck.check(Ledger(), seals=seal_of)
    assert {str(finding.run_id) for finding in found} == {runs[0].id, runs[120].id, runs[249].id}
    assert len(fsck.check(Ledger(), limit=2, seals=seal_of)) == 2
    assert fsck.check(Ledger()) == []


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("manta_run", "failures", -1),
        ("manta_run", "metadata", "[]"),
        ("manta_run", "progress", "7"),
        ("manta_dependency", "role", "garbage"),
        ("manta_gate", "mode", "garbage"),
        ("manta_gate", "laters", -1),
    ],
)
def test_fsck_names_what_no_verb_writes(waiting: Any, table: str, column: str, value: object) -> None:
    alter(table, column, value, waiting.id)
    [finding] = [each for each in fsck.check(Ledger()) if each.check == "impossible-value"]
    assert finding.run_id == UUID(waiting.id)
    assert finding.detail.endswith(column)


def test_fsck_names_an_outcome_that_does_not_exist(failed: Any) -> None:
    alter("manta_attempt", "outcome", "garbage", failed.id)
    assert ("impossible-value", UUID(failed.id)) in {(each.check, each.run_id) for each in fsck.check(Ledger())}
