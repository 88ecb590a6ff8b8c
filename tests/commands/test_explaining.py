"""Why is it not running? A sentence for every state and cause."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management.base import CommandError
from django.db import connection
from django.tasks import task_backends

from django_manta import State, promise, reject, resolve
from django_manta.commands.explaining import Explanation, explain
from django_manta.commands.looking import Cause
from django_manta.ledger import Claimed, Ledger, graph
from django_manta.models import Run
from django_manta.states import Outcome
from django_manta.testing import run_all
from django_manta.workflow import own
from tests.app import flows, tasks
from tests.commands.conftest import manta, manta_json
from tests.ledger.given import lose, settlement, sql, worker_record
from tests.test_documentation import code, table

pytestmark = pytest.mark.django_db

#: What the tests of this file have seen.
_SEEN: set[Cause] = set()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def worker(ledger: Ledger) -> str:
    """A live worker of the default queue, with room for two."""
    ledger.register(worker_record("w1", slots=2))
    return "w1"


def why(result: Any) -> Explanation:
    run_id = result if isinstance(result, UUID) else UUID(result.id)
    told = explain(task_backends["default"], run_id)  # type: ignore[arg-type]
    assert told is not None
    _SEEN.add(told.cause)
    assert told.sentence.endswith((".", "…")), told.sentence
    assert not told.advice or told.advice.endswith((".", "…")), told.advice
    assert "  " not in told.words
    return told


def arm(ledger: Ledger) -> None:
    """What happens after the commit, which a test inside a transaction does not reach."""
    graph.arm_leftovers(ledger)


def claim(ledger: Ledger, worker: str = "w1", count: int = 1) -> list[Claimed]:
    return ledger.claim(worker, ["default"], count)


# -- ready -------------------------------------------------------------------------------------------


def test_a_paused_queue(ledger: Ledger, worker: str) -> None:
    result = tasks.add.enqueue(1, 1)
    ledger.pause("default")
    told = why(result)
    assert told.cause is Cause.PAUSED_QUEUE
    assert told.sentence.startswith("Queue 'default' is paused since 20")
    assert "`manta resume default`" in told.advice


def test_no_worker_at_all(ledger: Ledger) -> None:
    told = why(tasks.add.enqueue(1, 1))
    assert told.cause is Cause.NO_WORKER
    assert told.sentence == "No live worker claims from queue 'default', whose runner is 'processes'."
    assert told.advice == "Start one: `manage.py manta worker --queues default`."


def test_workers_that_do_not_claim_from_it(ledger: Ledger, settings: Any) -> None:
    ledger.register(worker_record("slow one", queues=("slow",)))
    ledger.register(worker_record("going"))
    ledger.beat("going", stopping=True)
    lose(ledger, "gone")
    told = why(tasks.add.enqueue(1, 1))
    assert told.cause is Cause.NO_WORKER
    assert "Worker going is stopping, last seen" in told.sentence
    assert "Worker gone was declared lost, last seen" in told.sentence
    assert "Live workers claim from slow." in told.sentence
    sql(ledger, "UPDATE manta_worker SET seen_at = started_at, stopping = false WHERE id = 'going'")
    sql(ledger, "UPDATE manta_worker SET seen_at = '2020-01-01 00:00:00' WHERE id = 'going'")
    assert "Worker going is silent, last seen" in why(tasks.add.enqueue(1, 1)).sentence


def test_a_queue_that_nobody_declares_and_one_without_workers(ledger: Ledger, settings: Any) -> None:
    undeclared, inline = tasks.add.enqueue(1, 1), tasks.add.using(queue_name="slow").enqueue(1, 1)
    sql(ledger, "UPDATE manta_run SET queue = 'former' WHERE id = %s", [UUID(undeclared.id).hex])
    assert why(undeclared).advice == "Declare 'former' in the QUEUES of TASKS['default'] and start a worker."
    changed = {"QUEUE_OPTIONS": {"slow": {"runner": "inline"}}}
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": changed}}
    told = why(inline)
    assert "whose runner is 'inline'" in told.sentence
    assert "`drain()`" in told.advice


def test_all_workers_are_busy(ledger: Ledger, worker: str) -> None:
    tasks.add.starmap([(1, 1)] * 2)
    claim(ledger, count=2)
    tasks.add.starmap([(1, 1)] * 3)
    result, urgent = tasks.add.enqueue(1, 1), tasks.add.using(priority=5).enqueue(1, 1)
    told = why(result)
    assert told.cause is Cause.WORKERS_BUSY
    assert told.sentence == (
        "The one live worker of its queue is busy with 2 runs. There are 4 ready runs before it in queue 'default'."
    )
    assert "There are 0 ready runs before it" in why(urgent).sentence
    ledger.register(worker_record("w2"))
    ledger.claim("w2", ["default"], 1)
    assert why(result).sentence.startswith("All 2 live workers of its queue are busy with 3 runs.")


def test_a_worker_is_about_to_take_it(ledger: Ledger, worker: str) -> None:
    told = why(tasks.add.enqueue(1, 1))
    assert (told.cause, told.sentence) == (
        Cause.NEXT,
        "A worker takes it at its next look. There are 0 ready runs before it in queue 'default'.",
    )


def test_a_suspect_travels_alone(ledger: Ledger, worker: str) -> None:
    result = tasks.add.enqueue(1, 1)
    [claimed] = claim(ledger)
    ledger.settle([settlement(claimed, Outcome.INTERRUPTED, State.READY, suspect=True)])
    told = why(result)
    assert told.cause is Cause.SUSPECT
    assert "it travels alone" in told.sentence


def test_workers_that_cannot_vouch_for_it(ledger: Ledger, worker: str) -> None:
    result = tasks.add.enqueue(1, 1)
    [claimed] = claim(ledger)
    refusal = {"refused": True, "reason": "There is no task 'new.release'."}
    ledger.settle([settlement(claimed, Outcome.RETURNED, State.SCHEDULED, delay=30.0, **refusal)])
    told = why(result)
    assert (told.state, told.cause) == (State.SCHEDULED, Cause.REFUSED)
    assert "There is no task 'new.release'. It is shown to them again in 3" in told.sentence
    assert "It fails if that goes on until 20" in told.sentence
    ledger.promote(ahead=timedelta(minutes=1))
    told = why(result)
    assert (told.state, told.cause) == (State.READY, Cause.REFUSED)
    assert "after 0 ready runs" in told.sentence
    assert "SECRET_KEY" in told.advice


def test_it_expired_and_nobody_has_ended_it(ledger: Ledger, worker: str) -> None:
    result = tasks.add.using(expires=timedelta(hours=1)).enqueue(1, 1)
    sql(ledger, "UPDATE manta_run SET expires_at = enqueued_at WHERE id = %s", [UUID(result.id).hex])
    told = why(result)
    assert told.cause is Cause.EXPIRED
    assert "no worker takes it any more" in told.sentence


# -- held and scheduled ------------------------------------------------------------------------------


def test_held(ledger: Ledger, worker: str) -> None:
    held, enqueued_so = tasks.add.enqueue(1, 1), tasks.add.using(hold=True).enqueue(1, 1)
    ledger.hold([UUID(held.id)], "wait for the audit")
    told = why(held)
    assert (told.cause, told.sentence) == (Cause.HELD, "A person keeps it back: wait for the audit.")
    assert told.advice == f"`manta release {held.id}` lets it go."
    assert why(enqueued_so).sentence == "It was enqueued with hold=True and is kept back."
    ledger.release([UUID(held.id)])
    ledger.hold([UUID(held.id)])
    assert why(held).sentence == "A person keeps it back."


def test_what_comes_after_a_hold(ledger: Ledger, worker: str) -> None:
    first = tasks.add.enqueue(1, 1)
    waits = tasks.add.using(hold=True).enqueue(first, 1)
    assert why(waits).also == (f"Then it waits for tests.app.tasks.add {first.id}, which is READY.",)
    later = tasks.add.using(hold=True, run_after=timedelta(hours=1)).enqueue(1, 1)
    assert why(later).also[0].startswith("Then it is due at 20")


def test_scheduled_for_later(ledger: Ledger, worker: str) -> None:
    told = why(tasks.add.using(run_after=timedelta(hours=1)).enqueue(1, 1))
    assert told.cause is Cause.DUE_LATER
    assert told.sentence.startswith("It was asked to run later: it is due in ")
    assert told.also == ()
    ledger.pause("default")
    told = why(tasks.add.using(run_after=timedelta(hours=1)).enqueue(1, 1))
    assert told.also[0].startswith("Queue 'default' is paused")


def test_scheduled_after_a_failure(worker: str) -> None:
    result = flows.fail_for_ten_minutes.enqueue()
    run_all()
    told = why(result)
    assert told.cause is Cause.RETRY_LATER
    assert told.sentence.startswith("Attempt 1 ended FAILED (ValueError: not now); the next one is due in ")


def test_scheduled_because_the_database_could_not_be_reached(ledger: Ledger, worker: str) -> None:
    """How an executor comes to say so: tests/test_unreachable.py."""
    result = tasks.add.enqueue(1, 1)
    [claimed] = claim(ledger)
    words = "The database could not be reached before the task was called: connection refused"
    given_back = replace(
        settlement(claimed, Outcome.RETURNED, State.SCHEDULED),
        delay=30.0,
        executor="node-7:4711",
        error_class="django.db.utils.OperationalError",
        error_message=words,
        refused=True,
    )
    ledger.settle([given_back], worker)
    told = why(result)
    assert told.cause is Cause.DATABASE_UNREACHABLE
    assert told.sentence.startswith(f"node-7:4711 gave it back: {words}. It is shown to them again in ")


def test_scheduled_because_it_asked_for_it(worker: str) -> None:
    result = flows.again_in_an_hour.enqueue()
    run_all()
    told = why(result)
    assert (told.state, told.cause) == (State.SCHEDULED, Cause.CALLED_AGAIN_LATER)
    assert "It asked to be called again (once so far), which is due in" in told.sentence
    assert told.sentence.endswith(": the shop is closed.")


def test_overdue(ledger: Ledger) -> None:
    result = tasks.add.using(run_after=timedelta(hours=1)).enqueue(1, 1)
    sql(ledger, "UPDATE manta_run SET due_at = '2020-01-01 00:00:00' WHERE id = %s", [UUID(result.id).hex])
    told = why(result)
    assert told.cause is Cause.OVERDUE
    assert told.advice == "Start a worker: none is alive."
    ledger.register(worker_record())
    assert why(result).advice == "A live worker does so at its next look."


def test_scheduled_without_a_date(ledger: Ledger) -> None:
    result = tasks.add.using(run_after=timedelta(hours=1)).enqueue(1, 1)
    sql(ledger, "UPDATE manta_run SET due_at = NULL WHERE id = %s", [UUID(result.id).hex])
    assert "manta fsck" in why(result).advice


# -- waiting -----------------------------------------------------------------------------------------


@pytest.fixture
def of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for was enqueued in an earlier transaction, so that it is counted after the commit."""
    monkeypatch.setattr(own, "runs", lambda database: set())


