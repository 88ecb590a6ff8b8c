"""Settle: each execution once, by whoever holds it, wherever its outcome leads, whatever it holds."""

from datetime import timedelta
from itertools import product
from json import dumps
from typing import Any

import pytest

from django_manta.ids import new_run_id
from django_manta.ledger import Ledger, Settled, Settlement
from django_manta.moments import to_datetime
from django_manta.states import CHARGED, ENDS, UNSTARTED, WAITING_OUTCOMES, Outcome, State, after
from tests.ledger.given import ASKED, claimed, enqueue, lose, settlement, sql, state_of, the, worker_record

UNSTORABLE = "django_manta.exceptions.UnstorableOutcome"


def something_to_wait_for(ledger: Ledger, outcome: Outcome, asked: State) -> dict[str, Any]:
    """Without it the gate would let the run pass at once."""
    if asked is not State.WAITING:
        return {}
    [unfinished] = enqueue(ledger)
    return {"delegate": dumps(str(unfinished))} if outcome is Outcome.DELEGATED else {"after": (unfinished,)}


@pytest.mark.parametrize(("outcome", "asked"), ASKED)
@pytest.mark.parametrize("state", [State.RUNNING, State.CANCELLING])
def test_sql_and_python_agree_on_where_an_outcome_leads(
    ledger: Ledger, state: State, outcome: Outcome, asked: State
) -> None:
    [claim] = claimed(ledger)
    if state is State.CANCELLING:
        ledger.cancel([claim.id], reason="Nobody wants it.")
    told = settlement(claim, outcome, asked, reason="So it is.", **something_to_wait_for(ledger, outcome, asked))
    settled = ledger.settle([told], "worker")
    reached = after(state, outcome, asked)
    # What waits is counted after the commit: in a transaction of the caller's, by the caller.
    uncounted = outcome in WAITING_OUTCOMES and reached not in ENDS and ledger.session.in_transaction()
    assert settled == Settled({claim.token: reached}, heralds=(claim.id,) if uncounted else ())

    run = the(ledger, claim.id)
    assert run.state is reached
    assert (run.token, run.worker) == (None, "")
    assert (run.finished_at is not None) == (reached in ENDS)
    assert (run.due_at is not None) == (reached is State.SCHEDULED)
    assert run.attempts == (0 if outcome in UNSTARTED else 1)
    assert run.failures == (1 if outcome in CHARGED else 0)
    assert run.crashes == (1 if outcome is Outcome.CRASHED else 0)
    assert run.losses == (1 if outcome is Outcome.LOST else 0)
    assert run.reason == (
        "Nobody wants it." if state is State.CANCELLING and reached is State.CANCELLED else "So it is."
    )
    [attempt] = run.history
    assert (attempt.token, attempt.number, attempt.outcome, attempt.worker) == (claim.token, 1, outcome, "worker")


@pytest.mark.parametrize(
    ("outcome", "state"), [pair for pair in product(Outcome, State) if pair not in ASKED and pair[1] in ENDS]
)
def test_an_outcome_that_leads_elsewhere_cannot_even_be_written_down(outcome: Outcome, state: State) -> None:
    with pytest.raises(ValueError, match=f"ended {outcome} cannot leave its run {state}"):
        Settlement(run_id=new_run_id(), token=1, outcome=outcome, next_state=state)


@pytest.mark.parametrize(("state", "delay"), [(State.READY, 1.0), (State.SCHEDULED, None)])
def test_a_delay_goes_with_scheduled(state: State, delay: float | None) -> None:
    with pytest.raises(ValueError, match="A delay goes with SCHEDULED"):
        Settlement(run_id=new_run_id(), token=1, outcome=Outcome.FAILED, next_state=state, delay=delay)


