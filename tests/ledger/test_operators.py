"""What a person decides: cancel, hold, release and retry, from every state."""

import pytest

from django_manta.ids import new_run_id
from django_manta.ledger import Ledger
from django_manta.states import BAD_ENDS, ENDS, MOVES, PENDING, Outcome, State
from tests.ledger.given import HOUR, claimed, enqueue, run_in_state, settlement, sql, state_of, the

#: Where each verb leads; from every state that is not named it leads nowhere.
VERBS: dict[str, dict[State, State]] = {
    "cancel": {**dict.fromkeys(PENDING, State.CANCELLED), State.RUNNING: State.CANCELLING},
    "hold": dict.fromkeys(PENDING - {State.HELD}, State.HELD),
    "release": {State.HELD: State.READY},
    "retry": dict.fromkeys(BAD_ENDS, State.READY),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_leads_where_the_table_says_or_nowhere(ledger: Ledger, verb: str, state: State) -> None:
    run_id = run_in_state(ledger, state)
    before = the(ledger, run_id)
    reached = getattr(ledger, verb)([run_id])
    expected = VERBS[verb].get(state)
    run = the(ledger, run_id)
    if expected is None:
        assert reached == {}
        assert run == before
        return
    assert expected in MOVES[state]
    assert reached == {run_id: expected}
    assert run.state is expected
    assert (run.finished_at is not None) == (expected in ENDS)
    assert (run.due_at is not None) == (verb == "hold" and state is State.SCHEDULED)
    assert (run.token, run.worker) == (before.token, before.worker)
    assert (run.attempts, run.history) == (before.attempts, before.history)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_takes_many_and_passes_over_what_does_not_fit(ledger: Ledger, verb: str) -> None:
    runs = {run_in_state(ledger, state): state for state in [*State, *State]}
    reached = getattr(ledger, verb)([*runs, *runs, new_run_id()])
    assert reached == {run_id: VERBS[verb][state] for run_id, state in runs.items() if state in VERBS[verb]}
    assert getattr(ledger, verb)([]) == {}


def test_the_reason_is_kept(ledger: Ledger) -> None:
    first, second, third, fourth = enqueue(ledger, 4)
    ledger.cancel([first], reason="Nobody wants it.")
    ledger.cancel([second])
    ledger.hold([third], reason="Not before Monday.")
    ledger.hold([fourth])
    assert [run.reason for run in ledger.fetch([first, second, third, fourth])] == [
        "Nobody wants it.",
        "It was cancelled.",
        "Not before Monday.",
        "It is held.",
    ]
    ledger.release([third])
    ledger.retry([first])
    assert [run.reason for run in ledger.fetch([first, third])] == ["", ""]


def test_a_running_run_is_cancelled_only_when_nothing_of_it_runs(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    assert ledger.cancel([claim.id], reason="Stop.") == {claim.id: State.CANCELLING}
    run = the(ledger, claim.id)
    assert (run.state, run.worker, run.token, run.finished_at) == (State.CANCELLING, "worker", claim.token, None)
    assert ledger.cancel([claim.id]) == {}
    ledger.settle([settlement(claim, Outcome.INTERRUPTED, State.READY)], "worker")
    run = the(ledger, claim.id)
    assert (run.state, run.reason) == (State.CANCELLED, "Stop.")


def test_success_beats_a_cancel(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ledger.cancel([claim.id])
    ledger.settle([settlement(claim, result="42", result_signature="signed")], "worker")
    run = the(ledger, claim.id)
    assert (run.state, run.result, run.reason) == (State.SUCCESSFUL, "42", "")


def test_a_held_run_keeps_its_date(ledger: Ledger) -> None:
    [run_id] = enqueue(ledger, run_after=HOUR)
    due = the(ledger, run_id).due_at
    ledger.hold([run_id])
    assert the(ledger, run_id).due_at == due
    assert ledger.promote(ahead=2 * HOUR) == 0
    assert ledger.release([run_id]) == {run_id: State.SCHEDULED}
    assert the(ledger, run_id).due_at == due


def test_a_held_run_whose_date_has_passed_is_released_at_once(ledger: Ledger) -> None:
    [run_id] = enqueue(ledger, run_after=HOUR, hold=True)
    sql(ledger, "UPDATE manta_run SET due_at = enqueued_at")
    assert ledger.release([run_id]) == {run_id: State.READY}
    assert the(ledger, run_id).due_at is None


def test_a_retry_by_an_operator_has_a_fresh_budget(ledger: Ledger) -> None:
    [claim] = claimed(ledger, expires=HOUR)
    ledger.save_progress(claim.id, claim.token, '{"done": 1}')
    for outcome in (Outcome.CRASHED, Outcome.LOST, Outcome.TIMED_OUT):
        ledger.settle([settlement(claim, outcome, State.READY)])
        [claim] = ledger.claim("worker", ["default"], 1)
    ledger.settle([settlement(claim, Outcome.FAILED, State.FAILED, reason="Spent.", refused=True)])
    assert ledger.retry([claim.id]) == {claim.id: State.READY}
    run = the(ledger, claim.id)
    assert (run.failures, run.crashes, run.losses) == (0, 0, 0)
    assert (run.reason, run.finished_at, run.expires_at, run.progress) == ("", None, None, None)
    # What happened has happened.
    assert (run.attempts, len(run.history)) == (4, 4)
    assert run.started_at is not None
    [again] = ledger.claim("worker", ["default"], 1)
    assert (again.attempts, again.failures, again.refused_for, len(again.history)) == (5, 0, None, 4)


def test_a_success_is_never_retried(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim, result="1", result_signature="signed")])
    assert ledger.retry([claim.id]) == {}
    assert state_of(ledger, claim.id) is State.SUCCESSFUL
    assert the(ledger, claim.id).result == "1"


def test_an_expired_run_can_be_retried_and_does_not_expire_again(ledger: Ledger) -> None:
    [run_id] = enqueue(ledger, expires=-HOUR)
    ledger.expire()
    ledger.retry([run_id])
    assert ledger.expire() == []
    assert [claim.id for claim in ledger.claim("worker", ["default"], 1)] == [run_id]
