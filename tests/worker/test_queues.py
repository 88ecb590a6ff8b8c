"""Which queues a worker claims from."""

import pytest

from django_manta import MantaBackend
from django_manta.models import Run, Worker
from django_manta.worker import queues as module
from django_manta.worker.given import WorkerOptions
from django_manta.worker.queues import Queues
from tests.app import tasks
from tests.worker.conftest import Start, ended, states, wait_for

#: No QUEUES: any name is a queue.
ANY = {"MANTA_TEST_QUEUES": "[]"}


def open_queues() -> Queues:
    """Of a worker that claims from queues of any name."""
    return Queues(WorkerOptions(), MantaBackend("default", {"QUEUES": [], "OPTIONS": {}}))


def test_without_declared_queues_any_name_is_one(start_worker: Start) -> None:
    tasks.add.using(queue_name="slow").enqueue(1, 1)
    worker = start_worker(environment=ANY).ready()
    wait_for(lambda: states() == {"SUCCESSFUL": 1}, 30, worker.tell)
    # One that it has never heard of, while it is idle.
    tasks.add.using(queue_name="urgent").enqueue(1, 1)
    tasks.add.enqueue(1, 1)
    wait_for(lambda: states() == {"SUCCESSFUL": 3}, 30, worker.tell)


def test_without_declared_queues_some_can_be_left_out(start_worker: Start) -> None:
    tasks.add.using(queue_name="slow").enqueue(1, 1)
    tasks.add.using(queue_name="urgent").enqueue(1, 1)
    worker = start_worker("--burst", "--exclude-queues", "slow", environment=ANY)
    wait_for(lambda: states() == {"SUCCESSFUL": 1, "READY": 1}, 30, worker.tell)
    assert worker.wait(30) == 0, worker.tell()
    assert Run.objects.successful().get().queue == "urgent"


def test_where_there_is_room_for_one_run_only_the_queues_take_turns(start_worker: Start) -> None:
    tasks.sleep.map([0.1] * 40)
    few = tasks.sleep.using(queue_name="slow").map([0.1] * 3)
    worker = start_worker("--processes", "1").ready()
    ended(*few, worker=worker)
    assert Run.objects.filter(queue="default").finished().count() < 40


def test_a_queue_that_chose_another_runner_is_left_to_its_workers(start_worker: Start) -> None:
    tasks.add.using(queue_name="slow").enqueue(1, 1)
    tasks.add.enqueue(1, 1)
    worker = start_worker(QUEUE_OPTIONS={"slow": {"runner": "inline"}}).ready()
    wait_for(lambda: states() == {"SUCCESSFUL": 1, "READY": 1}, 30, worker.tell)
    assert Run.objects.ready().get().queue == "slow"
    assert Worker.objects.get().queues == ["default", "urgent"]


def test_a_name_that_is_not_heard_any_more_is_forgotten_unless_something_is_ready_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = open_queues()
    queues.hear(["tenant-1", "tenant-2"])
    queues.has_ready([])
    assert queues.names == ["default", "tenant-1", "tenant-2"]
    monkeypatch.setattr(module, "FORGOTTEN_SECONDS", 0.0)
    queues.has_ready(["tenant-2", "tenant-3"])
    assert queues.names == ["default", "tenant-2", "tenant-3"]
    queues.has_ready([])
    assert queues.names == ["default"]


def test_strangers_who_ring_any_word_add_only_so_many_names() -> None:
    queues = open_queues()
    for number in range(0, 3 * module.HEARD, 100):
        queues.hear(f"nonsense-{number + each}" for each in range(100))
    assert len(queues.names) == module.HEARD
    # Where something is ready, it is claimed all the same.
    ready = [f"tenant-{number}" for number in range(2 * module.HEARD)]
    queues.has_ready(ready)
    assert set(ready) <= set(queues.names)