def test_an_attempt_keeps_everything_it_is_told(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    told = settlement(
        claim,
        Outcome.FAILED,
        State.FAILED,
        duration=90.25,
        executor="here:17",
        error_class="builtins.ValueError",
        error_message="é \U0001f600 'quoted' %s \\",
        traceback="Traceback …",
        output="said",
        log_ref="log:1",
        peak_memory=2**40,
        reason="It failed.",
    )
    ledger.settle([told], "worker")
    [attempt] = the(ledger, claim.id).history
    for field in ("executor", "error_class", "error_message", "traceback", "output", "log_ref", "peak_memory"):
        assert getattr(attempt, field) == getattr(told, field)
    assert attempt.finished_at - attempt.started_at == timedelta(seconds=90.25)


def test_a_result_is_kept_with_its_signature_until_the_next_attempt(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim, result='["é", 1e16]', result_signature="signed")], "worker")
    run = the(ledger, claim.id)
    assert (run.result, run.result_signature) == ('["é", 1e16]', "signed")


def test_a_delay_counts_from_the_settlement(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim, Outcome.FAILED, State.SCHEDULED, delay=90.5)])
    run = the(ledger, claim.id)
    assert run.due_at is not None
    assert abs(run.due_at - run.history[0].finished_at - timedelta(seconds=90.5)) < timedelta(seconds=10)


