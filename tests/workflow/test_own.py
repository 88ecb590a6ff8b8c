"""Who waits only for what its own transaction has enqueued is counted there, and nobody comes back for it."""

import contextlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_manta import State, TaskResult, gather, promise, reject, resolve
from django_manta.ledger import Ledger, fsck, graph, own_session
from django_manta.models import Dependency, Gate, Herald, Run
from django_manta.states import When
from django_manta.testing import run_all
from django_manta.workflow import own
from tests.ledger.given import settlement
from tests.workflow.conftest import state, states
from tests.workflow.tasks import same

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def ending() -> Iterator[str]:
    """Everything here is committed."""
    yield "committed"
    assert fsck.check(Ledger()) == []
    assert not Herald.objects.exists()


@pytest.fixture
def arming(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """The runs that are armed with locks, after a commit."""
    armed: list[UUID] = []
    arm = graph._arm

    def noting(ledger: Ledger, ids: list[UUID], *how: bool, **sure: bool) -> object:
        armed.extend(ids)
        return arm(ledger, ids, *how, **sure)

    monkeypatch.setattr(graph, "_arm", noting)
    return armed


def is_armed(result: TaskResult) -> bool:
    return Gate.objects.get(run_id=result.id).armed


@pytest.mark.postgres
def test_a_join_of_what_was_enqueued_with_it_is_armed_at_once(arming: list[UUID]) -> None:
    with transaction.atomic():
        parts = same.map(range(2_500))  # more than one INSERT, and so in a savepoint
        joined = same.enqueue(parts)
        behind = same.using(after=[joined]).enqueue()
        assert is_armed(joined)
        assert is_armed(behind)
        assert Gate.objects.get(run_id=joined.id).pending_values == 2_500
    assert arming == []
    run_all(max_runs=3_000)
    joined.refresh()
    assert joined.return_value == list(range(2_500))
    assert state(behind) is State.SUCCESSFUL


def test_it_ends_as_it_would_have_in_two_transactions() -> None:
    with transaction.atomic():
        good, bad = promise("good"), promise("bad")
        results = [
            same.using(after=[good, bad], when=when).enqueue()
            for when in ("all_successful", "all_finished", "any_successful", "any_finished")
        ]
        valued = same.enqueue([good, bad])
    reject("bad")
    resolve("good", 1)
    run_all()
    assert states(*results) == [
        State.UPSTREAM_FAILED,
        State.SUCCESSFUL,
        State.SUCCESSFUL,
        State.SUCCESSFUL,
    ]
    assert state(valued) is State.UPSTREAM_FAILED


@pytest.mark.postgres
def test_who_waits_for_something_older_as_well_is_armed_after_the_commit(arming: list[UUID]) -> None:
    older = same.enqueue(1)
    with transaction.atomic():
        newer = same.enqueue(2)
        joined = same.enqueue([older, newer])
        assert not is_armed(joined)
    assert arming == [UUID(joined.id)]
    assert is_armed(joined)
    run_all()
    joined.refresh()
    assert joined.return_value == [1, 2]


@pytest.mark.postgres
def test_what_is_over_already_is_counted_after_the_commit() -> None:
    with transaction.atomic():
        over, open_ = promise("over"), promise("open")
        resolve("over", 1)
        joined = same.enqueue([over, open_])
        assert not is_armed(joined)
    resolve("open", 2)
    run_all()
    joined.refresh()
    assert joined.return_value == [1, 2]


def test_what_a_hook_after_the_commit_sees_is_no_longer_its_own() -> None:
    """The hook is older than the run: whoever clears up in a hook of its own would come too late."""
    seen: list[int] = []

    def hook() -> None:
        with transaction.atomic():
            seen.append(len(own.runs(DEFAULT_DB_ALIAS)))
            results.append(same.enqueue(first))

    results: list[TaskResult] = []
    with transaction.atomic():
        transaction.on_commit(hook)
        first = same.enqueue(1)
        assert own.runs(DEFAULT_DB_ALIAS) == {UUID(first.id)}
    assert seen == [0]
    run_all()
    assert states(*results) == [State.SUCCESSFUL]


def test_nothing_is_own_after_a_rollback() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        same.enqueue(same.map([1, 2]))
        raise ZeroDivisionError
    assert not own.runs(DEFAULT_DB_ALIAS)
    with transaction.atomic():
        assert not own.runs(DEFAULT_DB_ALIAS)
        first = same.enqueue(3)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            same.enqueue(same.enqueue(first))
            raise ZeroDivisionError
        second = same.enqueue(first)
        third = same.enqueue(second)
    assert Run.objects.count() == 3
    run_all()
    assert states(first, second, third) == [State.SUCCESSFUL] * 3


def test_without_a_transaction_nothing_is_own() -> None:
    first = same.enqueue(1)
    assert not own.runs(DEFAULT_DB_ALIAS)
    second = same.enqueue(first)
    assert is_armed(second)
    run_all()
    assert state(second) is State.SUCCESSFUL


@pytest.mark.postgres
def test_who_commits_by_hand_owns_nothing() -> None:
    """Without autocommit an atomic block ends no transaction: what was enqueued in one may be public in the next."""
    with closing(own_session()) as session:
        others = Ledger(session)
        transaction.set_autocommit(False)
        try:
            with transaction.atomic():
                first = same.enqueue(1)
                before = same.enqueue(first)
            transaction.commit()
            with transaction.atomic():
                after = same.enqueue(first)
                assert not own.runs(DEFAULT_DB_ALIAS)
            [claim] = others.claim("worker", ["default"], 10)
            assert others.settle([settlement(claim)], "worker").moved
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        graph.arm_leftovers(others)
    assert states(before, after) == [State.READY] * 2


@pytest.mark.parametrize("end", ["resolve", "reject", "cancel"])
def test_what_ends_in_the_same_transaction_is_told_of_after_it(end: str) -> None:
    with transaction.atomic():
        first = promise("first")
        second = same.enqueue(first)
        third = same.enqueue(second)
        {"resolve": lambda: resolve("first", 1), "reject": lambda: reject("first"), "cancel": first.cancel}[end]()
    if end == "resolve":
        assert states(second, third) == [State.READY, State.WAITING]
    else:
        assert states(second, third) == [State.UPSTREAM_FAILED] * 2


@pytest.mark.postgres
def test_what_was_enqueued_is_forgotten_with_its_transaction() -> None:
    with transaction.atomic():
        same.enqueue(1)
        assert connections[DEFAULT_DB_ALIAS] in own._present
    assert connections[DEFAULT_DB_ALIAS] not in own._present


@pytest.mark.postgres
def test_a_step_of_a_chain_is_one_statement_and_after_the_commit_all_are_seen_to_together() -> None:
    def after_the_commit(steps: int) -> int:
        """How many statements that takes."""
        with CaptureQueriesContext(connections[DEFAULT_DB_ALIAS]) as all_of_it, transaction.atomic():
            last = same.enqueue(1)
            for _ in range(steps):
                with CaptureQueriesContext(connections[DEFAULT_DB_ALIAS]) as one:
                    last = same.enqueue(last)
                assert len(one) == 1, one.captured_queries
            before = len(all_of_it)
        # Whether the doorbell rings depends on how long ago it did.
        return sum("pg_notify" not in query["sql"] for query in all_of_it.captured_queries[before:])

    assert after_the_commit(2) == after_the_commit(40)
    run_all()
    assert Run.objects.successful().count() == Run.objects.count() == 44


@pytest.mark.postgres
@pytest.mark.parametrize("mode", [None, *When])
@pytest.mark.parametrize("own_ones", [True, False], ids=["own", "strange"])
def test_one_statement_leaves_what_the_four_of_them_leave(
    monkeypatch: pytest.MonkeyPatch, mode: When | None, own_ones: bool
) -> None:
    def left(few: int) -> list[object]:
        monkeypatch.setattr(graph, "FEW_EDGES", few)
        others = [same.enqueue(number) for number in range(3)]
        with transaction.atomic():
            mine = [same.enqueue(number) for number in range(3)]
            given = mine if own_ones else [others[0], *mine[1:]]
            chosen = {"when": mode} if mode else {}
            run = same.using(after=[*given[1:], given[1]], metadata={"by": few}, **chosen).enqueue([given[0], given[1]])
            places = {UUID(each.id): place for place, each in enumerate([*mine, *others, run])}
            gate = Gate.objects.filter(run_id=run.id).values().get()
            edges = Dependency.objects.filter(run_id=run.id).order_by("id").values()
            row = Run.objects.filter(id=run.id).values().get()
            flags = Run.objects.filter(id__in=places).order_by("id").values_list("dependents", flat=True)
            seen: list[object] = [run.state, run.status, run.deadline - run.enqueued_at, run.metadata == {"by": few}]
            seen += [{k: v for k, v in gate.items() if k not in ("run_id", "made_at")}, list(flags)]
            seen += [[(places[edge["on_id"]], edge["role"], edge["told"], edge["met"]) for edge in edges]]
            varying = ("id", "signature", "enqueued_at", "deadline", "references_text", "metadata")
            seen += [{name: value for name, value in row.items() if name not in varying}]
            seen += [bool(row["references_text"])]
        return seen

    assert left(100) == left(-1)
    run_all()
    assert Run.objects.successful().count() == Run.objects.count() == 14


@pytest.mark.parametrize("first", ["kept", "undone"])
def test_what_a_rolled_back_savepoint_enqueued_takes_nobody_along(first: str) -> None:
    """Whether the savepoint's hook came first, or the one that stays."""
    done = same.enqueue(1)
    run_all()
    with transaction.atomic():
        if first == "kept":
            kept = same.enqueue(done)
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            same.enqueue(done)
            raise ZeroDivisionError
        if first == "undone":
            kept = same.enqueue(done)
    assert state(kept) is State.READY
    run_all()
    assert Run.objects.successful().count() == Run.objects.count() == 2


def test_a_test_may_call_only_the_last_of_the_hooks(django_capture_on_commit_callbacks: Any) -> None:
    """As ``captureOnCommitCallbacks(execute=True)`` does: those of the block, not those before it."""
    done = same.enqueue(1)
    run_all()
    with transaction.atomic():
        same.enqueue(done)
        with django_capture_on_commit_callbacks(execute=True):
            inside = same.enqueue(done)
        assert state(inside) is State.READY


@pytest.mark.parametrize("together", [True, False], ids=["in a transaction", "alone"])
def test_who_waits_for_nothing_at_all_is_ready_at_once(together: bool) -> None:
    with transaction.atomic() if together else contextlib.nullcontext():
        first = same.enqueue(1)
        nothing = same.enqueue(gather())
        after = same.using(after=[first]).enqueue(gather())
        assert not is_armed(nothing) or not together
    assert states(nothing, after) == [State.READY, State.WAITING]
    run_all()
    nothing.refresh()
    assert nothing.return_value == []
    assert state(after) is State.SUCCESSFUL


@pytest.mark.postgres
def test_a_precondition_that_somebody_holds_keeps_nobody_else_of_the_transaction_waiting() -> None:
    held, ended = same.enqueue(1), same.enqueue(2)
    run_all()
    with closing(own_session(DEFAULT_DB_ALIAS)) as other, other.transaction():
        assert Ledger(other).session.rows("arm_lock", {"ids": [held.id]})
        with transaction.atomic():
            waits = same.enqueue(held)
            goes = same.enqueue(ended)
        assert states(waits, goes) == [State.WAITING, State.READY]
    graph.arm_leftovers(Ledger())
    run_all()
    assert states(waits, goes) == [State.SUCCESSFUL, State.SUCCESSFUL]


@pytest.mark.postgres
def test_very_many_that_were_resolved_where_they_were_waited_for_are_all_told_of() -> None:
    with transaction.atomic():
        names = [f"promise {number}" for number in range(250)]
        waiting = [same.enqueue(promise(name)) for name in names]
        for name in names:
            resolve(name, 1)
    assert {state(result) for result in waiting} == {State.READY}
    run_all()
