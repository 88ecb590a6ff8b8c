"""Faults that a reader found once, each of which must not come back."""

import asyncio
import sys
import threading
import time
from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.tasks import default_task_backend
from django.utils import timezone

from django_manta import Group, Later, State, TaskResult, gather, promise, resolve, workflow
from django_manta.ledger import Ledger, fsck, graph, own_session
from django_manta.models import Gate, Run, Workflow
from django_manta.testing import run_all
from django_manta.worker.caretaker import spread_the_word
from tests.app.models import Ledgerline
from tests.ledger.given import sql
from tests.workflow.conftest import Script, state, states
from tests.workflow.tasks import BROKEN, descend, fragile, same, scripted, scripted_atomically

# -- what is gone ------------------------------------------------------------------------------------------


def test_what_waits_for_a_run_removed_by_hand_is_found_and_ended() -> None:
    first = promise()
    strict = same.using(after=[first]).enqueue()
    lenient = same.using(after=[first], when="all_finished").enqueue()
    run_all()
    Run.objects.filter(pk=first.id).delete()
    run_all()
    assert states(strict, lenient) == [State.WAITING] * 2
    found = fsck.repair(Ledger())
    assert {finding.check for finding in found} == {"waiting-for-nothing"}
    assert all(finding.repaired for finding in found)
    run_all()
    assert states(strict, lenient) == [State.UPSTREAM_FAILED, State.SUCCESSFUL]
    assert strict.reason == f"Run {first.id}, which it waits for, is gone."


def test_a_failure_is_retried_with_values_that_are_past_their_retention() -> None:
    BROKEN.add("second")
    first, other = same.enqueue("second"), same.enqueue("nobody's")
    result = fragile.enqueue(first)
    run_all()
    assert states(first, other, result) == [State.SUCCESSFUL, State.SUCCESSFUL, State.FAILED]
    assert Ledger().prune(State.SUCCESSFUL, timedelta(hours=-1)).deleted == 1
    BROKEN.clear()
    result.retry()
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert Ledger().prune(State.SUCCESSFUL, timedelta(hours=-1)).deleted == 2


@pytest.mark.parametrize("ended", [State.FAILED, State.SUCCESSFUL])
def test_how_a_precondition_ended_counts_when_it_is_gone(ended: State) -> None:
    if ended is State.FAILED:
        BROKEN.add("first")
    first = fragile.using(hold=True).enqueue("first")
    result = same.using(after=[first]).enqueue("ran")
    run_all()
    result.cancel()
    Ledger().release([UUID(first.id)])
    run_all()
    assert states(first, result) == [ended, State.CANCELLED]
    assert Ledger().prune(ended, timedelta(hours=-1)).deleted == 1
    result.retry()
    run_all()
    assert state(result) is (State.SUCCESSFUL if ended is State.SUCCESSFUL else State.UPSTREAM_FAILED)


def test_retention_passes_over_what_somebody_has_begun_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    first = same.enqueue(1)
    run_all()
    ledger = Ledger()
    delete = ledger._delete
    made: list[TaskResult] = []

    def late(ids: list[UUID], refused: list[UUID]) -> int:
        made.append(same.enqueue(first))
        return delete(ids, refused)

    monkeypatch.setattr(ledger, "_delete", late)
    assert ledger.prune(State.SUCCESSFUL, timedelta(hours=-1)).deleted == 0
    run_all()
    assert state(made[0]) is State.SUCCESSFUL


# -- depth and width ---------------------------------------------------------------------------------------


def test_delegation_goes_deeper_than_python() -> None:
    depth = 120
    result = descend.enqueue(depth)
    after = same.enqueue(result)
    limit, frame, used = sys.getrecursionlimit(), sys._getframe(), 0
    while frame is not None:
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]
    # Enough for Django and us, and not for a step a level.
    sys.setrecursionlimit(used + depth)
    try:
        run_all(max_runs=5_000)
        result.refresh()
    finally:
        sys.setrecursionlimit(limit)
    assert states(result, after) == [State.SUCCESSFUL] * 2
    assert result.return_value == after.return_value == "the ground"


def test_asking_to_wait_for_many_behind_a_chain_is_counted_in_one_walk(script: Script) -> None:
    """A row for each, not one for each pair."""
    end = promise()
    link = end
    with transaction.atomic():
        for _ in range(20):
            link = same.enqueue(link)
    group = same.using(after=[link]).map(range(50))
    result = scripted.enqueue(script(lambda: Later(after=[group]), lambda: "done"))
    run_all()
    assert state(result) is State.WAITING
    assert graph.in_circles(Ledger(), [UUID(result.id)]) == []
    resolve(end.id)
    run_all()
    assert state(result) is State.SUCCESSFUL


