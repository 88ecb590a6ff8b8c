"""fsck: every broken invariant is found, what can be is repaired, and a ledger in use is clean."""

import re
from collections.abc import Callable
from uuid import UUID

import pytest

from django_manta.ledger import Ledger, RayPlace, fsck, graph, tokens
from django_manta.ledger.session import statement
from django_manta.states import Outcome, Role, State, When
from tests.ledger.given import (
    ASKED,
    HOUR,
    claimed,
    dependent,
    enqueue,
    run_in_state,
    settlement,
    sql,
    state_of,
    the,
    worker_record,
)


def broken(ledger: Ledger, state: State, change: str) -> UUID:
    run_id = run_in_state(ledger, state)
    sql(ledger, f"UPDATE manta_run SET {change} WHERE id = %s", [run_id.hex])
    return run_id


def settled_twice(ledger: Ledger) -> UUID:
    run_id = broken(ledger, State.SUCCESSFUL, "attempts = 2")
    sql(
        ledger,
        "INSERT INTO manta_attempt (token, run_id, number, outcome, started_at, finished_at, worker, executor,"
        " error_class, error_message, traceback, output, log_ref) SELECT token + 1000000, run_id, 2, outcome,"
        " started_at, finished_at, worker, executor, error_class, error_message, traceback, output, log_ref"
        " FROM manta_attempt WHERE run_id = %s",
        [run_id.hex],
    )
    tokens.advance(ledger)
    return run_id


def attempt_without_run(ledger: Ledger) -> UUID:
    run_id = run_in_state(ledger, State.SUCCESSFUL)
    sql(ledger, "DELETE FROM manta_run WHERE id = %s", [run_id.hex])
    return run_id


def orphaned(ledger: Ledger) -> UUID:
    [claim] = claimed(ledger, worker="never registered", priority=100)
    return claim.id


def orphaned_by_a_loss(ledger: Ledger) -> UUID:
    seen_at = ledger.register(worker_record("lost"))
    [claim] = claimed(ledger, worker="lost", priority=100)
    assert ledger.mark_lost("lost", seen_at)
    return claim.id


def token_given_twice(ledger: Ledger) -> UUID:
    [claim] = claimed(ledger, priority=100)
    run_id = run_in_state(ledger, State.SUCCESSFUL)
    taken = "(SELECT max(token) FROM manta_attempt WHERE run_id = %s)"
    sql(ledger, f"UPDATE manta_run SET token = {taken} WHERE id = %s", [run_id.hex, claim.id.hex])
    return claim.id


def stranded(ledger: Ledger) -> UUID:
    seen_at = ledger.register(worker_record("on Ray", runner="ray"))
    ledger.know_foremen("on Ray", [], RayPlace("session_1/manta", "there:6379/manta"))
    [claim] = claimed(ledger, worker="on Ray", priority=100)
    ledger.mark_lost("on Ray", seen_at)
    return claim.id


def edge_without_run(ledger: Ledger) -> UUID:
    run_id = dependent(ledger, *enqueue(ledger))
    sql(ledger, "DELETE FROM manta_run WHERE id = %s", [run_id.hex])
    return run_id


def waiting_for_nothing(ledger: Ledger) -> UUID:
    precondition = run_in_state(ledger, State.HELD)
    run_id = dependent(ledger, precondition)
    sql(ledger, "DELETE FROM manta_run WHERE id = %s", [precondition.hex])
    return run_id


def gate_without_run(ledger: Ledger) -> UUID:
    [run_id] = enqueue(ledger, hold=True)
    graph.add(ledger, [graph.NewGate(run_id)], [])
    sql(ledger, "DELETE FROM manta_run WHERE id = %s", [run_id.hex])
    return run_id


def promise_without_run(ledger: Ledger) -> UUID:
    [run_id] = enqueue(ledger, hold=True)
    assert ledger.name_promise(run_id, "name")
    sql(ledger, "DELETE FROM manta_run WHERE id = %s", [run_id.hex])
    return run_id


def untold_without_herald(ledger: Ledger) -> UUID:
    precondition = run_in_state(ledger, State.HELD)
    run_id = dependent(ledger, precondition)
    ended = "UPDATE manta_run SET state = 'CANCELLED', finished_at = enqueued_at WHERE id = %s"
    sql(ledger, ended, [precondition.hex])
    return run_id


def gate_miscounted(ledger: Ledger, change: str) -> UUID:
    run_id = dependent(ledger, run_in_state(ledger, State.HELD), run_in_state(ledger, State.HELD))
    sql(ledger, f"UPDATE manta_gate SET {change} WHERE run_id = %s", [run_id.hex])
    return run_id