def test_a_duration_that_runs_backwards_poisons_nothing(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    assert ledger.settle([settlement(claim, duration=-1.0)]).moved == {claim.token: State.SUCCESSFUL}


# -- the fence -----------------------------------------------------------------------------------


def test_a_worker_that_lost_its_lease_settles_nothing(ledger: Ledger) -> None:
    [claim] = claimed(ledger, worker="late")
    lose(ledger, "late")
    ledger.recover(lambda orphan: 3)
    [again] = ledger.claim("worker", ["default"], 1)
    assert ledger.settle([settlement(claim)], "late") == Settled({}, frozenset({claim.token}))
    assert ledger.settle([settlement(claim)]) == Settled({}, frozenset({claim.token}))
    run = the(ledger, claim.id)
    assert (run.state, run.token, run.worker) == (State.RUNNING, again.token, "worker")
    assert [attempt.outcome for attempt in run.history] == [Outcome.LOST]


def test_a_foreign_worker_settles_nothing(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    assert ledger.settle([settlement(claim)], "somebody else") == Settled({}, frozenset({claim.token}))
    assert ledger.settle([settlement(claim)], "") == Settled({}, frozenset({claim.token}))
    assert state_of(ledger, claim.id) is State.RUNNING
    assert the(ledger, claim.id).history == ()


def test_an_executor_settles_itself_by_its_token_alone(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    assert ledger.settle([settlement(claim)]).moved == {claim.token: State.SUCCESSFUL}


def test_an_unknown_run_is_not_mine(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ghost = Settlement(
        run_id=new_run_id(), token=claim.token + 100, outcome=Outcome.SUCCESSFUL, next_state=State.SUCCESSFUL
    )
    assert ledger.settle([ghost, settlement(claim)], "worker") == Settled(
        {claim.token: State.SUCCESSFUL}, frozenset({ghost.token})
    )


def test_the_token_of_another_run_opens_nothing(ledger: Ledger) -> None:
    first, second = claimed(ledger, 2)
    crossed = [
        Settlement(run_id=first.id, token=second.token, outcome=Outcome.SUCCESSFUL, next_state=State.SUCCESSFUL),
        Settlement(run_id=second.id, token=first.token, outcome=Outcome.SUCCESSFUL, next_state=State.SUCCESSFUL),
    ]
    assert ledger.settle(crossed) == Settled({}, frozenset({first.token, second.token}))
    assert {run.state for run in ledger.fetch([first.id, second.id])} == {State.RUNNING}


@pytest.mark.parametrize("right_one_first", [True, False])
def test_a_crossed_token_makes_no_other_run_wait(ledger: Ledger, right_one_first: bool) -> None:
    first, second = claimed(ledger, 2)
    [unfinished] = enqueue(ledger)
    crossed = Settlement(
        run_id=first.id,
        token=second.token,
        outcome=Outcome.DEFERRED,
        next_state=State.WAITING,
        after=(unfinished,),
    )
    batch = [settlement(second), crossed]
    batch.append(settlement(first, Outcome.DEFERRED, State.WAITING, after=(unfinished,)))
    settled = ledger.settle(batch if right_one_first else [*reversed(batch)])
    assert settled.moved == {first.token: State.WAITING, second.token: State.SUCCESSFUL}
    assert sql(ledger, "SELECT count(*), max(laters) FROM manta_gate") == [(1, 1)]


@pytest.mark.parametrize("right_one_first", [True, False])
def test_a_crossed_token_does_not_displace_the_right_one(ledger: Ledger, right_one_first: bool) -> None:
    first, second = claimed(ledger, 2)
    crossed = Settlement(
        run_id=first.id, token=second.token, outcome=Outcome.FAILED, next_state=State.FAILED, error_class="x.Y"
    )
    batch = [settlement(second), crossed]
    settled = ledger.settle(batch if right_one_first else batch[::-1], "worker")
    assert settled == Settled({second.token: State.SUCCESSFUL})
    assert state_of(ledger, first.id) is State.RUNNING


def test_the_same_settlement_twice_counts_once(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    assert ledger.settle([settlement(claim)], "worker") == Settled({claim.token: State.SUCCESSFUL})
    assert ledger.settle([settlement(claim)], "worker") == Settled({}, frozenset({claim.token}))
    assert ledger.settle([settlement(claim, Outcome.FAILED, State.READY)]) == Settled({}, frozenset({claim.token}))
    run = the(ledger, claim.id)
    assert (run.state, run.attempts, len(run.history)) == (State.SUCCESSFUL, 1, 1)


def test_the_same_settlement_twice_in_a_batch_counts_once(ledger: Ledger) -> None:
    first, second = claimed(ledger, 2)
    batch = [settlement(first), settlement(second), settlement(first), settlement(first)]
    assert ledger.settle(batch, "worker") == Settled({first.token: State.SUCCESSFUL, second.token: State.SUCCESSFUL})
    assert [len(run.history) for run in ledger.fetch([first.id, second.id])] == [1, 1]


def test_the_order_of_a_batch_is_of_no_account(ledger: Ledger) -> None:
    claims = claimed(ledger, 30)
    batch = [settlement(claim, Outcome.FAILED, State.FAILED, error_message=str(claim.id)) for claim in claims]
    batch = batch[::2] + batch[1::2][::-1]
    assert ledger.settle(batch, "worker").moved == {claim.token: State.FAILED for claim in claims}
    for run in ledger.fetch(claim.id for claim in claims):
        assert [attempt.error_message for attempt in run.history] == [str(run.id)]


def test_one_batch_can_lead_everywhere(ledger: Ledger) -> None:
    claims = claimed(ledger, len(ASKED))
    batch = [
        settlement(claim, *asked, **something_to_wait_for(ledger, *asked))
        for claim, asked in zip(claims, ASKED, strict=True)
    ]
    settled = ledger.settle(batch, "worker")
    assert settled.moved == {claim.token: state for claim, (_, state) in zip(claims, ASKED, strict=True)}
    for run, (outcome, state) in zip(ledger.fetch(claim.id for claim in claims), ASKED, strict=True):
        assert (run.state, run.history[-1].outcome) == (state, outcome)


def test_nothing_to_settle_is_nothing_settled(ledger: Ledger) -> None:
    assert ledger.settle([], "worker") == Settled()


# -- what does not count -------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.LOST])
def test_what_died_in_company_is_suspected_but_not_charged(ledger: Ledger, outcome: Outcome) -> None:
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim, outcome, State.READY, suspect=True)])
    run = the(ledger, claim.id)
    assert (run.attempts, run.crashes, run.losses, run.failures) == (1, 0, 0, 0)
    [again] = ledger.claim("worker", ["default"], 1)
    assert again.suspect
    ledger.settle([settlement(again, outcome, State.READY)])
    run = the(ledger, claim.id)
    assert (run.attempts, run.crashes + run.losses) == (2, 1)


def test_a_returned_run_has_not_been_attempted(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim, Outcome.RETURNED, State.READY)], "worker")
    run = the(ledger, claim.id)
    assert (run.attempts, run.started_at, run.last_attempted_at) == (0, None, None)
    [again] = ledger.claim("worker", ["default"], 1)
    assert again.attempts == 1
    assert again.started_at == again.last_attempted_at


