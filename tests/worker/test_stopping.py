"""Signals: the first one asks, the second one insists."""

import signal
import time

import pytest
from django.db import transaction

from django_manta import State
from django_manta.models import Run
from tests.app import tasks
from tests.worker.conftest import Start, marked, wait_for


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_what_runs_finish_and_gives_the_rest_back(start_worker: Start, number: int) -> None:
    running = tasks.stay_for.enqueue("running", 1.0)
    worker = start_worker("--processes", "1").ready()
    marked("running", worker)
    waiting = tasks.sleep.map([0.0] * 5)
    worker.signal(number)
    assert worker.wait(20) == 0, worker.tell()
    for result in (running, *waiting):
        result.refresh()
    assert running.state is State.SUCCESSFUL
    assert {result.state for result in waiting} <= {State.READY}
    assert {result.attempts for result in waiting} == {0}


def test_a_second_signal_means_now(start_worker: Start) -> None:
    sleeping, stubborn = tasks.stay.enqueue("sleeping", "asleep"), tasks.stay.enqueue("stubborn", "stubborn")
    worker = start_worker("--stop-timeout", "60").ready()
    marked("sleeping", worker)
    marked("stubborn", worker)
    worker.signal(signal.SIGTERM)
    wait_for(lambda: "Stopping" in worker.log.read_text(), 10, worker.tell)
    asked = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait(10) == 0, worker.tell()
    assert time.monotonic() - asked < 3
    for result in (sleeping, stubborn):
        result.refresh()
        assert result.state is State.READY
        [attempt] = result.history
        assert attempt.outcome == "INTERRUPTED"
        assert result.reason == "The worker was stopped."


def test_what_runs_can_be_cancelled_while_the_worker_stops(start_worker: Start) -> None:
    result = tasks.stay.enqueue("sleeping", "asleep")
    worker = start_worker("--stop-timeout", "60").ready()
    marked("sleeping", worker)
    worker.signal(signal.SIGTERM)
    wait_for(lambda: "Stopping" in worker.log.read_text(), 10, worker.tell)
    result.cancel()
    assert worker.wait(10) == 0, worker.tell()
    result.refresh()
    assert result.state is State.CANCELLED


@pytest.mark.postgres
def test_a_row_that_somebody_holds_does_not_hold_up_a_stop(start_worker: Start) -> None:
    """It is left to whoever finds the lease lost."""
    result = tasks.stay.enqueue("sleeping", "asleep")
    worker = start_worker("--stop-timeout", "0.3", LEASE_SECONDS=2).ready()
    marked("sleeping", worker)
    with transaction.atomic():
        Run.objects.select_for_update().get(pk=result.id)
        asked = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert worker.wait(10) == 0, worker.tell()
        assert time.monotonic() - asked < 0.3 + 2 + 1
    assert Run.objects.running().count() == 1
    successor = start_worker(LEASE_SECONDS=2).ready()
    wait_for(lambda: Run.objects.running().filter(worker__contains=f"-{successor.pid}-").exists(), 15, successor.tell)
