"""Runs on Ray that delegate, or ask to be called again: what a foreman holds tells that, too."""

from django_manta import State
from django_manta.ledger import Ledger, fsck
from tests.app import flows
from tests.ray.clusters import SLOW_SECONDS
from tests.ray.conftest import StartOnRay
from tests.worker.conftest import ended, outcomes
from tests.workflow.tasks import merge_sort, total


def test_runs_on_ray_delegate_and_ask_to_be_called_again(start_on_ray: StartOnRay) -> None:
    delegated = flows.delegate.enqueue(20, 22)
    called = flows.call_three_times.enqueue()
    waited = flows.wait_for_a_sum.enqueue()
    sorting = merge_sort.enqueue([5, 3, 9, 1, 7])
    filled = total.enqueue([delegated, waited])
    worker = start_on_ray().ready()
    runs = [delegated, called, waited, sorting, filled]
    ended(*runs, limit=SLOW_SECONDS, worker=worker)
    assert [run.state for run in runs] == [State.SUCCESSFUL] * 5
    assert [run.return_value for run in runs] == [42, "at last", 3, [1, 3, 5, 7, 9], 45]
    assert outcomes(delegated) == outcomes(sorting) == ["DELEGATED"]
    assert outcomes(called) == ["DEFERRED", "DEFERRED", "SUCCESSFUL"]
    assert outcomes(waited) == ["DEFERRED", "SUCCESSFUL"]
    assert called.history[0].error_message == "not yet"
    assert fsck.check(Ledger()) == []