@pytest.mark.usefixtures("of_before")
def test_nobody_has_counted_what_it_waits_for(ledger: Ledger) -> None:
    first = tasks.add.enqueue(1, 1)
    result = tasks.add.enqueue(first, 1)
    told = why(result)
    assert told.cause is Cause.NOT_COUNTED
    assert told.sentence.startswith("It waits for 1 run, and for ")
    assert told.advice == "A worker would do so, but none is alive: start one."


@pytest.mark.usefixtures("of_before")
def test_it_waits_for_what_somebody_removed_behind_the_ledgers_back(ledger: Ledger) -> None:
    first = tasks.add.using(hold=True).enqueue(1, 1)
    result = tasks.add.enqueue(first, 1)
    arm(ledger)
    sql(ledger, "DELETE FROM manta_run WHERE id = %s", [UUID(first.id).hex])
    told = why(result)
    assert told.cause is Cause.WAITS_FOR_NOTHING
    assert told.advice is not None
    assert "fsck --repair" in told.advice


def test_it_waits_for_runs_and_the_root_of_it_is_told(ledger: Ledger, worker: str) -> None:
    held = tasks.add.using(hold=True).enqueue(1, 1)
    middle = tasks.add.enqueue(held, 1)
    done = tasks.add.enqueue(2, 2)
    result = tasks.add.enqueue(middle, done)
    run_all()
    told = why(result)
    assert (told.cause, told.sentence) == (
        Cause.WAITS_FOR_RUNS,
        f"It waits for 1 of 2 runs: tests.app.tasks.add {middle.id}, which is WAITING.",
    )
    assert [run.id for run in told.runs] == [UUID(middle.id)]
    assert told.root is not None
    assert (told.root.id, told.root.cause) == (UUID(held.id), Cause.HELD)
    assert manta("explain", result.id).lines == [
        f"tests.app.tasks.add {result.id} is WAITING.",
        told.sentence,
        "",
        f"At the root of it: tests.app.tasks.add {held.id} is HELD.",
        told.root.words,
    ]


