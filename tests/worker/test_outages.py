"""A database that cuts connections costs time, not work."""

import pytest
from django.db import connection

from django_manta import State
from django_manta.ledger import Ledger, fsck
from django_manta.models import Attempt, Run, Worker
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.outages import refusing_connections
from tests.worker.conftest import Start, WorkerProcess, ended, outcomes, wait_for

pytestmark = pytest.mark.postgres


def cut_all() -> int:
    """End every connection to this database but our own."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        [[count]] = cursor.fetchall()
    return int(count)


def settled(worker: WorkerProcess) -> None:
    [plain, asynchronous] = tasks.count_lines.enqueue(), tasks.count_lines_async.enqueue()
    ended(plain, asynchronous, worker=worker)
    for result in (plain, asynchronous):
        assert (result.state, outcomes(result)) == (State.SUCCESSFUL, ["SUCCESSFUL"]), worker.tell()


def test_tasks_do_not_notice_that_idle_connections_were_cut(start_worker: Start) -> None:
    """Also coroutines, whose ORM calls run in a thread of asgiref's."""
    worker = start_worker().ready()
    settled(worker)
    [identity] = Worker.objects.values_list("id", flat=True)
    for _ in range(3):
        # At least the worker's own, and that of the child for plain functions. Coroutines close theirs after each run.
        assert cut_all() >= 2
        settled(worker)
    assert [*Worker.objects.values_list("id", flat=True)] == [identity]
    assert fsck.check(Ledger()) == []


def test_an_idle_worker_hears_the_doorbell_again_after_a_cut(start_worker: Start) -> None:
    worker = start_worker().ready()
    settled(worker)
    cut_all()
    listening = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"

    def is_listening() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(listening)
            return bool(cursor.fetchall()[0][0])

    wait_for(is_listening, 10, worker.tell)
    settled(worker)


def test_atomic_runs_whose_child_cannot_connect_are_given_back_and_executed_later(start_worker: Start) -> None:
    worker = start_worker("--processes", "1").ready()
    warm_up = tasks.add.enqueue(1, 2)
    ended(warm_up, worker=worker)
    with refusing_connections():
        runs = [tasks.write_atomically.enqueue(f"run {n}", 1) for n in range(10)]
        returned = Attempt.objects.filter(outcome="RETURNED", error_class="django.db.utils.OperationalError")
        wait_for(lambda: returned.values("run_id").distinct().count() == 10, 30, worker.tell)
    ended(*runs, worker=worker)
    assert {(run.state, *outcomes(run)) for run in runs} == {(State.SUCCESSFUL, "SUCCESSFUL")}
    assert Ledgerline.objects.count() == 10
    assert not Run.objects.exclude(failures=0, crashes=0, losses=0).exists()
    assert fsck.check(Ledger()) == []
