"""
A Ray that is not there: the worker lives, and waits. (One that goes and comes again: chaos/ray_away.py.) And a database
that goes while Ray executes runs that need it.
"""

import signal
import time
from collections import Counter

from django_manta.ledger import Ledger, fsck
from django_manta.models import Run, Worker
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.outages import outage
from tests.ray.clusters import SLOW_SECONDS, free_port
from tests.ray.conftest import StartOnRay, said
from tests.worker.conftest import ended, states, wait_for


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


#: Shorter than in the storms (two times 15 s), and long enough for each process on Ray to meet it.
OUTAGE_SECONDS = 8.0


def test_two_outages_of_the_database_cost_atomic_runs_on_ray_time_and_charge_none(start_on_ray: StartOnRay) -> None:
    worker = start_on_ray().ready()
    # The processes are there, and it is known how long such a run takes: it travels in company.
    ended(*[tasks.write_after.enqueue(f"first {n}", 0.1) for n in range(4)], limit=SLOW_SECONDS, worker=worker)
    runs = [tasks.write_after.enqueue(f"run {n}", 0.5) for n in range(100)]
    for done in (10, 50):
        wait_for(lambda done=done: Ledgerline.objects.filter(label__startswith="run").count() >= done, 300, worker.tell)
        with outage():
            until = time.monotonic() + OUTAGE_SECONDS
            wait_for(lambda until=until: time.monotonic() > until, OUTAGE_SECONDS + 5)
    ended(*runs, limit=300, worker=worker)
    counted = Counter(outcome for run in runs for outcome in [attempt.outcome.value for attempt in run.history])
    print(counted)
    assert Counter(run.state.value for run in runs) == {"SUCCESSFUL": 100}
    assert Ledgerline.objects.filter(label__startswith="run").count() == 100
    assert counted["FAILED"] == 0
    assert counted["RETURNED"] + counted["INTERRUPTED"] > 0
    assert not Run.objects.exclude(failures=0, crashes=0).exists()
    assert fsck.check(Ledger()) == []
