"""Runs that Ray does not begin, because no node has what they ask for."""

from datetime import timedelta

from django_manta import State
from django_manta.ledger import Ledger, fsck
from django_manta.models import Worker
from tests.app import tasks
from tests.app.models import Ledgerline
from tests.ray.clusters import SLOW_SECONDS
from tests.ray.conftest import StartOnRay, said
from tests.worker.conftest import ended, outcomes, wait_for

NOWHERE = {"num_cpus": 1000}
WORDS = "None of Ray's nodes (1) has what it asks for, CPU: 1000. The most that one has is CPU: 2."


def test_what_no_node_can_execute_is_told_and_fails_after_a_while(start_on_ray: StartOnRay) -> None:
    worker = start_on_ray(ray={"PENDING_SECONDS": 12}).ready()
    hopeless = tasks.stay.using(ray=NOWHERE).enqueue("never", "asleep")
    expiring = tasks.stay.using(ray=NOWHERE, expires=timedelta(seconds=3)).enqueue("never", "asleep")
    beside = tasks.add.enqueue(1, 2)
    ended(beside, limit=SLOW_SECONDS, worker=worker)
    assert beside.state is State.SUCCESSFUL
    ended(expiring, limit=SLOW_SECONDS, worker=worker)
    assert expiring.state is State.EXPIRED
    wait_for(lambda: Worker.objects.filter(troubles__contains=hopeless.id).exists(), SLOW_SECONDS, worker.tell)
    assert WORDS in said("explain", hopeless.id)
    assert WORDS in said("doctor")
    ended(hopeless, limit=SLOW_SECONDS, worker=worker)
    assert (hopeless.state, outcomes(hopeless)) == (State.FAILED, ["FAILED"])
    [error] = hopeless.errors
    assert error.exception_class_path == "django_manta.exceptions.NoSuchResources"
    assert WORDS in error.traceback
    assert not Ledgerline.objects.filter(label="never").exists()
    wait_for(lambda: Worker.objects.filter(pid=worker.pid, troubles="{}").exists(), SLOW_SECONDS, worker.tell)
    assert fsck.check(Ledger()) == []
