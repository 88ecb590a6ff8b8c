"""One row that cannot be claimed, read or settled keeps no other from going on, and ends no worker."""

import signal
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from django.db import connection, transaction

from django_manta import State
from django_manta.ledger import Ledger, fsck, own_session
from django_manta.models import Attempt, Run, Worker
from tests.app import tasks
from tests.ledger.given import claimed, lose, settlement
from tests.worker.conftest import Start, ended, marked, wait_for


def sql(statement: str, *params: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)


def without_checks(statement: str, *params: object) -> None:
    """Write what the constraints forbid, as it may stand in a database that is older than they are."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA ignore_check_constraints = ON")
            try:
                cursor.execute(statement, params)
            finally:
                cursor.execute("PRAGMA ignore_check_constraints = OFF")
            return
        cursor.execute(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE conrelid = 'manta_run'::regclass AND contype = 'c'"
        )
        found = cursor.fetchall()
        with transaction.atomic():
            for name, _ in found:
                cursor.execute(f"ALTER TABLE manta_run DROP CONSTRAINT {name}")
            cursor.execute(statement, params)
            for name, definition in found:
                cursor.execute(
                    f"ALTER TABLE manta_run ADD CONSTRAINT {name} {definition.removesuffix(' NOT VALID')} NOT VALID"
                )


def give_tokens_again(highest: int) -> None:
    """Have the next tokens collide with attempts, as after a restore of tables without their sequences."""
    if connection.vendor == "sqlite":
        sql("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'manta_attempt'")
    else:
        sql("SELECT setval('manta_attempt_token_seq', %s)", highest)


# -- tokens ------------------------------------------------------------------------------------------


def test_a_sequence_of_tokens_behind_its_table_stops_no_settlement(start_worker: Start) -> None:
    before = tasks.add.starmap([(n, 1) for n in range(3)])
    worker = start_worker("--processes", "1").ready()
    ended(*before, worker=worker)
    lowest = Attempt.objects.earliest("token").token
    # Under the worker's hands: only the first of the next tokens was given before.
    give_tokens_again(lowest - 1 or 1)
    runs = tasks.add.starmap([(n, 1) for n in range(6)])
    ended(*runs, worker=worker)
    assert {run.state for run in runs} == {State.SUCCESSFUL}
    assert fsck.check(Ledger()) == []


@pytest.mark.postgres("SQLite's claims go on from the highest token that they find")
def test_a_worker_that_starts_sets_a_sequence_of_tokens_that_is_behind(start_worker: Start) -> None:
    with closing(own_session()) as session:
        ledger = Ledger(session)
        lose(ledger, "worker", pid=1)
        sql("UPDATE manta_worker SET lost_at = NULL")
        ledger.settle([settlement(claim) for claim in claimed(ledger, 3)])
    highest = Attempt.objects.latest("token").token
    sql("SELECT setval('manta_attempt_token_seq', 1, false)")
    [finding] = fsck.check(Ledger())
    assert (finding.check, finding.run_id) == ("tokens-behind", None)
    sql("DELETE FROM manta_worker")
    run = tasks.add.enqueue(1, 1)
    worker = start_worker("--processes", "1", "--burst")
    assert worker.wait(60) == 0, worker.tell()
    ended(run)
    assert Attempt.objects.get(run=run.id).token > highest
    assert fsck.check(Ledger()) == []


@pytest.mark.postgres("SQLite's claims go on from the highest token that they find")
def test_what_a_lost_worker_held_under_tokens_given_twice_is_recovered(start_worker: Start) -> None:
    with closing(own_session()) as session:
        ledger = Ledger(session)
        lose(ledger, "worker", pid=1)
        sql("UPDATE manta_worker SET lost_at = NULL")
        ledger.settle([settlement(claim) for claim in claimed(ledger, 3)])
        held = [result.id for result in tasks.add.starmap([(n, 1) for n in range(6)])]
        sql("SELECT setval('manta_attempt_token_seq', %s)", Attempt.objects.latest("token").token - 1)
        assert {str(claim.id) for claim in ledger.claim("worker", ["default"], 6)} == set(held)
        sql("UPDATE manta_worker SET lost_at = now()")
    checks = {finding.check for finding in fsck.check(Ledger())}
    assert checks == {"orphaned", "token-given-twice"}
    worker = start_worker("--processes", "1", LEASE_SECONDS=2).ready()
    wait_for(lambda: Run.objects.filter(pk__in=held, state="SUCCESSFUL").count() == 6, 30, worker.tell)
    assert fsck.check(Ledger()) == []


# -- claims ------------------------------------------------------------------------------------------


def test_a_run_with_the_highest_number_of_attempts_does_not_stop_its_queue(start_worker: Start) -> None:
    bad = tasks.add.enqueue(1, 1)
    without_checks("UPDATE manta_run SET attempts = 2147483647")
    good = tasks.add.starmap([(n, 1) for n in range(20)])
    worker = start_worker("--processes", "1").ready()
    ended(*good, worker=worker)
    assert {run.state for run in good} == {State.SUCCESSFUL}
    wait_for(lambda: Run.objects.get(pk=bad.id).state in ("SUCCESSFUL", "FAILED"), 20, worker.tell)


@pytest.mark.parametrize("deadline", ["-infinity", "0001-01-01 00:00:00"])
def test_a_deadline_outside_of_the_calendar_ends_its_run_and_no_worker(start_worker: Start, deadline: str) -> None:
    bad = tasks.add.starmap([(n, 1) for n in range(2)])
    without_checks("UPDATE manta_run SET deadline = %s", deadline)
    good = tasks.add.starmap([(n, 1) for n in range(20)])
    worker = start_worker("--processes", "1").ready()
    ended(*good, *bad, worker=worker)
    assert {run.state for run in good} == {State.SUCCESSFUL}
    assert worker.process.poll() is None
    if deadline == "-infinity":
        assert {run.state for run in bad} == {State.FAILED}
        assert "Its row could not be" in Run.objects.filter(pk=bad[0].id).values_list("reason", flat=True)[0]


@pytest.mark.postgres("a trigger that raises is written in PL/pgSQL")
@pytest.mark.parametrize("until", ["claimed", "ended"])
def test_a_row_that_a_trigger_lets_nobody_claim_is_put_out_of_the_way(start_worker: Start, until: str) -> None:
    bad = tasks.add.enqueue(1, 1)
    condition = "NEW.state = 'RUNNING'" if until == "claimed" else "true"
    sql(
        "CREATE OR REPLACE FUNCTION manta_test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.id = '{bad.id}' AND {condition} THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER manta_test BEFORE UPDATE ON manta_run FOR EACH ROW EXECUTE FUNCTION manta_test_refuse()")
    try:
        good = tasks.add.starmap([(n, 1) for n in range(20)])
        worker = start_worker("--processes", "1").ready()
        ended(*good, worker=worker)
        assert {run.state for run in good} == {State.SUCCESSFUL}
        row = Run.objects.get(pk=bad.id)
        if until == "claimed":
            ended(bad, worker=worker)
            assert (bad.state, "not this one" in bad.reason) == (State.FAILED, True)
        else:
            assert row.state == "READY"
        assert any(str(bad.id).replace("-", "") in line.replace("-", "") for line in worker.lines()), worker.tell()
    finally:
        sql("DROP TRIGGER manta_test ON manta_run")


# -- values and history ------------------------------------------------------------------------------


def test_a_value_whose_delegate_was_altered_ends_its_dependent_and_no_worker(start_worker: Start) -> None:
    source = tasks.add.enqueue(1, 1)
    dependent = tasks.add.enqueue(source, 1)
    first = start_worker("--processes", "1").ready()
    ended(source, dependent, worker=first)
    first.signal(signal.SIGTERM)
    first.wait()
    again = tasks.add.enqueue(source, 2)
    sql("UPDATE manta_run SET delegate = 'garbage' WHERE id = %s", _id(source.id))
    good = tasks.add.starmap([(n, 1) for n in range(20)])
    worker = start_worker("--processes", "1").ready()
    ended(*good, worker=worker)
    assert {run.state for run in good} == {State.SUCCESSFUL}
    wait_for(lambda: Attempt.objects.filter(run=again.id).exists(), 20, worker.tell)
    assert worker.process.poll() is None


def test_a_history_that_cannot_be_read_ends_its_run_and_no_worker(start_worker: Start) -> None:
    bad = tasks.fail.enqueue()
    first = start_worker("--processes", "1").ready()
    wait_for(lambda: Attempt.objects.filter(run=bad.id).exists(), 20, first.tell)
    first.signal(signal.SIGTERM)
    first.wait()
    sql("UPDATE manta_attempt SET outcome = 'garbage'")
    Ledger().retry([UUID(bad.id)])
    good = tasks.add.starmap([(n, 1) for n in range(20)])
    worker = start_worker("--processes", "1").ready()
    ended(*good, worker=worker)
    wait_for(lambda: Run.objects.get(pk=bad.id).state == "FAILED", 20, worker.tell)
    assert {run.state for run in good} == {State.SUCCESSFUL}
    assert worker.process.poll() is None


@pytest.mark.parametrize("references", ["[" * 100_000, '[[[0,0],"x"]]', "[[1,2,3]]", "garbage", "[[[0,0],7]]"])
def test_references_that_are_none_do_not_stop_the_queue_of_their_run(start_worker: Start, references: str) -> None:
    bad = tasks.add.enqueue(1, 1)
    sql("UPDATE manta_run SET refs = %s WHERE id = %s", references, _id(bad.id))
    good = tasks.add.starmap([(n, 1) for n in range(20)])
    dependent = tasks.add.enqueue(good[0], 1)
    worker = start_worker("--processes", "1", SKEW_SECONDS=1).ready()
    ended(*good, dependent, bad, worker=worker)
    assert {run.state for run in (*good, dependent)} == {State.SUCCESSFUL}
    assert bad.state is State.FAILED
    assert worker.process.poll() is None
    assert not [line for line in worker.lines() if "answer was lost" in line]


# -- settlements -------------------------------------------------------------------------------------


@pytest.mark.postgres("a trigger that raises is written in PL/pgSQL")
def test_an_outcome_that_the_database_refuses_is_put_aside_and_the_others_are_settled(start_worker: Start) -> None:
    runs = tasks.add.starmap([(n, 1) for n in range(100)])
    bad = runs[0]
    sql(
        "CREATE OR REPLACE FUNCTION manta_test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.id = '{bad.id}' AND OLD.state = 'RUNNING' THEN RAISE EXCEPTION 'not this one'"
        " USING ERRCODE = 'XX000'; END IF; RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER manta_test BEFORE UPDATE ON manta_run FOR EACH ROW EXECUTE FUNCTION manta_test_refuse()")
    try:
        worker = start_worker("--processes", "1").ready()
        ended(*runs[1:], worker=worker)
        assert {run.state for run in runs[1:]} == {State.SUCCESSFUL}
        told = f"The database refuses to settle run {bad.id}"
        wait_for(lambda: any(told in line and "not this one" in line for line in worker.lines()), 20, worker.tell)
        assert not [line for line in worker.lines() if "The database is away" in line]
    finally:
        sql("DROP TRIGGER manta_test ON manta_run")
    # It was not forgotten.
    ended(bad, limit=70, worker=worker)
    assert bad.state is State.SUCCESSFUL


@pytest.mark.postgres("a trigger that raises is written in PL/pgSQL")
def test_an_orphan_that_the_database_refuses_to_recover_does_not_keep_the_others(start_worker: Start) -> None:
    with closing(own_session()) as session:
        ledger = Ledger(session)
        lose(ledger, "worker", pid=1)
        sql("UPDATE manta_worker SET lost_at = NULL")
        runs = tasks.add.starmap([(n, 1) for n in range(6)])
        assert len(ledger.claim("worker", ["default"], 6)) == 6
        sql("UPDATE manta_worker SET lost_at = now()")
    sql(
        "CREATE OR REPLACE FUNCTION manta_test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.id = '{runs[0].id}' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '23000'; END IF;"
        " RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER manta_test BEFORE UPDATE ON manta_run FOR EACH ROW EXECUTE FUNCTION manta_test_refuse()")
    try:
        worker = start_worker("--processes", "1", LEASE_SECONDS=2).ready()
        ended(*runs[1:], worker=worker)
        told = f"The database refuses to recover run {runs[0].id}"
        wait_for(lambda: any(told in line for line in worker.lines()), 20, worker.tell)
        assert "orphaned" in {finding.check for finding in fsck.check(Ledger())}
    finally:
        sql("DROP TRIGGER manta_test ON manta_run")
    ended(runs[0], limit=70, worker=worker)


# -- the loop ----------------------------------------------------------------------------------------


def test_a_loop_that_fails_settles_what_is_in_hand_and_ends_loudly(start_worker: Start, tmp_path: Path) -> None:
    bug = tmp_path / "bug"
    given = {"MANTA_TEST_MODULE": "tests.failing_loop", "FAILS_WHEN_THIS_EXISTS": str(bug)}
    running = tasks.stay_for.enqueue("running", 2.0)
    worker = start_worker("--processes", "1", environment=given, LEASE_SECONDS=600)
    marked("running", worker)
    waiting = tasks.add.starmap([(n, 1) for n in range(3)])
    bug.touch()
    assert worker.wait(60) == 1, worker.tell()
    ended(running)
    assert running.state is State.SUCCESSFUL
    assert {run.state for run in Run.objects.filter(pk__in=[each.id for each in waiting])} <= {"READY", "SUCCESSFUL"}
    assert not Worker.objects.exists()
    assert [line for line in worker.lines() if "CRITICAL" in line and "what nobody expected" not in line]
    assert any("what nobody expected" in line for line in worker.lines())


def _id(run_id: str) -> str:
    return run_id if connection.vendor == "postgresql" else run_id.replace("-", "")
