"""Retention: what ended long enough ago goes, in bounded steps, and nothing stops it."""

from uuid import UUID

import pytest

from django_manta.ledger import Ledger, graph
from django_manta.states import BAD_ENDS, ENDS, Outcome, Role, State
from tests.ledger.given import HOUR, claimed, enqueue, run_in_state, settlement, sql

#: Negative: also what ends an hour from now, so that no test depends on the clock.
ANY_AGE = -HOUR


def count(ledger: Ledger, table: str) -> int:
    [[number]] = sql(ledger, f"SELECT count(*) FROM {table}")
    return number


def ended(ledger: Ledger, number: int) -> list[UUID]:
    """Cancelled runs, the second and fourth and so on of which ended at the same moment."""
    ids = enqueue(ledger, number)
    ledger.cancel(ids)
    for run_id in ids[1::2]:
        sql(
            ledger,
            "UPDATE manta_run SET finished_at = (SELECT min(other.enqueued_at) FROM manta_run AS other) WHERE id = %s",
            [run_id.hex],
        )
    return ids


@pytest.mark.parametrize("state", sorted(ENDS))
def test_only_the_given_end_is_pruned(ledger: Ledger, state: State) -> None:
    runs = {run_in_state(ledger, each): each for each in State}
    pruned = ledger.prune(state, ANY_AGE)
    assert (pruned.deleted, pruned.refused, pruned.next) == (1, (), None)
    assert {run.state for run in ledger.fetch(runs)} == set(State) - {state}


@pytest.mark.parametrize("state", sorted(set(State) - ENDS))
def test_what_has_not_ended_cannot_be_pruned(ledger: Ledger, state: State) -> None:
    with pytest.raises(ValueError, match=f"Only finished runs can be pruned, not {state}"):
        ledger.prune(state, ANY_AGE)


def test_only_runs_of_the_given_aliases_go_and_the_others_are_passed_over(ledger: Ledger) -> None:
    kept = [enqueue(ledger, backend=alias)[0] for alias in ("keeps", "keeps", "gone")]
    going = enqueue(ledger, 3, backend="goes")
    ledger.cancel([*kept, *going])
    after, steps = None, []
    while True:
        step = ledger.prune(State.CANCELLED, ANY_AGE, limit=2, after=after, backends=["goes", "nobody"])
        steps.append(step.deleted)
        after = step.next
        if after is None:
            break
    assert sum(steps) == 3
    # Six were there, two at a time, wherever those stood that went.
    assert len(steps) == 4
    assert [run.id for run in ledger.fetch([*kept, *going])] == kept


def test_what_ended_lately_stays(ledger: Ledger) -> None:
    young, old = enqueue(ledger, 2)
    ledger.cancel([young, old])
    sql(ledger, "UPDATE manta_run SET finished_at = %s WHERE id = %s", ["2001-01-01 00:00:00.000000", old.hex])
    assert ledger.prune(State.CANCELLED, HOUR).deleted == 1
    assert [run.id for run in ledger.fetch([young, old])] == [young]


def test_attempts_go_with_their_runs(ledger: Ledger) -> None:
    [kept] = claimed(ledger, queue="kept")
    ledger.settle([settlement(kept, Outcome.FAILED, State.FAILED)])
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim, Outcome.FAILED, State.READY)])
    [claim] = ledger.claim("worker", ["default"], 1)
    ledger.settle([settlement(claim)])
    assert ledger.prune(State.SUCCESSFUL, ANY_AGE).deleted == 1
    assert sql(ledger, "SELECT token FROM manta_attempt") == [(kept.token,)]


def test_each_step_is_bounded_and_goes_on_where_the_last_one_ended(ledger: Ledger) -> None:
    ended(ledger, 10)
    after, steps = None, []
    while True:
        step = ledger.prune(State.CANCELLED, ANY_AGE, limit=4, after=after)
        steps.append(step.deleted)
        after = step.next
        if after is None:
            break
    assert steps == [4, 4, 2]
    assert count(ledger, "manta_run") == 0


