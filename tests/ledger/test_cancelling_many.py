"""Very many runs are cancelled a thousand at a time, and none starts because another was cancelled before it."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction

from django_manta import result
from django_manta.ledger import Ledger, fsck, graph, own_session
from django_manta.ledger.book import CANCEL_BATCH
from django_manta.states import Role, State, When
from tests.app import tasks
from tests.ledger.given import enqueue, new_run, sql, state_of

MANY = 2 * CANCEL_BATCH + 600


def waiting(ledger: Ledger, on: UUID, count: int, when: When = When.ALL_SUCCESSFUL) -> list[UUID]:
    """Runs that wait for another one."""
    runs = [new_run(waits=True) for _ in range(count)]
    ids = [run.id for run in runs]
    with ledger.session.transaction():
        ledger.enqueue(runs)
        graph.add(
            ledger,
            [graph.NewGate(run_id, when) for run_id in ids],
            [graph.Edge(run_id, on, Role.AFTER) for run_id in ids],
        )
    graph.arm(ledger, ids)
    return ids


def transactions(ledger: Ledger, ids: list[UUID]) -> int:
    """How many transactions have written these rows as they are."""
    return len(sql(ledger, "SELECT DISTINCT xmin::text FROM manta_run WHERE id = ANY(%s)", [ids]))


@pytest.mark.postgres
def test_a_thousand_are_cancelled_in_a_transaction(ledger: Ledger, committed: None) -> None:
    runs = enqueue(ledger, MANY)
    assert set(ledger.cancel(runs).values()) == {State.CANCELLED}
    assert transactions(ledger, runs) == 3


@pytest.mark.postgres
def test_what_waits_is_cancelled_a_thousand_at_a_time_as_well(ledger: Ledger, committed: None) -> None:
    [root] = enqueue(ledger)
    runs = waiting(ledger, root, MANY)
    assert transactions(ledger, [root, *runs]) <= 2
    assert len(ledger.cancel([root], cascade=True)) == MANY + 1
    assert transactions(ledger, [root, *runs]) == 3
    assert fsck.check(ledger) == []


def test_what_a_bad_end_lets_pass_is_cancelled_before_it_and_the_rest_after(ledger: Ledger, committed: None) -> None:
    [root] = enqueue(ledger)
    others = waiting(ledger, root, 3)
    passing = waiting(ledger, root, 3, When.ALL_FINISHED)
    farther = waiting(ledger, passing[0], 2, When.ANY_FINISHED)
    order = graph.with_downstream(ledger, [root])
    assert (set(order[:2]), set(order[2:5])) == (set(farther), set(passing))
    assert (order[5], set(order[6:])) == (root, set(others))


class _Lost(Exception):
    """The process dies."""


def test_what_stops_it_in_the_middle_leaves_whole_batches_and_calling_again_does_the_rest(
    ledger: Ledger, committed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    [root] = enqueue(ledger)
    passing = waiting(ledger, root, CANCEL_BATCH, When.ALL_FINISHED)
    others = waiting(ledger, root, CANCEL_BATCH)
    rows, said = ledger.session.rows, []

    def dies(name: str, params: Any) -> Any:
        said.append(name)
        if said.count("cancel") == 3:
            raise _Lost
        return rows(name, params)

    monkeypatch.setattr(ledger.session, "rows", dies)
    with pytest.raises(_Lost):
        ledger.cancel([root], cascade=True)
    monkeypatch.undo()
    # The root is in the second batch, and nothing that it lets pass is left.
    assert {state_of(ledger, run_id) for run_id in [root, *passing[:5]]} == {State.CANCELLED}
    assert len(ledger.states(others)) == CANCEL_BATCH
    assert State.WAITING in ledger.states(others).values()
    ledger.cancel([root], cascade=True)
    while graph.tell_leftovers(ledger).done:
        pass
    assert set(ledger.states(passing).values()) == {State.CANCELLED}
    assert set(ledger.states(others).values()) <= {State.CANCELLED, State.UPSTREAM_FAILED}
    assert fsck.check(ledger) == []


def is_waiting_for_a_lock(ledger: Ledger) -> bool:
    [[count]] = sql(ledger, "SELECT count(*) FROM pg_locks WHERE NOT granted")
    return count > 0


@pytest.mark.postgres
def test_in_a_transaction_of_the_caller_runs_are_taken_in_one_order(other_ledger: Ledger) -> None:
    """Or two who cancel the same runs in different orders could wait for each other."""
    runs = sorted(enqueue(other_ledger, CANCEL_BATCH + 1))

    def cancel() -> None:
        with closing(own_session()) as session, session.transaction():
            assert len(Ledger(session).cancel(reversed(runs))) == len(runs)

    locks_nothing_before_the_first(cancel, runs, other_ledger)


@pytest.mark.postgres
def test_so_are_those_of_a_group(other_ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "CANCEL_BATCH", 2)
    group = sorted(tasks.add.starmap([(1, 1)] * 5), key=lambda each: each.id)

    def cancel() -> None:
        with closing(connection), transaction.atomic():
            result.cancel_all(group[::-1])

    locks_nothing_before_the_first(cancel, [UUID(each.id) for each in group], other_ledger)
    assert set(result.states_of(group)) == {State.CANCELLED}


def locks_nothing_before_the_first(cancel: Callable[[], None], runs: list[UUID], other: Ledger) -> None:
    lock = "SELECT 1 FROM manta_run WHERE id = %s FOR UPDATE NOWAIT"
    with ThreadPoolExecutor() as pool:
        with other.session.transaction():
            sql(other, lock, [runs[0]])
            cancelled = pool.submit(cancel)
            deadline = time.monotonic() + 30
            while not is_waiting_for_a_lock(other):
                assert time.monotonic() < deadline
            sql(other, lock, [runs[-1]])
        cancelled.result(30)


def test_in_a_transaction_of_the_caller_all_are_cancelled_or_none(committed: None) -> None:
    ledger = Ledger()
    runs = enqueue(ledger, MANY)

    def cancel_and_fail() -> None:
        with transaction.atomic():
            assert len(ledger.cancel(runs)) == MANY
            raise OperationalError

    with pytest.raises(OperationalError):
        cancel_and_fail()
    assert set(ledger.states(runs).values()) == {State.READY}
    with transaction.atomic():
        ledger.cancel(runs)
    assert set(ledger.states(runs).values()) == {State.CANCELLED}