def test_returning_a_retry_leaves_the_attempt_before_it_the_latest(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim, Outcome.FAILED, State.READY)])
    [again] = ledger.claim("worker", ["default"], 1)
    sql(ledger, "UPDATE manta_run SET last_attempted_at = deadline")  # as if much time had passed
    ledger.settle([settlement(again, Outcome.RETURNED, State.READY)])
    run = the(ledger, claim.id)
    assert (run.attempts, run.failures) == (1, 1)
    assert run.started_at == to_datetime(claim.started_at)
    assert run.last_attempted_at == run.history[0].started_at
    assert [(attempt.number, attempt.outcome) for attempt in run.history] == [
        (1, Outcome.FAILED),
        (2, Outcome.RETURNED),
    ]


def test_a_run_given_back_before_it_started_can_still_expire(ledger: Ledger) -> None:
    [claim] = claimed(ledger, expires=timedelta(hours=1))
    ledger.settle([settlement(claim, Outcome.RETURNED, State.READY)])
    sql(ledger, "UPDATE manta_run SET expires_at = enqueued_at")
    assert ledger.expire() == [claim.id]


# -- busy rows -----------------------------------------------------------------------------------


@pytest.mark.postgres
def test_a_row_that_somebody_holds_is_busy_and_settled_later(ledger: Ledger, other_ledger: Ledger) -> None:
    claims = claimed(ledger, 3)
    held = claims[1]
    batch = [settlement(claim) for claim in claims]
    with other_ledger.session.transaction():
        sql(other_ledger, "SELECT 1 FROM manta_run WHERE id = %s FOR UPDATE", [held.id])
        first = ledger.settle(batch, "worker")
        assert first == Settled(
            {claim.token: State.SUCCESSFUL for claim in claims if claim is not held},
            busy=frozenset({held.token}),
        )
        assert ledger.settle([settlement(held)]).busy == {held.token}
        assert ledger.settle([settlement(held)], "somebody else") == Settled({}, frozenset({held.token}))
    assert ledger.settle([settlement(held)], "worker") == Settled({held.token: State.SUCCESSFUL})


