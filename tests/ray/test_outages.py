"""A Ray that is not there: the worker lives, and waits. (One that goes and comes again: chaos/ray_away.py.)"""

import signal
import time

from django_manta.models import Worker
from tests.app import tasks
from tests.ray.clusters import free_port
from tests.ray.conftest import StartOnRay, said
from tests.worker.conftest import states, wait_for


def test_without_ray_the_worker_lives_keeps_its_lease_and_claims_nothing(start_on_ray: StartOnRay) -> None:
    run = tasks.add.enqueue(1, 2)
    worker = start_on_ray(ray={"ADDRESS": f"127.0.0.1:{free_port()}"}).ready()
    wait_for(lambda: "Ray is away" in worker.log.read_text(), 60, worker.tell)
    [seen] = Worker.objects.filter(pid=worker.pid).values_list("seen_at", flat=True)
    until = time.monotonic() + 6
    wait_for(lambda: time.monotonic() > until, 10)
    [row] = Worker.objects.filter(pid=worker.pid)
    assert row.lost_at is None
    assert (row.seen_at - seen).total_seconds() > 4
    assert worker.log.read_text().count("Ray is away") == 1
    assert states() == {"READY": 1}
    assert "Ray is away: Ray does not answer at 127.0.0.1:" in said("doctor")
    worker.signal(signal.SIGTERM)
    assert worker.wait(15) == 0, worker.tell()
    run.refresh()
    assert run.attempts == 0