def test_when_and_many(ledger: Ledger, worker: str) -> None:
    group = tasks.add.using(hold=True).starmap([(n, n) for n in range(30)])
    result = flows.note.using(after=[group], when="any_finished").enqueue()
    arm(ledger)
    told = why(result)
    assert told.sentence.startswith("It waits for any of 30 runs more (when=any_finished): tests.app.tasks.add ")
    assert told.sentence.endswith("; 27 more.")
    assert len(told.runs) == 20


def test_what_is_in_the_way_of_both_is_said_once(ledger: Ledger) -> None:
    result = tasks.add.enqueue(tasks.add.enqueue(1, 1), 1)
    arm(ledger)
    told = why(result)
    assert told.root is not None
    assert told.root.cause is Cause.NO_WORKER
    assert told.also == ()


def test_it_delegated(worker: str) -> None:
    result = flows.delegate.enqueue(1, 2)
    ledger = Ledger()
    [claimed] = claim(ledger)
    child = tasks.add.using(hold=True).enqueue(1, 2)
    ledger.settle([settlement(claimed, Outcome.DELEGATED, State.WAITING, delegate=f'"{child.id}"')])
    arm(ledger)
    told = why(result)
    assert (told.cause, told.sentence) == (
        Cause.DELEGATED,
        f"It has delegated to tests.app.tasks.add {child.id}, which is HELD.",
    )
    assert told.root is not None
    assert told.root.id == UUID(child.id)


