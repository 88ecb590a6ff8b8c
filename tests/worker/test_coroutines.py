"""What coroutines of one process share: the event loop, and nothing else."""

from datetime import timedelta

import pytest
from django.db import connection

from django_manta import State
from django_manta.models import Run
from tests.app import coroutines
from tests.app.models import Ledgerline
from tests.worker.conftest import Start, ended, marked, outcomes, states, wait_for


def open_sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_six_queries_of_a_second_in_six_coroutines_take_about_a_second(start_worker: Start) -> None:
    runs = coroutines.wait_in_the_database.map([1.0] * 6)
    worker = start_worker().ready()
    ended(*runs, worker=worker)
    assert {run.state for run in runs} == {State.SUCCESSFUL}
    began = min(run.started_at for run in runs)
    assert max(run.finished_at for run in runs) - began < timedelta(seconds=4)


@pytest.mark.postgres
def test_what_a_coroutine_sets_in_its_session_is_seen_by_no_other(start_worker: Start) -> None:
    beside = {name: coroutines.say_who_the_database_takes_it_for.enqueue(name, 2) for name in ("alice", "bob")}
    worker = start_worker().ready()
    ended(*beside.values(), worker=worker)
    assert {name: run.return_value for name, run in beside.items()} == {"alice": "alice", "bob": "bob"}
    leaving = coroutines.leave_something_in_the_session.enqueue()
    ended(leaving, worker=worker)
    assert leaving.state is State.SUCCESSFUL
    after = coroutines.look_at_the_session.enqueue()
    ended(after, worker=worker)
    assert after.return_value == [None, 0, None, True]


@pytest.mark.postgres
def test_the_connections_of_coroutines_are_closed_after_them(start_worker: Start) -> None:
    worker = start_worker().ready()
    first = coroutines.do_nothing.enqueue()
    ended(first, worker=worker)
    before = open_sessions()
    runs = coroutines.use_every_connection.starmap([(f"line {n}",) for n in range(10)])
    ended(*runs, worker=worker)
    assert {run.state for run in runs} == {State.SUCCESSFUL}
    assert sorted(run.metadata["label"] for run in runs) == sorted(f"line {n}" for n in range(10))
    assert {(run.progress.done, run.progress.message) for run in runs} == {(2, "three quarters")}
    assert len({run.return_value for run in runs}) == 1
    wait_for(lambda: open_sessions() <= before, 10, worker.tell)


def test_a_transaction_that_a_coroutine_leaves_open_is_found_and_swallows_nobody_s_writes(start_worker: Start) -> None:
    begun = coroutines.begin_by_hand.enqueue()
    worker = start_worker().ready()
    ended(begun, worker=worker)
    assert begun.state is State.FAILED
    assert "left a transaction open on default" in begun.errors[0].traceback
    lines = coroutines.write_line.map([f"line {n}" for n in range(3)])
    ended(*lines, worker=worker)
    assert Ledgerline.objects.filter(label__startswith="line").count() == 3


def test_a_coroutine_whose_thread_is_blocked_ends_in_time_and_keeps_nobody_waiting(start_worker: Start) -> None:
    worker = start_worker().ready()
    blocked = coroutines.block_its_own_thread.enqueue(30)
    cancelled = coroutines.block_its_own_thread_until_cancelled.enqueue("begun")
    marked("begun", worker)
    # What is not settled until its thread is free would be killed for that, and take the others along.
    cancelled.cancel("enough")
    beside = coroutines.write_line.map([f"line {n}" for n in range(3)])
    ended(blocked, cancelled, *beside, limit=20, worker=worker)
    assert (blocked.state, outcomes(blocked)) == (State.FAILED, ["TIMED_OUT"])
    assert (cancelled.state, outcomes(cancelled)) == (State.CANCELLED, ["CANCELLED"])
    assert [outcomes(run) for run in beside] == [["SUCCESSFUL"]] * 3
    assert "died" not in worker.tell()


def test_what_a_coroutine_prints_is_stored_with_no_other_s_failure(start_worker: Start) -> None:
    words = ["alice", "bob", "carol"]
    runs = coroutines.print_and_fail.starmap([(word, 3) for word in words])
    worker = start_worker().ready()
    ended(*runs, worker=worker)
    assert [run.history[0].output for run in runs] == [f"{word} in a thread\n{word} in the loop\n" for word in words]


def test_context_variables_of_a_coroutine_s_middleware_are_not_the_next_one_s(start_worker: Start) -> None:
    options = {"MIDDLEWARE": ["tests.app.coroutines.sign_in"], "ASYNC_SLOTS": 1}
    worker = start_worker(**options).ready()
    runs = coroutines.do_nothing.starmap([()] * 3)
    ended(*runs, worker=worker)
    assert [run.return_value for run in runs] == [["nobody", None]] * 3
    assert states() == {"SUCCESSFUL": 3}
    assert Run.objects.count() == 3
