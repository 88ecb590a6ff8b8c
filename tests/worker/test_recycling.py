"""Children that have done enough are replaced, and those that want too much are refused it."""

from collections import Counter

from django_manta import State
from django_manta.ledger import Ledger, fsck
from django_manta.models import Attempt
from tests.app import tasks
from tests.worker.conftest import Start, ended, outcomes, states

#: More than a child needs that has loaded Django, on any machine.
ROOMY_MIB = 300


def test_a_child_is_replaced_after_so_many_runs(start_worker: Start) -> None:
    runs = tasks.add.starmap([(n, 1) for n in range(60)])
    worker = start_worker("--burst", "--processes", "1", RECYCLE={"RUNS": 10})
    assert worker.wait(60) == 0, worker.tell()
    ended(*runs)
    assert states() == {"SUCCESSFUL": 60}
    executed = Counter(Attempt.objects.filter(outcome="SUCCESSFUL").values_list("executor", flat=True))
    assert max(executed.values()) <= 10, executed
    assert len(executed) == 6
    assert {run.attempts for run in runs} == {1}
    assert fsck.check(Ledger()) == []


def test_a_child_that_needed_much_is_replaced_and_one_that_wants_too_much_is_refused_it(start_worker: Start) -> None:
    worker = start_worker("--processes", "1", RECYCLE={"MEMORY_MIB": ROOMY_MIB, "LIMIT_MIB": 700}).ready()
    before = [tasks.tell_process.enqueue() for _ in range(5)]
    refused = tasks.eat_memory.enqueue()
    before.append(tasks.tell_process.enqueue())
    ended(*before, refused, worker=worker)
    # Beyond the limit an allocation fails inside the task, and the child lives on.
    assert (refused.state, outcomes(refused)) == (State.FAILED, ["FAILED"])
    assert refused.history[-1].error_class == "builtins.MemoryError"
    [first] = {run.return_value for run in before}
    # What is allowed and more than enough wears it out.
    greedy = tasks.grow.enqueue(ROOMY_MIB)
    ended(greedy, worker=worker)
    assert (greedy.state, greedy.return_value) == (State.SUCCESSFUL, first)
    after = [tasks.tell_process.enqueue() for _ in range(5)]
    ended(*after, worker=worker)
    [second] = {run.return_value for run in after}
    assert second != first
    assert fsck.check(Ledger()) == []