def test_it_asked_to_be_called_after_another(worker: str) -> None:
    held = tasks.add.using(hold=True).enqueue(1, 1)
    result = flows.again_after.enqueue(held.id)
    run_all()
    told = why(result)
    assert told.cause is Cause.WAITS_FOR_RUNS
    assert told.sentence.startswith(
        "It asked to be called again (once so far, saying one more is needed). It waits for 1 of 1 run "
    )
    assert manta_json("show", result.id)["laters"] == 1


def test_all_that_it_waits_for_has_ended_and_nobody_told(ledger: Ledger, worker: str) -> None:
    held = tasks.add.using(hold=True).enqueue(1, 1)
    result = tasks.add.enqueue(held, 1)
    arm(ledger)
    sql(
        ledger,
        "UPDATE manta_run SET state = 'SUCCESSFUL', finished_at = enqueued_at WHERE id = %s",
        [UUID(held.id).hex],
    )
    told = why(result)
    assert (told.cause, told.advice) == (Cause.NOT_TOLD, "A live worker does so at its next look.")


def test_a_promise_nobody_has_settled(ledger: Ledger, worker: str) -> None:
    approval = promise("approval", expires=timedelta(days=1))
    result = tasks.add.enqueue(approval, 1)
    arm(ledger)
    told = why(result)
    assert told.sentence == f"It waits for 1 of 1 run: promise 'approval' {approval.id}, which is WAITING."
    assert told.root is not None
    assert told.root.cause is Cause.PROMISE
    assert told.root.sentence.startswith("It is a promise 'approval' that nobody has settled for ")
    assert "It expires at 20" in told.root.sentence
    assert told.root.advice == "Call `resolve('approval', value)` or `reject('approval', reason)`."
    nameless = promise()
    assert why(nameless).advice.startswith(f"Call `resolve('{nameless.id}', value)`")
    resolve("approval", 1)
    assert why(approval).cause is Cause.ENDED_WELL
    reject(nameless.id, "no money")
    assert "no money" in why(nameless).sentence


def test_it_waits_and_nothing_says_for_what(ledger: Ledger) -> None:
    result = tasks.add.enqueue(1, 1)
    sql(ledger, "UPDATE manta_run SET state = 'WAITING' WHERE id = %s", [UUID(result.id).hex])
    assert why(result).cause is Cause.NO_GATE


# -- running -----------------------------------------------------------------------------------------