def test_the_oldest_go_first(ledger: Ledger) -> None:
    ids = enqueue(ledger, 3)
    ledger.cancel(ids)
    for year, run_id in zip((2003, 2001, 2002), ids, strict=True):
        sql(
            ledger,
            "UPDATE manta_run SET finished_at = %s WHERE id = %s",
            [f"{year}-01-01 00:00:00.000000", run_id.hex],
        )
    ledger.prune(State.CANCELLED, ANY_AGE, limit=2)
    assert [run.id for run in ledger.fetch(ids)] == [ids[0]]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_row_that_cannot_be_deleted_is_reported_and_passed_over(ledger: Ledger, keepsakes: None, limit: int) -> None:
    ids = ended(ledger, 8)
    protected = {ids[0], ids[5]}
    for run_id in protected:
        sql(ledger, "INSERT INTO manta_keepsake (run_id) VALUES (%s)", [run_id.hex])
    refused, deleted, after = set(), 0, None
    for _ in range(20):
        step = ledger.prune(State.CANCELLED, ANY_AGE, limit=limit, after=after)
        refused |= set(step.refused)
        deleted += step.deleted
        after = step.next
        if after is None:
            break
    assert (refused, deleted) == (protected, 6)
    assert {run.id for run in ledger.fetch(ids)} == protected
    # And nothing is stuck: the session goes on.
    enqueue(ledger)


def test_the_history_of_a_run_that_could_not_go_stays(ledger: Ledger, keepsakes: None) -> None:
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim)])
    sql(ledger, "INSERT INTO manta_keepsake (run_id) VALUES (%s)", [claim.id.hex])
    assert ledger.prune(State.SUCCESSFUL, ANY_AGE).refused == (claim.id,)
    assert count(ledger, "manta_attempt") == 1


def test_a_run_retried_meanwhile_keeps_its_history(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = claimed(ledger, 2)
    ledger.settle([settlement(claim, Outcome.FAILED, State.FAILED) for claim in (kept, gone)])
    delete = ledger._delete

    def retried_meanwhile(ids: list[UUID], refused: list[UUID]) -> int:
        ledger.retry([kept.id])
        return delete(ids, refused)

    monkeypatch.setattr(ledger, "_delete", retried_meanwhile)
    assert ledger.prune(State.FAILED, ANY_AGE).deleted == 1
    [run] = ledger.fetch([kept.id, gone.id])
    assert (run.id, run.state, len(run.history)) == (kept.id, State.READY, 1)


def given_to(ledger: Ledger, state: State, role: Role) -> tuple[UUID, UUID]:
    """A run that succeeded, and one that had its value, or waited for its end, and has ended in ``state``."""
    given, dependent = run_in_state(ledger, State.SUCCESSFUL), run_in_state(ledger, state)
    graph.add(ledger, [graph.NewGate(dependent)], [graph.Edge(dependent, given, role)])
    if state is not State.UPSTREAM_FAILED:
        # Which it would not be any more.
        graph.arm(ledger, [dependent])
    return given, dependent


@pytest.mark.parametrize("state", sorted(BAD_ENDS))
def test_what_a_bad_end_was_given_is_kept_for_its_retry_and_goes_after_it(ledger: Ledger, state: State) -> None:
    given, dependent = given_to(ledger, state, Role.VALUE)
    assert ledger.prune(State.SUCCESSFUL, ANY_AGE).deleted == 0
    assert ledger._delete([given], []) == 0, "nor if it was chosen before"
    assert ledger.prune(state, ANY_AGE).deleted == 1
    assert ledger.prune(State.SUCCESSFUL, ANY_AGE).deleted == 1
    assert ledger.fetch([given, dependent]) == []


@pytest.mark.parametrize(("state", "role"), [(State.FAILED, Role.AFTER), (State.SUCCESSFUL, Role.VALUE)])
def test_what_nobody_will_be_given_any_more_goes(ledger: Ledger, state: State, role: Role) -> None:
    given, dependent = given_to(ledger, state, role)
    ledger.prune(State.SUCCESSFUL, ANY_AGE)
    assert given not in {run.id for run in ledger.fetch([given, dependent])}


def test_a_retry_of_what_was_given_a_value_that_is_gone_ends_and_says_so(ledger: Ledger) -> None:
    """Removed by hand, or by a release that did not keep it."""
    given, dependent = given_to(ledger, State.FAILED, Role.VALUE)
    sql(ledger, "DELETE FROM manta_run WHERE id = %s", [given.hex])
    ledger.retry([dependent])
    graph.arm_leftovers(ledger)
    [run] = ledger.fetch([dependent])
    assert (run.state, run.reason) == (State.UPSTREAM_FAILED, f"Run {given}, which it waits for, is gone.")


@pytest.mark.postgres
def test_retention_waits_for_nobody(ledger: Ledger, other_ledger: Ledger) -> None:
    held, free = ended(ledger, 2)
    with other_ledger.session.transaction():
        other_ledger.retry([held])
        assert ledger.prune(State.CANCELLED, ANY_AGE).deleted == 1
    assert [run.state for run in ledger.fetch([held, free])] == [State.READY]
