"""Whom a worker wakes when something becomes ready by its doing."""

import signal
from collections import Counter
from collections.abc import Iterator
from uuid import UUID

import pytest
from django.db import connection, transaction

from django_manta import State, conf, ringing
from django_manta.ledger import DjangoSession, Ledger, house
from django_manta.models import Run
from django_manta.ringing import CANCEL, UNKNOWN
from django_manta.worker.doorbell import PostgresDoorbell
from tests.app import tasks
from tests.worker.conftest import Start, ended, wait_for
from tests.worker.test_queues import open_queues

pytestmark = pytest.mark.postgres


@pytest.fixture
def bell(transactional_db: None) -> Iterator[PostgresDoorbell]:
    bell = PostgresDoorbell("default", "default")
    bell.listen()
    yield bell
    bell.close()


def test_the_steps_of_a_chain_wake_nobody(start_worker: Start, bell: PostgresDoorbell) -> None:
    """Whoever settles one claims the next: nobody else could have it sooner."""
    first = last = tasks.add.using(hold=True).enqueue(0, 1)
    for _ in range(30):
        last = tasks.add.enqueue(last, 1)
    worker = start_worker("--queues", "default").ready()
    wait_for(bell.rang)
    Ledger().release([UUID(first.id)])
    ended(last, worker=worker)
    assert last.return_value == 31
    # Among the thirty, one may have been late: somebody held its row.
    assert Counter(bell.rang())[UNKNOWN] <= 3


def test_what_becomes_ready_in_the_queue_of_another_worker_wakes_it(
    start_worker: Start, bell: PostgresDoorbell
) -> None:
    first = tasks.add.using(hold=True).enqueue(0, 1)
    tasks.add.using(queue_name="slow").enqueue(first, 1)
    worker = start_worker("--queues", "default").ready()
    wait_for(bell.rang)
    Ledger().release([UUID(first.id)])
    ended(first, worker=worker)
    wait_for(lambda: UNKNOWN in bell.rang(), 20, worker.tell)


def test_what_it_has_no_room_for_wakes_others(start_worker: Start, bell: PostgresDoorbell) -> None:
    first = tasks.add.using(hold=True).enqueue(0, 1)
    for _ in range(3):
        tasks.sleep.using(after=[first]).enqueue(20)
    worker = start_worker("--queues", "default", "--processes", "1").ready()
    wait_for(bell.rang)
    Ledger().release([UUID(first.id)])
    ended(first, worker=worker)
    wait_for(lambda: UNKNOWN in bell.rang(), 20, worker.tell)


def test_what_a_worker_gives_back_when_it_leaves_wakes_others(start_worker: Start, bell: PostgresDoorbell) -> None:
    """The one that it interrupts: what it has claimed ahead may be nothing at the moment it is asked to stop."""
    run = tasks.sleep.enqueue(60)
    worker = start_worker("--queues", "default", "--processes", "1", "--stop-timeout", "0.2").ready()
    wait_for(lambda: Run.objects.running().exists(), 30, worker.tell)
    wait_for(bell.rang)
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0, worker.tell()
    assert Run.objects.get(pk=run.id).state == State.READY
    wait_for(lambda: UNKNOWN in bell.rang(), 20, worker.tell)


def test_who_tries_out_the_doorbell_names_no_queue(start_worker: Start, bell: PostgresDoorbell) -> None:
    """Where any name may be a queue, what a new worker rings must not become one for all the others."""
    worker = start_worker("--queues", "default").ready()
    rung = wait_for(bell.rang, 20, worker.tell)
    queues = open_queues()
    queues.hear(rung)
    queues.hear([CANCEL, UNKNOWN, ""])
    assert queues.names == ["default"]


def test_the_longest_names_of_clusters_that_settings_accept_have_a_doorbell(transactional_db: None) -> None:
    for name in ("c" * 57, "ü" * 28):
        bell = PostgresDoorbell("default", conf._cluster(name))
        assert bell.try_out()
        bell.close()
        with pytest.raises(conf._Bad):
            conf._cluster(name + "ü")


def test_what_a_process_remembers_of_its_rings_does_not_grow_with_its_queues(bell: PostgresDoorbell) -> None:
    known = len(ringing._last)
    for number in range(3_000):
        ringing._ring("default", "default", f"tenant-{number}")
    assert len(ringing._last) < 2_000 + known
    wait_for(lambda: "tenant-2999" in bell.rang())


def test_a_ring_makes_nobody_elses_commit_asynchronous(bell: PostgresDoorbell) -> None:
    """Nobody waits for the disk because of a ring; but what is committed with it, whoever began it, does."""

    def setting() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            return str(cursor.fetchone()[0])

    def rung() -> str:
        house.ring(Ledger(DjangoSession()), bell.channel, UNKNOWN)
        return setting()

    usual = setting()
    assert usual != "off"
    assert rung() == usual
    with transaction.atomic():
        assert rung() == usual
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        assert rung() == usual
        cursor.execute("COMMIT")
    assert setting() == usual
    wait_for(lambda: UNKNOWN in bell.rang())
