"""What ends a run of ``max_losses=0`` under a real worker: a crash, a neighbour's crash, a deploy."""

import signal

from django_manta import State
from django_manta.ledger import Ledger, fsck
from tests.app import tasks
from tests.worker.conftest import Start, ended, marked, outcomes


def test_a_crash_and_a_deploy_end_it_and_what_has_not_begun_goes_on(start_worker: Start) -> None:
    worker = start_worker("--processes", "2", "--stop-timeout", "0.5").ready()
    crashed = tasks.exit_with.using(max_losses=0).enqueue(9)
    killed = tasks.kill_itself.using(max_losses=0).enqueue()
    ended(crashed, killed, worker=worker)
    for run in (crashed, killed):
        assert (run.state, outcomes(run)) == (State.LOST, ["CRASHED"])
        assert run.reason.endswith("It is not started again: max_losses is 0.")
    # One that shares its process with the one that crashes; nobody can say whose fault it was.
    beside = tasks.stay_async.using(max_losses=0).enqueue("beside")
    marked("beside", worker)
    tasks.exit_from_the_loop.enqueue()
    ended(beside, worker=worker)
    assert (beside.state, outcomes(beside)) == (State.LOST, ["INTERRUPTED"])
    # One that gives way when the worker stops, one that has to be killed, and one that waits behind them.
    asleep, stubborn = (tasks.stay.using(max_losses=0).enqueue(how, how) for how in ("asleep", "stubborn"))
    marked("asleep", worker)
    marked("stubborn", worker)
    waiting = tasks.stay.using(max_losses=0).enqueue("waiting", "asleep")
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0, worker.tell()
    for run in (asleep, stubborn):
        run.refresh()
        assert (run.state, outcomes(run)) == (State.LOST, ["INTERRUPTED"])
    waiting.refresh()
    assert (waiting.state, waiting.attempts) == (State.READY, 0)
    assert fsck.check(Ledger()) == []