def gate_ignored(ledger: Ledger, state: State, when: When) -> UUID:
    run_id = dependent(ledger, run_in_state(ledger, state), when=when)
    assert state_of(ledger, run_id) is not State.WAITING
    sql(ledger, "UPDATE manta_run SET state = 'WAITING', finished_at = NULL WHERE id = %s", [run_id.hex])
    return run_id


#: One way or more to break each invariant, and nothing else.
BREAKS: dict[str, list[Callable[[Ledger], UUID]]] = {
    "unknown-state": [lambda ledger: broken(ledger, State.READY, "state = 'ASLEEP'")],
    "owned-without-token": [
        lambda ledger: broken(ledger, State.RUNNING, "token = NULL"),
        lambda ledger: broken(ledger, State.RUNNING, "worker = ''"),
        lambda ledger: broken(ledger, State.CANCELLING, "token = NULL, worker = ''"),
    ],
    "token-without-owner": [
        lambda ledger: broken(ledger, State.READY, "token = 17"),
        lambda ledger: broken(ledger, State.CANCELLED, "worker = 'somebody'"),
    ],
    "orphaned": [orphaned, orphaned_by_a_loss],
    "token-given-twice": [token_given_twice],
    "stranded": [stranded],
    "end-without-finish": [
        lambda ledger: broken(ledger, State.CANCELLED, "finished_at = NULL"),
        lambda ledger: broken(ledger, State.SUCCESSFUL, "finished_at = NULL"),
    ],
    "finish-without-end": [
        lambda ledger: broken(ledger, State.READY, "finished_at = enqueued_at"),
        lambda ledger: broken(ledger, State.RUNNING, "finished_at = enqueued_at"),
    ],
    "scheduled-without-date": [lambda ledger: broken(ledger, State.SCHEDULED, "due_at = NULL")],
    "date-without-schedule": [
        lambda ledger: broken(ledger, State.READY, "due_at = enqueued_at"),
        lambda ledger: broken(ledger, State.SUCCESSFUL, "due_at = enqueued_at"),
    ],
    "attempts-miscounted": [
        lambda ledger: broken(ledger, State.READY, "attempts = 3"),
        lambda ledger: broken(ledger, State.RUNNING, "attempts = 0"),
        lambda ledger: broken(ledger, State.SUCCESSFUL, "attempts = 2"),
    ],
    "success-unproven": [
        lambda ledger: broken(ledger, State.CANCELLED, "state = 'SUCCESSFUL'"),
        lambda ledger: broken(ledger, State.SUCCESSFUL, "state = 'FAILED'"),
    ],
    "settled-twice": [settled_twice],
    "attempt-without-run": [attempt_without_run],
    "edge-without-run": [edge_without_run],
    "gate-without-run": [gate_without_run],
    "promise-without-run": [promise_without_run],
    "run-without-workflow": [
        lambda ledger: broken(ledger, State.READY, "workflow_id = '0190b3c27b1e7c3a9b1a0123456789ab'")
    ],
    "waiting-without-gate": [lambda ledger: run_in_state(ledger, State.WAITING)],
    "untold-without-herald": [untold_without_herald],
    "waiting-for-nothing": [waiting_for_nothing],
    "gate-miscounted": [
        lambda ledger: gate_miscounted(ledger, "pending_after = 3"),
        lambda ledger: gate_miscounted(ledger, "met_after = 1, pending_after = 1"),
        lambda ledger: gate_miscounted(ledger, "pending_values = 1"),
    ],
    "gate-ignored": [
        lambda ledger: gate_ignored(ledger, State.SUCCESSFUL, When.ALL_SUCCESSFUL),
        lambda ledger: gate_ignored(ledger, State.CANCELLED, When.ALL_SUCCESSFUL),
        lambda ledger: gate_ignored(ledger, State.CANCELLED, When.ALL_FINISHED),
        lambda ledger: gate_ignored(ledger, State.CANCELLED, When.ANY_SUCCESSFUL),
        lambda ledger: gate_ignored(ledger, State.CANCELLED, When.ANY_FINISHED),
    ],
}
#: What a repair puts right, by a statement of its own or by counting anew.
MENDED = {*fsck.REPAIRABLE, *fsck.RECOUNTED, "edge-without-run"}
WAYS = [
    pytest.param(check, way, id=f"{check}-{number}")
    for check, ways in BREAKS.items()
    for number, way in enumerate(ways, start=1)
]


@pytest.fixture(autouse=True)
def registered(ledger: Ledger) -> None:
    ledger.register(worker_record())


