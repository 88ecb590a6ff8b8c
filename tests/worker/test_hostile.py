"""Tasks that do what nobody should: they cost their own run at the most."""

import pytest
from django.db import connection

from django_manta import State, payload
from django_manta.ledger import Ledger, fsck
from django_manta.models import Run
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.worker.conftest import Start, ended, outcomes, states, wait_for


def test_a_process_that_a_task_forked_does_not_hide_the_death_of_its_own(start_worker: Start) -> None:
    result = tasks.fork_and_exit.enqueue(30)
    worker = start_worker("--processes", "1").ready()
    ended(result, limit=20, worker=worker)
    assert (result.state, outcomes(result)) == (State.QUARANTINED, ["CRASHED"] * 3)
    after = tasks.add.enqueue(1, 1)
    ended(after, limit=10, worker=worker)


def test_a_process_that_a_task_forked_and_that_returns_from_it_tells_nothing_in_its_name(start_worker: Start) -> None:
    known = tasks.add.starmap([(n, 1) for n in range(50)])
    forked = tasks.fork_and_return.starmap([(n,) for n in range(10)])
    others = tasks.add.starmap([(n, 1) for n in range(200)])
    worker = start_worker("--processes", "1", "--burst")
    assert worker.wait(60) == 0, worker.tell()
    ended(*known, *forked, *others)
    assert {(run.state, *outcomes(run)) for run in (*known, *others)} == {(State.SUCCESSFUL, "SUCCESSFUL")}
    assert [run.return_value for run in forked] == list(range(10))
    assert not [line for line in worker.lines() if "does not make sense" in line]
    assert fsck.check(Ledger()) == []


def test_what_a_task_has_forked_lives_on_when_its_process_is_killed(start_worker: Start) -> None:
    result = tasks.fork_a_beater.enqueue()
    worker = start_worker("--processes", "1").ready()
    ended(result, worker=worker)
    wait_for(lambda: Ledgerline.objects.filter(label="beat").count() > 3, 20, worker.tell)
    worker.process.kill()
    worker.wait(5)
    # Its own process, and the fork server, are gone; as in plain Python it has another parent now.
    wait_for(lambda: len(worker.processes()) == 1, 20, worker.tell)
    last = Ledgerline.objects.filter(label="beat").count()
    wait_for(lambda: Ledgerline.objects.filter(label="beat").count() > last + 3, 20, worker.tell)


def test_a_task_that_closes_our_descriptors_costs_its_process(start_worker: Start) -> None:
    result = tasks.close_everything.enqueue()
    good = tasks.add.starmap([(n, 1) for n in range(20)])
    worker = start_worker("--processes", "1").ready()
    ended(result, *good, limit=40, worker=worker)
    # It has returned before its process notices, unless the thread that reads was just not reading: then it crashed.
    *crashed, last = outcomes(result)
    assert crashed == ["CRASHED"] * len(crashed)
    saved = (result.state, last) == (State.SUCCESSFUL, "SUCCESSFUL") and len(crashed) <= 2
    assert saved or (result.state, last, len(crashed)) == (State.QUARANTINED, "CRASHED", 2)
    assert {run.state for run in good} == {State.SUCCESSFUL}


def test_a_row_that_was_altered_is_refused_and_hurts_nobody(start_worker: Start) -> None:
    altered = tasks.add.enqueue(1, 1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE manta_run SET overrides = 'garbage'")
    good = tasks.add.starmap([(n, 1) for n in range(20)])
    worker = start_worker().ready()
    ended(*good, worker=worker)
    altered.refresh()
    assert altered.state is State.SCHEDULED
    assert altered.history[0].error_class == "django_manta.exceptions.BadTaskSignature"


def test_a_coroutine_that_stops_the_loop_does_not_stop_the_others(start_worker: Start) -> None:
    others = tasks.sleep_async.map([0.3] * 10)
    stopping = tasks.stop_the_loop.enqueue()
    worker = start_worker().ready()
    ended(*others, stopping, limit=20, worker=worker)
    later = tasks.sleep_async.enqueue(0.0)
    ended(later, limit=20, worker=worker)
    assert states() == {"SUCCESSFUL": 12}


def test_a_transaction_begun_by_hand_is_found_and_swallows_nobody_s_writes(start_worker: Start) -> None:
    begun = tasks.begin_by_hand.enqueue()
    worker = start_worker("--processes", "1").ready()
    ended(begun, worker=worker)
    assert begun.state is State.FAILED
    assert "left a transaction open" in begun.errors[0].traceback
    lines = [tasks.write_atomically.enqueue(f"line {n}", n) for n in range(3)]
    ended(*lines, worker=worker)
    assert Ledgerline.objects.filter(label__startswith="line").count() == 3


def test_a_large_result_does_not_pass_through_the_worker(start_worker: Start) -> None:
    large = tasks.repeat.enqueue("x", 20_000_000)
    worker = start_worker().ready()
    ended(large, limit=60, worker=worker)
    assert len(large.return_value) == 20_000_000
    too_large = tasks.repeat.enqueue("x", payload.RESULT_LIMIT)
    ended(too_large, limit=60, worker=worker)
    assert too_large.state is State.FAILED
    said = "The task returned 64.0 MiB of JSON (67,108,866 bytes), and at most 64 MiB are stored."
    assert said in too_large.errors[0].traceback
    assert fsck.check(Ledger()) == []


@pytest.mark.parametrize("count", [10])
def test_coroutines_of_equal_timeout_are_not_charged_for_the_one_that_blocks(start_worker: Start, count: int) -> None:
    runs = [tasks.block_or_sleep.enqueue(place == 0) for place in range(count)]
    worker = start_worker().ready()
    ended(*runs, limit=60, worker=worker)
    assert [run.state for run in runs] == [State.FAILED, *[State.SUCCESSFUL] * (count - 1)]
    assert Run.objects.exclude(pk=runs[0].id).filter(failures=0).count() == count - 1