def test_running(ledger: Ledger, worker: str) -> None:
    with_timeout, without = flows.take_a_minute.enqueue(), tasks.add.enqueue(1, 1)
    claim(ledger, count=2)
    told = why(with_timeout)
    assert told.cause is Cause.RUNNING
    assert told.sentence.startswith("Worker w1 has it for ")
    assert "(here, process 1, seen " in told.sentence
    assert told.sentence.endswith("; its timeout is 1m00s.")
    assert why(without).sentence.endswith(", without a timeout.")
    sql(ledger, "UPDATE manta_run SET last_attempted_at = '2020-01-01 00:00:00'")
    told = why(with_timeout)
    assert told.cause is Cause.PAST_TIMEOUT
    assert "longer than its timeout of 1m00s" in told.sentence
    sql(ledger, "UPDATE manta_worker SET seen_at = '2020-01-01 00:00:00'")
    assert "which is silent" in why(without).sentence


def test_ray_does_not_begin_it(ledger: Ledger, worker: str) -> None:
    hopeless, beside = tasks.add.enqueue(1, 1), tasks.add.enqueue(1, 1)
    claim(ledger, count=2)
    assert ledger.tell_troubles(worker, {hopeless.id: "No node has 8 GPUs."})
    told = why(hopeless)
    assert told.cause is Cause.WAITS_FOR_RAY
    assert told.sentence.endswith("No node has 8 GPUs.")
    assert why(beside).cause is Cause.RUNNING
    assert ledger.tell_troubles(worker, {"": "Ray is away: nobody answers."})
    assert why(beside).cause is Cause.WAITS_FOR_RAY
    assert ledger.tell_troubles(worker, {})
    assert why(hopeless).cause is Cause.RUNNING


def test_its_worker_is_gone(ledger: Ledger) -> None:
    result = tasks.add.enqueue(1, 1)
    claim(ledger, "nobody")
    told = why(result)
    assert (told.cause, told.sentence) == (Cause.WORKER_GONE, "Worker 'nobody' had it and is gone.")
    assert told.advice == "Start a worker: none is alive."
    lose(ledger, "nobody")
    ledger.register(worker_record("another"))
    told = why(result)
    assert told.words == ("Worker 'nobody' had it and was declared lost. A live worker recovers it at its next look.")


def test_cancelling(ledger: Ledger, worker: str) -> None:
    result = tasks.add.enqueue(1, 1)
    claim(ledger)
    ledger.cancel([UUID(result.id)], "wrong customer")
    told = why(result)
    assert told.cause is Cause.CANCELLING
    assert told.sentence.startswith("Somebody asked to cancel it: wrong customer. Worker w1 (here, process 1")


# -- ended -------------------------------------------------------------------------------------------


def test_ended_well() -> None:
    result, delegated = tasks.add.enqueue(1, 1), flows.delegate.enqueue(1, 2)
    run_all()
    assert why(result).sentence.startswith("It ended well at 20")
    assert why(delegated).sentence.startswith("It ended well through what it delegated to, at 20")


def test_failed() -> None:
    result = tasks.fail.enqueue("broken pipe")
    run_all()
    told = why(result)
    assert told.cause is Cause.ENDED_BADLY
    assert "It failed, and max_attempts is 1. Its last attempt ended FAILED (ValueError: broken pipe)." in told.sentence
    assert told.advice == f"`manta retry {result.id}` gives it another chance."


@pytest.mark.parametrize("state", ["CANCELLED", "LOST", "EXPIRED", "QUARANTINED"])
def test_each_bad_end_with_its_reason(ledger: Ledger, state: str) -> None:
    result = tasks.add.enqueue(1, 1)
    sql(
        ledger,
        "UPDATE manta_run SET state = %s, finished_at = enqueued_at, reason = 'It was so.' WHERE id = %s",
        [state, UUID(result.id).hex],
    )
    told = why(result)
    assert (told.state, told.cause) == (State(state), Cause.ENDED_BADLY)
    assert told.sentence.startswith(f"It ended {state} at 20")
    assert told.sentence.endswith(": It was so.")
    assert f"`manta retry {result.id}`" in told.advice


def test_upstream_failed_names_the_root() -> None:
    failed = tasks.fail.enqueue("no")
    middle = tasks.add.enqueue(failed, 1)
    result = tasks.add.enqueue(middle, 1)
    run_all()
    told = why(result)
    assert (told.state, told.cause) == (State.UPSTREAM_FAILED, Cause.UPSTREAM_FAILED)
    assert f"tests.app.tasks.add {middle.id}, which is UPSTREAM_FAILED" in told.sentence
    assert told.advice == f"`manta retry {failed.id}` gives that another chance, and this run with it."
    assert told.root is not None
    assert told.root.id == UUID(failed.id)
    assert told.root.cause is Cause.ENDED_BADLY