def test_the_cases_here_are_all_the_checks_there_are(ledger: Ledger) -> None:
    text = statement(ledger.dialect.name, "fsck")
    assert set(re.findall(r"SELECT\s+'([a-z-]+)'", text)) == set(BREAKS)
    assert set(fsck.REPAIRABLE) <= set(BREAKS)
    for check in fsck.REPAIRABLE:
        assert statement(ledger.dialect.name, "repair_" + check.replace("-", "_"))


@pytest.mark.parametrize(("check", "way"), WAYS)
def test_a_broken_invariant_is_found_and_mended_if_it_can_be(
    ledger: Ledger, check: str, way: Callable[[Ledger], UUID]
) -> None:
    bystanders = [run_in_state(ledger, state) for state in (State.RUNNING, State.SUCCESSFUL, State.SCHEDULED)]
    before = ledger.fetch(bystanders)
    run_id = way(ledger)
    [finding] = fsck.check(ledger)
    assert (finding.check, finding.run_id, finding.repaired) == (check, run_id, False)
    assert finding.detail

    [finding] = fsck.repair(ledger)
    mended = check in MENDED
    assert (finding.check, finding.run_id, finding.repaired) == (check, run_id, mended)
    assert fsck.check(ledger) == ([] if mended else [finding])
    assert ledger.fetch(bystanders) == before


