"""What a worker with the runner ``ray`` does with runs that give no trouble, and with those whose code does."""

from collections import Counter

import pytest

from django_manta import State
from django_manta.ledger import Ledger, fsck
from django_manta.models import Attempt, Run
from tests.app import coroutines, tasks
from tests.app.models import Ledgerline
from tests.ray.conftest import StartOnRay
from tests.worker.conftest import ended, outcomes


def test_runs_are_executed_on_ray_and_settled_once(start_on_ray: StartOnRay) -> None:
    sums = tasks.add.starmap([(n, 1) for n in range(300)])
    failing = tasks.fail.enqueue("with its own words")
    leaving = tasks.leave_politely.enqueue()
    unstorable = tasks.return_unstorable.enqueue("object")
    retried = tasks.fail_first.enqueue()
    written = [tasks.write_atomically.enqueue(f"atomic {n}", n) for n in range(5)]
    async_sum = tasks.add_async.enqueue(2, 3)
    large = tasks.echo.enqueue("x" * 2_000_000)
    worker = start_on_ray("--burst")
    assert worker.wait(120) == 0, worker.tell()
    ended(*sums, failing, leaving, unstorable, retried, *written, async_sum, large)
    assert [run.return_value for run in sums] == [n + 1 for n in range(300)]
    assert async_sum.return_value == 5
    assert len(large.return_value[0][0]) == 2_000_000
    assert (failing.state, failing.errors[0].exception_class_path) == (State.FAILED, "builtins.ValueError")
    assert "raise ValueError(message)" in failing.errors[0].traceback
    assert leaving.errors[0].exception_class_path == "builtins.SystemExit"
    assert unstorable.state is State.FAILED
    assert outcomes(retried) == ["FAILED", "SUCCESSFUL"]
    assert Ledgerline.objects.filter(label__startswith="atomic").count() == 5
    assert Counter(Attempt.objects.exclude(outcome="RETURNED").values_list("outcome", flat=True)) == {
        "SUCCESSFUL": 308,
        "FAILED": 4,
    }
    assert not Run.objects.exclude(state__in=["SUCCESSFUL", "FAILED"]).exists()
    assert fsck.check(Ledger()) == []


@pytest.mark.postgres
def test_what_a_coroutine_leaves_in_its_session_is_gone_before_the_next_run(start_on_ray: StartOnRay) -> None:
    worker = start_on_ray().ready()
    leaving = coroutines.leave_something_in_the_session.starmap([()] * 3)
    ended(*leaving, limit=60, worker=worker)
    looking = coroutines.look_at_the_session.starmap([()] * 3)
    ended(*looking, limit=60, worker=worker)
    assert {run.state for run in leaving} == {State.SUCCESSFUL}
    assert [run.return_value for run in looking] == [[None, 0, None, True]] * 3