def test_many_that_wait_for_one_are_counted_in_few_transactions(ending: str) -> None:
    first = promise()
    results = same.using(after=[first]).map(range(300))
    if ending == "committed":
        assert Gate.objects.filter(armed=True).count() == len(results)
    resolve(first.id)
    assert run_all().runs == len(results)


# -- signatures --------------------------------------------------------------------------------------------


def test_a_value_cannot_be_passed_off_as_a_pointer_nor_the_other_way_round(script: Script) -> None:
    secret = same.enqueue("secret")
    text = same.enqueue(secret.id)
    pointer = scripted.enqueue(script(lambda: same.enqueue("child")))
    run_all()
    with connection.cursor() as cursor:
        stored = [UUID(each.id) if connection.vendor == "postgresql" else UUID(each.id).hex for each in (text, pointer)]
        cursor.execute("UPDATE manta_run SET delegate = result, result = NULL WHERE id = %s", [stored[0]])
        cursor.execute("UPDATE manta_run SET result = delegate, delegate = NULL WHERE id = %s", [stored[1]])
        cursor.execute(
            "INSERT INTO manta_dependency (run_id, on_id, role, told, met, called)"
            " VALUES (%s, %s, 'delegate', true, true, false)",
            [stored[0], UUID(secret.id) if connection.vendor == "postgresql" else UUID(secret.id).hex],
        )
        cursor.execute("DELETE FROM manta_dependency WHERE run_id = %s AND role = 'delegate'", [stored[1]])
    results = [same.enqueue(text), same.enqueue(pointer)]
    run_all()
    assert states(*results) == [State.FAILED] * 2
    assert {each.errors[-1].exception_class_path for each in results} == {"django_manta.exceptions.BadTaskSignature"}
    Run.objects.all().delete()
    fsck.repair(Ledger())


# -- Later -------------------------------------------------------------------------------------------------


def test_an_atomic_task_that_asks_too_often_leaves_nothing_of_the_last_call(script: Script) -> None:
    name = script(Later, Later, Later)
    result = scripted_atomically.using(max_laters=1).enqueue(name)
    run_all()
    assert state(result) is State.FAILED
    assert result.errors[-1].exception_class_path == "django_manta.exceptions.TooManyLaters"
    assert Ledgerline.objects.filter(label=name).count() == 1


def test_a_near_deadline_is_passed_on_by_delegation_and_by_later(script: Script) -> None:
    near = timezone.now() + timedelta(minutes=1)
    child, other = same.using(hold=True).enqueue(1), same.using(hold=True).enqueue(2)
    scripted.using(deadline=near).enqueue(script(lambda: child))
    scripted.using(deadline=near).enqueue(script(lambda: Later(after=[other])))
    run_all()
    for each in (child, other):
        each.refresh()
        assert each.deadline <= near


def test_what_later_refuses_it_refuses_in_its_own_name() -> None:
    with pytest.raises((TypeError, ValueError), match="^Later: after must "):
        Later(after=[5])


# -- cancel ------------------------------------------------------------------------------------------------


def test_a_cascade_leaves_alone_who_no_longer_waits() -> None:
    first, other = same.enqueue(1), promise()
    result = same.using(after=[first, other]).enqueue()
    behind = same.using(after=[result], when="all_finished").enqueue()
    run_all()
    first.refresh()
    first.cancel(cascade=True)
    assert states(first, result, behind) == [State.SUCCESSFUL, State.WAITING, State.WAITING]
    other.refresh()
    other.cancel(cascade=True)
    assert states(result, behind) == [State.CANCELLED] * 2


# -- workflow(), promises and groups -------------------------------------------------------------------------