@pytest.mark.postgres
def test_an_execution_that_is_settling_itself_is_busy_then_no_longer_mine(ledger: Ledger, other_ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    with other_ledger.session.transaction():
        assert other_ledger.settle([settlement(claim)]).moved == {claim.token: State.SUCCESSFUL}
        late = settlement(claim, Outcome.FAILED, State.FAILED)
        assert ledger.settle([late], "worker") == Settled(busy=frozenset({claim.token}))
    assert ledger.settle([late], "worker") == Settled(not_mine=frozenset({claim.token}))
    assert state_of(ledger, claim.id) is State.SUCCESSFUL


# -- what cannot be stored -----------------------------------------------------------------------

TERRIBLE = {
    "nul": {"error_message": "a\0b"},
    "surrogate": {"error_message": "a\ud800b"},
    "both, everywhere": dict.fromkeys(
        ("result", "result_signature", "reason", "executor", "error_class", "error_message", "traceback", "output"),
        "\0\udfff" * 100,
    ),
    "an endless attempt": {"duration": float("inf")},
    "an attempt of no length at all": {"duration": float("nan")},
}


@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize("terrible", TERRIBLE)
def test_one_bad_outcome_never_poisons_its_neighbours(ledger: Ledger, terrible: str, place: int) -> None:
    claims = claimed(ledger, 7)
    bad = claims[place]
    batch = [
        settlement(claim, **(TERRIBLE[terrible] if claim is bad else {"result": "[1]"}))  # type: ignore[arg-type]
        for claim in claims
    ]
    settled = ledger.settle(batch, "worker")
    assert settled == Settled({claim.token: State.FAILED if claim is bad else State.SUCCESSFUL for claim in claims})
    for run in ledger.fetch(claim.id for claim in claims):
        [attempt] = run.history
        if run.id == bad.id:
            assert (run.state, run.result, run.failures) == (State.FAILED, None, 1)
            assert (attempt.outcome, attempt.error_class) == (Outcome.FAILED, UNSTORABLE)
            assert "ended SUCCESSFUL, but the database refused to store it" in attempt.error_message
            assert run.reason == attempt.error_message
        else:
            assert (run.state, run.result, attempt.outcome) == (State.SUCCESSFUL, "[1]", Outcome.SUCCESSFUL)


def test_several_bad_outcomes_each_fail_alone(ledger: Ledger) -> None:
    claims = claimed(ledger, 20)
    bad = {claim.token for claim in claims[::3]}
    batch = [settlement(claim, output="\0" if claim.token in bad else "") for claim in claims]
    moved = ledger.settle(batch, "worker").moved
    assert {token for token, state in moved.items() if state is State.FAILED} == bad
    assert len(moved) == 20


@pytest.mark.parametrize("delay", [1e15, -1e15, float("inf"), float("nan")])
def test_a_delay_beyond_the_calendar_fails_its_own_run(ledger: Ledger, delay: float) -> None:
    good, bad = claimed(ledger, 2)
    settled = ledger.settle([settlement(good), settlement(bad, Outcome.FAILED, State.SCHEDULED, delay=delay)])
    assert settled.moved == {good.token: State.SUCCESSFUL, bad.token: State.FAILED}
    assert the(ledger, bad.id).history[0].error_class == UNSTORABLE


@pytest.mark.postgres
def test_what_only_the_database_refuses_is_found_by_halving(ledger: Ledger) -> None:
    claims = claimed(ledger, 9)
    bad = claims[4]
    batch = [settlement(claim, peak_memory=2**70 if claim is bad else 1) for claim in claims]
    settled = ledger.settle(batch, "worker")
    assert settled.moved == {claim.token: State.FAILED if claim is bad else State.SUCCESSFUL for claim in claims}
    assert the(ledger, bad.id).history[0].error_class == UNSTORABLE


def test_an_unstorable_outcome_of_a_run_that_was_to_be_cancelled_cancels_it(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ledger.cancel([claim.id])
    settled = ledger.settle([settlement(claim, Outcome.FAILED, State.FAILED, error_message="\0")])
    assert settled.moved == {claim.token: State.CANCELLED}


def test_a_stale_outcome_that_cannot_be_stored_changes_nothing(ledger: Ledger) -> None:
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim)])
    assert ledger.settle([settlement(claim, output="\0")]) == Settled({}, frozenset({claim.token}))
    assert state_of(ledger, claim.id) is State.SUCCESSFUL


def test_an_unstorable_outcome_leaves_the_caller_s_transaction_usable(ledger: Ledger) -> None:
    first, second = claimed(ledger, 2)
    with ledger.session.transaction():
        ledger.settle([settlement(first, peak_memory=2**70, output="\ud800")])
        ledger.settle([settlement(second)])
    assert [run.state for run in ledger.fetch([first.id, second.id])] == [State.FAILED, State.SUCCESSFUL]


def test_a_message_of_ten_megabytes_is_stored_beside_its_neighbours(ledger: Ledger) -> None:
    first, second = claimed(ledger, 2)
    message = "x" * 10_000_000 + "é"
    ledger.settle([settlement(first, Outcome.FAILED, State.FAILED, error_message=message), settlement(second)])
    assert the(ledger, first.id).history[0].error_message == message
    assert state_of(ledger, second.id) is State.SUCCESSFUL


def test_settling_sees_only_its_own_runs(ledger: Ledger) -> None:
    bystanders = [*enqueue(ledger, 2, queue="other"), claimed(ledger)[0].id]
    ledger.register(worker_record())
    before = ledger.fetch(bystanders)
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim)], "worker")
    assert ledger.fetch(bystanders) == before