@pytest.mark.parametrize("check", fsck.REPAIRABLE)
def test_what_was_put_right_meanwhile_is_left_alone(
    ledger: Ledger, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = BREAKS[check][0](ledger)
    look = fsck.check

    def put_right_after_the_look(ledger: Ledger, limit: int, seals: object = None) -> list[fsck.Finding]:
        findings = look(ledger, limit)
        for table in ("manta_attempt", "manta_gate", "manta_promise"):
            sql(ledger, f"DELETE FROM {table} WHERE run_id = %s", [run_id.hex])
        sql(
            ledger,
            "UPDATE manta_run SET state = 'READY', token = NULL, worker = '', finished_at = NULL, due_at = NULL,"
            " attempts = 0 WHERE id = %s",
            [run_id.hex],
        )
        return findings

    monkeypatch.setattr(fsck, "check", put_right_after_the_look)
    [finding] = fsck.repair(ledger)
    assert (finding.check, finding.repaired) == (check, False)
    assert look(ledger) == []


def test_a_repaired_run_goes_on(ledger: Ledger) -> None:
    run_id = broken(ledger, State.RUNNING, "token = NULL")
    fsck.repair(ledger)
    assert (the(ledger, run_id).state, the(ledger, run_id).attempts) == (State.READY, 0)
    [claim] = ledger.claim("worker", ["default"], 1)
    ledger.settle([settlement(claim)])
    assert fsck.check(ledger) == []


def test_counting_anew_leads_runs_where_their_gates_say(ledger: Ledger) -> None:
    let_go = gate_ignored(ledger, State.SUCCESSFUL, When.ALL_SUCCESSFUL)
    forbidden = untold_without_herald(ledger)
    waiting = gate_miscounted(ledger, "pending_after = 0, met_after = 2")
    lone = run_in_state(ledger, State.WAITING)
    fsck.repair(ledger)
    states = [state_of(ledger, run_id) for run_id in (let_go, forbidden, waiting, lone)]
    assert states == [State.READY, State.UPSTREAM_FAILED, State.WAITING, State.READY]


COUNTERS = ["pending_values", "bad_values", "pending_after", "met_after", "bad_after", "consumed"]


def waiting_for_many(ledger: Ledger, when: When) -> UUID:
    """A run that needs a value still to come, and waits for good, unfinished and, if it may, bad ones."""
    after = [run_in_state(ledger, State.SUCCESSFUL), run_in_state(ledger, State.HELD)]
    if when is not When.ALL_SUCCESSFUL:
        after.append(run_in_state(ledger, State.CANCELLED))
    [run_id] = enqueue(ledger, waits=True)
    edges = [graph.Edge(run_id, each, Role.AFTER) for each in after]
    edges.append(graph.Edge(run_id, run_in_state(ledger, State.HELD), Role.VALUE))
    graph.add(ledger, [graph.NewGate(run_id, when)], edges)
    graph.arm(ledger, [run_id])
    assert state_of(ledger, run_id) is State.WAITING
    assert fsck.check(ledger) == []
    return run_id


def counted(ledger: Ledger, run_id: UUID) -> list[tuple[object, ...]]:
    gate = sql(ledger, f"SELECT armed, {', '.join(COUNTERS)} FROM manta_gate WHERE run_id = %s", [run_id.hex])
    edges = "SELECT on_id, role, told, met, called FROM manta_dependency WHERE run_id = %s ORDER BY id"
    return gate + sql(ledger, edges, [run_id.hex])


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("change", [1, -1])
def test_a_counter_changed_by_hand_is_found_and_put_right(
    ledger: Ledger, when: When, counter: str, change: int
) -> None:
    run_id = waiting_for_many(ledger, when)
    right = counted(ledger, run_id)
    sql(ledger, f"UPDATE manta_gate SET {counter} = {counter} + %s WHERE run_id = %s", [change, run_id.hex])
    assert "gate-miscounted" in {finding.check for finding in fsck.check(ledger) if finding.run_id == run_id}
    assert all(finding.repaired for finding in fsck.repair(ledger))
    assert fsck.check(ledger) == []
    assert counted(ledger, run_id) == right
    assert state_of(ledger, run_id) is State.WAITING


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("flag", ["told", "met"])
def test_an_edge_changed_by_hand_is_found_and_put_right(ledger: Ledger, when: When, flag: str) -> None:
    run_id = waiting_for_many(ledger, when)
    right = counted(ledger, run_id)
    sql(ledger, f"UPDATE manta_dependency SET {flag} = NOT {flag} WHERE run_id = %s", [run_id.hex])
    found = {finding.check for finding in fsck.check(ledger) if finding.run_id == run_id}
    assert {"gate-miscounted", "untold-without-herald"} <= found
    assert all(finding.repaired for finding in fsck.repair(ledger))
    assert fsck.check(ledger) == []
    assert counted(ledger, run_id) == right


def test_a_repair_does_not_forget_a_cancel(ledger: Ledger) -> None:
    run_id = broken(ledger, State.CANCELLING, "worker = ''")
    fsck.repair(ledger)
    assert state_of(ledger, run_id) is State.CANCELLED


def test_orphans_are_for_the_recovery_to_mend(ledger: Ledger) -> None:
    orphaned(ledger)
    ledger.recover(lambda orphan: 3)
    assert fsck.check(ledger) == []


def test_all_at_once_is_found_and_repaired(ledger: Ledger) -> None:
    for ways in BREAKS.values():
        for way in ways:
            way(ledger)
    found = {finding.check for finding in fsck.check(ledger)}
    assert found == set(BREAKS)
    assert len(fsck.check(ledger, limit=3)) == 3
    fsck.repair(ledger)
    assert {finding.check for finding in fsck.check(ledger)} == set(BREAKS) - MENDED


def test_whatever_the_ledger_does_leaves_it_clean(ledger: Ledger) -> None:
    claims = claimed(ledger, len(ASKED) * 2)
    for number, (claim, asked) in enumerate(zip(claims, ASKED * 2, strict=True)):
        if number >= len(ASKED):
            ledger.cancel([claim.id])
        ledger.settle([settlement(claim, *asked)])
        assert fsck.check(ledger) == []
    ids = [claim.id for claim in claims]
    enqueue(ledger, 2, run_after=HOUR)
    enqueue(ledger, 2, expires=-HOUR, hold=True)
    for move in (
        lambda: ledger.retry(ids[:20]),
        lambda: ledger.hold(ids[:15]),
        lambda: ledger.release(ids[:10]),
        lambda: ledger.expire(),
        lambda: ledger.promote(ahead=2 * HOUR),
        lambda: ledger.claim("worker", ["default"], 3),
        lambda: ledger.cancel(ids),
        lambda: [ledger.prune(state, -HOUR) for state in (State.CANCELLED, State.SUCCESSFUL)],
    ):
        move()
        assert fsck.check(ledger) == []


def test_an_attempt_under_way_is_counted(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim, Outcome.RETURNED, State.READY)])
    ledger.claim("worker", ["default"], 1)
    assert fsck.check(ledger) == []


def test_a_token_that_was_written_by_hand_uses_up_no_others(ledger: Ledger) -> None:
    ledger.settle([settlement(claim) for claim in claimed(ledger, 2)])
    sql(ledger, "UPDATE manta_attempt SET token = %s WHERE token = (SELECT max(token) FROM manta_attempt)", [2**62])
    assert tokens.behind(ledger) == 0
    assert not tokens.advance(ledger)
    [claim] = claimed(ledger)
    assert claim.token < 2**32
    sql(ledger, "UPDATE manta_run SET token = %s WHERE id = %s", [2**62, claim.id.hex])
    assert tokens.behind(ledger) == 0
    [claim] = claimed(ledger)
    assert claim.token < 2**32
    ledger.settle([settlement(claim)])
    assert state_of(ledger, claim.id) is State.SUCCESSFUL