def test_a_workflow_cannot_go_round_what_runs_later() -> None:
    async def enqueue() -> None: ...

    def yields() -> Any:
        yield

    for function in (enqueue, yields):
        with pytest.raises(TypeError, match="async or a generator"):
            workflow("import")(function)
    assert not Workflow.objects.exists()


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda: workflow(5), TypeError, "name must be a string, not 5"),  # type: ignore[arg-type]
        (lambda: workflow("x", unique_key=["y"]), TypeError, "unique_key must be a string"),  # type: ignore[arg-type]
        (lambda: workflow("x\0"), ValueError, "NUL"),
        (lambda: promise(5), TypeError, "name must be a string, not 5"),  # type: ignore[arg-type]
        (lambda: promise("x\0"), ValueError, "NUL"),
        (lambda: gather(["abc"]), TypeError, "not 'abc'"),  # type: ignore[list-item]
        (lambda: gather(5), TypeError, "not 5"),  # type: ignore[arg-type]
    ],
)
def test_nonsense_is_refused_at_the_door(act: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        act()
    assert not Run.objects.exists()


def test_a_part_of_a_group_is_a_group(script: Script) -> None:
    group = same.map(range(4))
    assert [type(each) for each in (group[:2], group + group, group.copy())] == [Group] * 3
    assert group[1:3].ids == group.ids[1:3]
    assert group[-1].id == group[3].id
    result = scripted.enqueue(script(lambda: same.map(range(4))[1:3]))
    run_all()
    assert state(result) is State.SUCCESSFUL
    assert result.return_value == [1, 2]


def test_the_progress_of_a_group_reads_no_arguments() -> None:
    group = gather(same.map(range(3)), same.map(range(2)))
    assert group.progress == {State.READY: 5}
    assert gather(group[0], group[0]).progress == {State.READY: 2}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("ending", ["committed"], indirect=True)
def test_groups_are_joined_side_by_side_on_one_connection(ending: str) -> None:
    group = same.map(range(3))
    run_all()

    async def join() -> Any:
        return await asyncio.gather(*(group.ajoin(5) for _ in range(5)))

    assert asyncio.run(join()) == [[0, 1, 2]] * 5


# -- locks -------------------------------------------------------------------------------------------------


@pytest.mark.postgres
@pytest.mark.parametrize("ending", ["committed"], indirect=True)
def test_who_holds_a_dependent_delays_nobody_else(ending: str) -> None:
    first = same.enqueue(1)
    victim, other = same.enqueue(first), same.enqueue(first)
    with closing(own_session()) as session:
        ledger = Ledger(session)
        with transaction.atomic():
            Ledger().hold([UUID(victim.id)])
            [claim] = ledger.claim("worker", ["default"], 1)
            # In this thread: a settlement that waited for the row would wait for ever.
            assert ledger.settle([_successful(claim)]).ready == frozenset({"default"})
            assert ledger.states([UUID(other.id)]) == {UUID(other.id): State.READY}
            # Nor does whoever keeps the house.
            assert spread_the_word(default_task_backend, ledger) == 0
            transaction.set_rollback(True)
        assert state(victim) is State.WAITING
        graph.tell_leftovers(ledger)
    assert states(victim, other) == [State.READY] * 2
    for each in (victim, other):
        each.cancel()


def _successful(claim: Any) -> Any:
    from tests.ledger.given import settlement

    return settlement(claim, result="1")


@pytest.mark.postgres
@pytest.mark.parametrize("ending", ["committed"], indirect=True)
def test_no_deadlock_reaches_whoever_cancels(ending: str, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """The precondition is newer than the run: arming locks it first, and a cascading cancel the run."""
    made: list[TaskResult] = []

    def step() -> Later:
        made.append(same.using(hold=True).enqueue(1))
        return Later(after=made)

    result = scripted.enqueue(script(step))
    run_all()
    with closing(own_session()) as session:
        ledger = Ledger(session)
        locked = threading.Event()
        rows = session.rows

        def slowly(name: str, params: Any) -> Any:
            found = rows(name, params)
            if name == "arm_lock":
                locked.set()
                time.sleep(0.2)
            return found

        monkeypatch.setattr(session, "rows", slowly)
        arming = threading.Thread(target=lambda: graph.arm(ledger, [UUID(result.id)], new=True))
        arming.start()
        locked.wait()
        made[0].cancel(cascade=True)
        arming.join()
    assert states(result, made[0]) == [State.CANCELLED] * 2


@pytest.mark.postgres
@pytest.mark.parametrize("ending", ["committed"], indirect=True)
def test_the_caretaker_arms_the_others_when_somebody_holds_what_one_waits_for(ending: str) -> None:
    held, free = same.enqueue(1), same.enqueue(2)
    results = [same.enqueue(held), same.enqueue(free)]
    Gate.objects.update(armed=False, made_at=timezone.now() - timedelta(minutes=1))
    with closing(own_session()) as session:
        with transaction.atomic():
            sql(Ledger(), "SELECT 1 FROM manta_run WHERE id = %s FOR UPDATE", [UUID(held.id).hex])
            graph.arm_leftovers(Ledger(session))
        armed = Gate.objects.filter(armed=True).values_list("run_id", flat=True)
        assert list(armed) == [UUID(results[1].id)]
        graph.arm_leftovers(Ledger(session))
    run_all()
    assert states(*results) == [State.SUCCESSFUL] * 2
