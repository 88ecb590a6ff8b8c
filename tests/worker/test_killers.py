"""Tasks that kill their process, or will not let go of it: each ends as docs/what-happens-when.md says."""

import signal
from dataclasses import dataclass
from typing import Any

from django_manta import State
from django_manta.execution.runners.flights import GRACE_SECONDS
from django_manta.ledger import Ledger, fsck
from django_manta.models import Run
from tests.app import tasks
from tests.worker.conftest import Start, ended, marked, outcomes, states, wait_for

#: What a busy machine may add to any budget.
PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Killer:
    task: Any
    args: tuple[Any, ...]
    outcomes: list[str]
    state: State
    #: How long an attempt may take.
    seconds: float
    #: What is told of it.
    told: str

    def __str__(self) -> str:
        return f"{self.task.name}{self.args}"


CRASHES = ["CRASHED"] * 3
TIMEOUT = "longer than its timeout of 0.2 s"

KILLERS = [
    Killer(tasks.exit_with, (0,), CRASHES, State.QUARANTINED, 1, "ended with exit code 0"),
    Killer(tasks.exit_with, (1,), CRASHES, State.QUARANTINED, 1, "ended with exit code 1"),
    Killer(tasks.segfault, (), CRASHES, State.QUARANTINED, 1, "ended by SIGSEGV"),
    Killer(tasks.kill_itself, (), CRASHES, State.QUARANTINED, 1, "ended by SIGKILL"),
    Killer(tasks.eat_memory, (), ["FAILED"], State.FAILED, 1, "MemoryError"),
    Killer(tasks.leave_politely, (), ["FAILED"], State.FAILED, 1, "SystemExit"),
    Killer(tasks.interrupt, (), ["FAILED"], State.FAILED, 1, "KeyboardInterrupt"),
    Killer(tasks.spin_too_long, (), ["TIMED_OUT"], State.FAILED, 0.2, TIMEOUT),
    Killer(tasks.sleep_too_long, (), ["TIMED_OUT"] * 2, State.FAILED, 0.2, TIMEOUT),
    Killer(tasks.sleep_too_long_async, (), ["TIMED_OUT"], State.FAILED, 0.2, TIMEOUT),
    Killer(tasks.swallow_its_timeout, (), ["TIMED_OUT"], State.FAILED, 0.2 + GRACE_SECONDS, TIMEOUT),
    Killer(tasks.compute_too_long, (), ["TIMED_OUT"], State.FAILED, 0.2 + GRACE_SECONDS, TIMEOUT),
]


def test_killers_end_as_the_table_says_and_hurt_nobody(start_worker: Start) -> None:
    good = tasks.add.starmap([(n, 1) for n in range(250)])
    killers = [each.task.enqueue(*each.args) for each in KILLERS]
    good += tasks.add.starmap([(n, 1) for n in range(250)])
    worker = start_worker("--burst", RECYCLE={"LIMIT_MIB": 700})
    assert worker.wait(90) == 0, worker.tell()
    ended(*killers, *good)
    assert {str(each): (run.state, outcomes(run)) for each, run in zip(KILLERS, killers, strict=True)} == {
        str(each): (each.state, each.outcomes) for each in KILLERS
    }
    for each, run in zip(KILLERS, killers, strict=True):
        attempts = [attempt for attempt in run.history if attempt.outcome != "RETURNED"]
        for attempt in attempts:
            took = (attempt.finished_at - attempt.started_at).total_seconds()
            assert took < each.seconds + PATIENCE_SECONDS, (str(each), took)
            assert each.told in f"{attempt.error_class} {attempt.error_message}", str(each)
        if each.state is State.QUARANTINED:
            assert each.told in run.reason
            assert ["last words" in attempt.output for attempt in attempts] == [True] * 3, str(each)
    assert {(run.state, run.attempts, *outcomes(run)) for run in good} == {(State.SUCCESSFUL, 1, "SUCCESSFUL")}
    assert fsck.check(Ledger()) == []


def test_a_child_that_dies_with_many_coroutines_charges_only_the_one_that_kills_again(start_worker: Start) -> None:
    beside = [tasks.sleep_async.enqueue(0.6) for _ in range(8)]
    killer = tasks.exit_from_the_loop.enqueue()
    worker = start_worker("--burst")
    assert worker.wait(90) == 0, worker.tell()
    ended(killer, *beside)
    assert (killer.state, outcomes(killer)) == (State.QUARANTINED, ["INTERRUPTED", *CRASHES])
    assert {run.state for run in beside} == {State.SUCCESSFUL}
    assert {tuple(outcomes(run)) for run in beside} <= {("SUCCESSFUL",), ("INTERRUPTED", "SUCCESSFUL")}
    assert Run.objects.filter(failures=0, crashes=0, losses=0, suspect=False).count() == len(beside)
    assert fsck.check(Ledger()) == []


def test_a_coroutine_that_blocks_its_loop_is_killed_and_the_others_are_not_charged(start_worker: Start) -> None:
    worker = start_worker().ready()
    beside = [tasks.stay_async.enqueue(f"beside {n}") for n in range(3)]
    for n in range(3):
        marked(f"beside {n}", worker)
    killer = tasks.block_the_loop.enqueue()
    ended(killer, worker=worker)
    assert (killer.state, outcomes(killer)) == (State.FAILED, ["TIMED_OUT"])
    [attempt] = killer.history
    took = (attempt.finished_at - attempt.started_at).total_seconds()
    assert took < 0.2 + GRACE_SECONDS + PATIENCE_SECONDS
    for run in beside:
        wait_for(lambda run=run: (run.refresh(), outcomes(run))[1] == ["INTERRUPTED"], 10, worker.tell)
        run.cancel()
    ended(*beside, worker=worker)
    assert Run.objects.filter(pk__in=[run.id for run in beside], failures=0, crashes=0, losses=0).count() == 3


def test_a_child_or_the_fork_server_killed_from_outside_costs_only_the_run_it_was_at(start_worker: Start) -> None:
    worker = start_worker("--processes", "1").ready()
    run = tasks.stay_at_first.enqueue("child")
    marked("child", worker)
    [child] = worker.children()
    child.kill()
    ended(run, limit=15, worker=worker)
    assert (run.state, outcomes(run)) == (State.SUCCESSFUL, ["CRASHED", "SUCCESSFUL"])
    assert "ended by SIGKILL" in run.history[0].error_message

    run = tasks.stay_at_first.enqueue("fork server")
    marked("fork server", worker)
    first = worker.fork_server()
    first.kill()
    ended(run, limit=30, worker=worker)
    # Nobody can tell any more how the child ended.
    assert (run.state, outcomes(run)) == (State.SUCCESSFUL, ["INTERRUPTED", "SUCCESSFUL"])
    assert worker.fork_server().pid != first.pid
    good = tasks.add.starmap([(n, 1) for n in range(20)])
    ended(*good, worker=worker)
    assert states() == {"SUCCESSFUL": 22}
    worker.signal(signal.SIGTERM)
    assert worker.wait(15) == 0, worker.tell()


def test_a_run_that_kills_its_fork_server_again_and_again_is_charged(start_worker: Start) -> None:
    killer = tasks.kill_its_fork_server.enqueue()
    worker = start_worker("--max-runs", "2")
    assert worker.wait(60) == 0, worker.tell()
    killer.refresh()
    assert outcomes(killer)[1:] == ["CRASHED"]
