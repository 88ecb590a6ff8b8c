"""A database that accepts what it is sent and never answers."""

import os
import selectors
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import OperationalError

from django_manta.ledger import Ledger, PostgresSession, house
from django_manta.models import Run
from django_manta.worker import watchdog
from django_manta.worker.contact import Contact
from django_manta.worker.stopping import Stopping
from django_manta.worker.wakeups import Wakeups
from tests.app import tasks
from tests.ledger.given import sql
from tests.proxies import freezing
from tests.worker.conftest import Start, wait_for

pytestmark = pytest.mark.postgres


def test_it_keeps_no_worker_from_stopping(start_worker: Start, subprocess_environment: dict[str, str]) -> None:
    """Asked once, after --stop-timeout; asked twice, at once; and neither leaves a process behind."""
    runs = [tasks.sleep.using(queue_name=queue).enqueue(600) for queue in ("default", "slow")]
    with freezing(subprocess_environment["DATABASE_URL"]) as proxy:
        environment = {"DATABASE_URL": proxy.url}
        flags = ("--processes", "1", "--stop-timeout")
        patient = start_worker("--queues", "default", *flags, "1", environment=environment)
        hasty = start_worker("--queues", "slow", *flags, "600", environment=environment)
        wait_for(lambda: Run.objects.running().count() == len(runs), 60, patient.tell)
        proxy.freeze()
        assert proxy.is_asked.wait(60)
        patient.signal(signal.SIGTERM)
        hasty.signal(signal.SIGTERM)
        hasty.signal(signal.SIGINT)
        for worker in (patient, hasty):
            assert worker.wait(90) == 0, worker.tell()
            wait_for(lambda worker=worker: not worker.processes(), 20, worker.tell)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process of the server that answers us does nothing meanwhile."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except (PermissionError, ProcessLookupError):
        pytest.skip("the server is not ours to stop")
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("interruptible", [False, True], ids=["prepared", "with-cursors"])
def test_it_is_away_after_a_while(db: None, interruptible: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "FROZEN_SECONDS", 3 * watchdog.LOOK_SECONDS)
    stopping, contact, met = Stopping(30), Contact(), []
    dog = watchdog.Watchdog(stopping, Wakeups(selectors.DefaultSelector()), contact, lambda: None)
    session = PostgresSession(interruptible=interruptible)
    [[pid]] = sql(Ledger(session), "SELECT pg_backend_pid()")

    def ask() -> None:
        try:
            house.clock(Ledger(session))
        except OperationalError as error:
            met.append(error)

    asking = threading.Thread(target=ask)
    with stopped(pid):
        asking.start()
        wait_for(session.looks_waiting)
        assert asking.is_alive()
        dog.look()
        assert not contact.is_never_sure
        wait_for(lambda: dog.look() or not asking.is_alive())
    asking.join()
    assert len(met) == 1
    assert contact.is_never_sure
    # The next one is another.
    assert sql(Ledger(session), "SELECT pg_backend_pid()") != [(pid,)]
    session.close()


def test_who_is_busy_is_not_taken_for_one_who_waits(db: None) -> None:
    """However often it is met with a statement under way: it is another one each time."""
    session = PostgresSession()
    done, over = [0], threading.Event()

    def work() -> None:
        while not over.is_set():
            house.clock(Ledger(session))
            done[0] += 1
        session.close()

    working = threading.Thread(target=work)
    working.start()
    for _ in range(200):
        before = done[0]
        wait_for(lambda before=before: done[0] > before + 1)
        assert session.looks_waiting() == 0
    over.set()
    working.join()


def test_what_it_does_later_is_looked_for_as_long_as_the_worker_lives() -> None:
    """A claim that it was sent may be committed whenever it goes on."""
    contact = Contact()
    contact.went_away(OperationalError("no answer"))
    contact.is_never_sure = True
    for number in range(1, 100):
        now = 1e9 * number
        assert contact.reconciles(now)
        contact.reconciled(now, is_complete=True)
        assert not contact.reconciles(now)