def test_upstream_failed_and_nobody_left_to_blame(ledger: Ledger) -> None:
    result = tasks.add.enqueue(tasks.fail.enqueue("no"), 1)
    run_all()
    sql(ledger, "DELETE FROM manta_dependency")
    told = why(result)
    assert told.cause is Cause.UPSTREAM_FAILED
    assert told.root is None


@pytest.mark.usefixtures("of_before")
def test_what_it_needs_is_gone(ledger: Ledger) -> None:
    first = tasks.add.using(hold=True).enqueue(1, 1)
    result = tasks.add.enqueue(first, 1)
    sql(ledger, "DELETE FROM manta_run WHERE id = %s", [UUID(first.id).hex])
    arm(ledger)
    told = why(result)
    assert told.cause is Cause.UPSTREAM_FAILED
    assert told.sentence.endswith("because what it needs does not exist any more: 1 run.")


def test_what_it_delegated_to_failed() -> None:
    result = flows.delegate_to_a_failure.enqueue()
    run_all()
    told = why(result)
    assert (told.state, told.cause) == (State.FAILED, Cause.DELEGATE_FAILED)
    assert "because what it delegated to ended so: tests.app.tasks.fail" in told.sentence
    assert told.root is not None
    assert "the child failed" in told.root.sentence


# -- the verb ----------------------------------------------------------------------------------------


def test_explain_as_data(ledger: Ledger, worker: str) -> None:
    held = tasks.add.using(hold=True).enqueue(1, 1)
    result = tasks.add.enqueue(held, 1)
    arm(ledger)
    told = manta_json("explain", result.id)
    assert (told["id"], told["state"], told["cause"]) == (result.id, "WAITING", "waits_for_runs")
    assert told["runs"] == [{"id": held.id, "name": "tests.app.tasks.add", "state": "HELD"}]
    assert told["root"]["cause"] == "held"


def test_explain_of_what_does_not_exist() -> None:
    with pytest.raises(CommandError, match=r"There is no run .*: it never was, or retention removed it"):
        manta("explain", uuid4())
    with pytest.raises(CommandError, match="is not the id of a run"):
        manta("explain", "12")


def test_a_circle_ends(ledger: Ledger, worker: str) -> None:
    """Arming refuses circles; a row written by hand is explained all the same."""
    first = tasks.add.using(after=[tasks.add.enqueue(1, 1)]).enqueue(1, 1)
    second = tasks.add.enqueue(first, 1)
    arm(ledger)
    sql(ledger, "UPDATE manta_dependency SET on_id = %s WHERE run_id = %s", [UUID(second.id).hex, UUID(first.id).hex])
    assert why(first).root is not None


def test_explaining_costs_the_same_for_many_runs(ledger: Ledger, worker: str) -> None:
    from django.test.utils import CaptureQueriesContext

    def cost(width: int) -> int:
        result = flows.total.enqueue(tasks.add.using(hold=True).starmap([(n, n) for n in range(width)]))
        arm(ledger)
        with CaptureQueriesContext(connection) as said:
            why(result)
        return len(said)

    assert cost(2) == cost(200) <= 16


def test_every_state_has_an_answer(ledger: Ledger) -> None:
    for state in State:
        result = tasks.add.enqueue(1, 1)
        sql(ledger, "UPDATE manta_run SET state = %s WHERE id = %s", [state.value, UUID(result.id).hex])
        assert why(result).state is state
        assert Run.objects.get(pk=result.id).state == state


def test_every_cause_is_documented() -> None:
    assert [code(row["cause"]) for row in table("docs/commands.md", "explain")] == [cause.value for cause in Cause]


@pytest.fixture(scope="module", autouse=True)
def every_cause_is_tested(request: pytest.FixtureRequest) -> Iterator[None]:
    """If this whole file ran in one process, it has seen every cause."""
    yield
    ran = [item for item in request.session.items if item.path == request.path]
    if len(ran) > 40 and not hasattr(request.config, "workerinput") and not request.session.testsfailed:
        assert set(Cause) == _SEEN
