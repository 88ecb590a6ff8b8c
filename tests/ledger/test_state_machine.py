"""
The ledger against its model: long random lives, compared after every step.

Most examples live inside one transaction that is rolled back, which is fast; some really commit,
through a connection for each worker. Split into parts so that two processes share the work; in CI
each part looks at the same examples every time.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from django_manta.ledger import DjangoSession, Ledger, PostgresSession, RunRecord, Settlement, fsck, own_session
from django_manta.states import BAD_ENDS, ENDS, OWNED, Outcome, State
from tests.ledger.given import ASKED, HOUR, new_run, worker_record
from tests.ledger.model import FUTURE, PAST, ModelLedger, ModelRun, Told

QUEUES = ["red", "green", "blue"]
STEPS = 20

#: How far from now.
MOMENTS = {None: None, PAST: -HOUR, FUTURE: HOUR}

some = st.lists(st.integers(0, 30), min_size=1, max_size=4)
one = st.integers(0, 30)
moment = st.sampled_from([None, None, None, PAST, FUTURE])
options = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(QUEUES),
        "priority": st.sampled_from([-5, 0, 5]),
        "deadline": st.integers(1, 2),
        "run_after": moment,
        "expires": moment,
        "hold": st.sampled_from([False, False, False, False, True]),
    }
)


def when(found: Callable[["LedgerMachine"], Any]) -> Callable[..., Any]:
    """A rule is only worth a step when it has something to act on."""
    return precondition(lambda self: bool(found(self)))


def stands(run: RunRecord) -> tuple[Any, ...]:
    return (
        run.state,
        (run.attempts, run.failures, run.crashes, run.losses),
        (run.worker, run.token),
        run.finished_at is not None,
        run.due_at is not None,
        (run.started_at is not None, run.last_attempted_at is not None),
        [(attempt.token, attempt.number, attempt.outcome, attempt.worker) for attempt in run.history],
    )


def should_stand(run: ModelRun) -> tuple[Any, ...]:
    return (
        run.state,
        (run.attempts, run.failures, run.crashes, run.losses),
        (run.worker, run.token),
        run.state in ENDS,
        run.due is not None,
        (run.attempts > 0, run.attempts > 0),
        [(tried.token, tried.number, tried.outcome, tried.worker) for tried in run.history],
    )


class LedgerMachine(RuleBasedStateMachine):
    """Every rule does one thing to the ledger and to the model, and compares their answers."""

    #: Opens the ledgers of an example: one for each of three workers, or the same for all.
    open_ledgers: Callable[[], AbstractContextManager[list[Ledger]]]

    def __init__(self) -> None:
        super().__init__()
        self.open = ExitStack()
        self.ledgers = self.open.enter_context(type(self).open_ledgers())
        self.model = ModelLedger()
        self.known: list[UUID] = []
        #: Every execution there ever was, and whose it was first.
        self.executions: list[tuple[UUID, int, str]] = []
        self.steps = 0
        self.names = count()
        for _ in range(2):
            self.register()

    @property
    def ledger(self) -> Ledger:
        """Another connection at each step, where there are several."""
        self.steps += 1
        return self.ledgers[self.steps % len(self.ledgers)]

    def teardown(self) -> None:
        with self.open:
            assert fsck.check(self.ledger) == []

    def compare(self) -> None:
        found = {run.id: stands(run) for run in self.ledger.fetch(self.known)}
        assert found == {run.id: should_stand(run) for run in self.model.runs.values()}

    def worker(self, place: int) -> str:
        return [*self.model.workers][place % len(self.model.workers)]

    def holders(self) -> list[ModelRun]:
        return self.standing(*OWNED)

    def standing(self, *states: State) -> list[ModelRun]:
        return [run for run in self.model.runs.values() if run.state in states]

    # -- the path of a run -----------------------------------------------------------------------

    @initialize(population=st.lists(options, min_size=3, max_size=6), claimed=st.integers(0, 6))
    def begin(self, population: list[dict[str, Any]], claimed: int) -> None:
        for each in population:
            self.enqueue(2, each)
        self.claim(0, QUEUES, len(QUEUES), claimed)

    @rule(number=st.integers(1, 4), asked=options)
    def enqueue(self, number: int, asked: dict[str, Any]) -> None:
        runs = [
            new_run(
                asked["queue"],
                priority=asked["priority"],
                deadline=timedelta(days=asked["deadline"]),
                run_after=MOMENTS[asked["run_after"]],
                expires=MOMENTS[asked["expires"]],
                hold=asked["hold"],
            )
            for _ in range(number)
        ]
        for run, enqueued in zip(runs, self.ledger.enqueue(runs), strict=True):
            assert (enqueued.id, enqueued.state) == (run.id, self.model.enqueue(run.id, **asked))
            self.known.append(run.id)
        self.compare()

    @when(lambda self: self.standing(State.READY))
    @rule(worker=one, queues=st.permutations(QUEUES), width=st.integers(1, 3), limit=st.integers(1, 6))
    def claim(self, worker: int, queues: list[str], width: int, limit: int) -> None:
        name = self.worker(worker)
        expected = self.model.claimable(name, queues[:width], limit)
        claims = self.ledger.claim(name, queues[:width], limit)
        assert [claim.id for claim in claims] == expected
        newest = max((token for _, token, _ in self.executions), default=0)
        assert all(claim.token > newest for claim in claims)
        self.model.claim(name, {claim.id: claim.token for claim in claims})
        for claim in claims:
            run = self.model.runs[claim.id]
            assert (claim.suspect, claim.attempts, claim.worker) == (run.suspect, run.attempts, name)
            if run.attempts > 1:
                assert [attempt.token for attempt in claim.history] == [tried.token for tried in run.history]
            self.executions.append((claim.id, claim.token, name))
        self.compare()

    @when(lambda self: self.standing(State.READY))
    @rule(worker=one, limit=st.integers(3, 9))
    def claim_everywhere(self, worker: int, limit: int) -> None:
        self.claim(worker, QUEUES, len(QUEUES), limit)

    @when(lambda self: self.holders())
    @rule(
        places=some,
        asked=st.lists(st.sampled_from(ASKED), min_size=4, max_size=4),
        due=st.sampled_from([PAST, FUTURE]),
        company=st.booleans(),
        by_worker=st.booleans(),
    )
    def settle(
        self, places: list[int], asked: list[tuple[Outcome, State]], due: str, company: bool, by_worker: bool
    ) -> None:
        """A worker settles what it holds, or an executor what it executes."""
        held = [(run.id, run.token, run.worker) for run in self.holders() if run.token is not None]
        chosen = [held[place % len(held)] for place in places]
        batch = [
            self.told(run_id, token, outcome, due, company)
            for (run_id, token, _), outcome in zip(chosen, asked, strict=False)
        ]
        self.settled(batch, chosen[0][2] if by_worker else None)

    @when(lambda self: self.executions)
    @rule(
        places=some,
        asked=st.lists(st.sampled_from(ASKED), min_size=4, max_size=4),
        by=st.sampled_from(["its worker", "an executor", "somebody else"]),
        crossed=st.booleans(),
    )
    def settle_too_late(self, places: list[int], asked: list[tuple[Outcome, State]], by: str, crossed: bool) -> None:
        """Any execution there ever was, settled by anybody, with its own token or its neighbour's."""
        chosen = [self.executions[place % len(self.executions)] for place in places]
        batch = [
            self.told(chosen[place - 1][0] if crossed else run_id, token, outcome, FUTURE, False)
            for place, ((run_id, token, _), outcome) in enumerate(zip(chosen, asked, strict=False))
        ]
        self.settled(batch, {"its worker": chosen[0][2], "an executor": None}.get(by, by))

    def told(self, run_id: UUID, token: int, asked: tuple[Outcome, State], due: str, company: bool) -> Told:
        outcome, state = asked
        suspect = company and outcome in (Outcome.CRASHED, Outcome.LOST)
        return Told(run_id, token, outcome, state, due if state is State.SCHEDULED else None, suspect)

    def settled(self, batch: list[Told], worker: str | None) -> None:
        settlements = [
            Settlement(
                run_id=told.run_id,
                token=told.token,
                outcome=told.outcome,
                next_state=told.asked,
                delay=None if told.due is None else MOMENTS[told.due].total_seconds(),  # type: ignore[union-attr]
                suspect=told.suspect,
            )
            for told in batch
        ]
        settled = self.ledger.settle(settlements, worker)
        moved, refused = self.model.settle(batch, worker)
        assert (settled.moved, settled.not_mine, settled.busy) == (moved, refused, frozenset())
        self.compare()

    @when(lambda self: self.holders())
    @rule(worker=one, started=st.booleans())
    def stop(self, worker: int, started: bool) -> None:
        """A worker gives back what it holds: returned what has not started, interrupted the rest."""
        name = self.worker(worker)
        batch = [
            Told(run.id, run.token, Outcome.INTERRUPTED if started else Outcome.RETURNED, State.READY)
            for run in self.model.held_by(name)
            if run.token is not None
        ]
        self.settled(batch, name)

    # -- keeping the house -----------------------------------------------------------------------

    @when(lambda self: self.standing(State.SCHEDULED))
    @rule(ahead=st.booleans())
    def promote(self, ahead: bool) -> None:
        assert self.ledger.promote(ahead=2 * HOUR if ahead else timedelta(0)) == self.model.promote(ahead)
        self.compare()

    @when(lambda self: any(run.is_expired for run in self.model.runs.values()))
    @rule()
    def expire(self) -> None:
        assert set(self.ledger.expire()) == self.model.expire()
        self.compare()

    @when(lambda self: self.standing(*ENDS))
    @rule(place=one, limit=st.integers(1, 3))
    def prune(self, place: int, limit: int) -> None:
        ended = self.standing(*ENDS)
        state = ended[place % len(ended)].state
        deleted, after = 0, None
        while True:
            step = self.ledger.prune(state, -HOUR, limit=limit, after=after)
            deleted, after = deleted + step.deleted, step.next
            if after is None:
                break
        assert deleted == self.model.prune(state)
        self.compare()

    # -- what a person decides -------------------------------------------------------------------

    @rule(verb=st.sampled_from(["cancel", "hold", "release", "retry"]), places=some)
    def decide(self, verb: str, places: list[int]) -> None:
        self.decided(verb, [self.known[place % len(self.known)] for place in places])

    @when(lambda self: self.standing(State.HELD))
    @rule(places=some)
    def release(self, places: list[int]) -> None:
        held = self.standing(State.HELD)
        self.decided("release", [held[place % len(held)].id for place in places])

    @when(lambda self: self.standing(*BAD_ENDS))
    @rule(places=some)
    def retry(self, places: list[int]) -> None:
        ended = self.standing(*BAD_ENDS)
        self.decided("retry", [ended[place % len(ended)].id for place in places])

    def decided(self, verb: str, ids: list[UUID]) -> None:
        assert getattr(self.ledger, verb)(ids) == getattr(self.model, verb)(ids)
        self.compare()

    @when(lambda self: self.standing(State.READY) or self.model.paused)
    @rule(queue=st.sampled_from(QUEUES))
    def pause(self, queue: str) -> None:
        """One queue at a time: a second call lets the first one go on."""
        for paused in [*self.model.paused]:
            assert self.ledger.resume(paused)
            self.model.paused.remove(paused)
            return
        self.ledger.pause(queue)
        self.model.paused.add(queue)

    # -- workers and their leases ----------------------------------------------------------------

    def register(self) -> None:
        name = f"worker-{next(self.names)}"
        self.ledger.register(worker_record(name))
        self.model.workers[name] = False

    @when(lambda self: self.holders())
    @rule(worker=one)
    def lose(self, worker: int) -> None:
        """A lease is lost, and its worker begins again under a new identity."""
        held = self.holders()
        name = held[worker % len(held)].worker
        if self.model.workers[name]:
            assert self.ledger.beat(name) is None
            return
        seen_at = self.ledger.beat(name)
        assert seen_at is not None
        assert not self.ledger.mark_lost(name, seen_at - timedelta(seconds=1))
        assert self.ledger.mark_lost(name, seen_at)
        self.model.workers[name] = True
        self.register()

    @when(lambda self: [run for run in self.holders() if self.model.workers[run.worker]])
    @rule(max_losses=st.integers(0, 2))
    def recover(self, max_losses: int) -> None:
        recovered = self.ledger.recover(lambda orphan: max_losses)
        assert (recovered.moved, recovered.not_mine, recovered.busy) == (
            self.model.recover(max_losses),
            frozenset(),
            frozenset(),
        )
        self.compare()

    @when(lambda self: self.holders())
    @rule(places=some, stale=st.booleans(), heir=one)
    def adopt(self, places: list[int], stale: bool, heir: int) -> None:
        held = self.holders()
        former = held[places[0] % len(held)].worker
        executions = [(run.id, run.token) for run in held if run.token is not None]
        if stale:
            executions = [(run_id, token) for run_id, token, _ in self.executions]
        executions = [executions[place % len(executions)] for place in places]
        taken = self.ledger.adopt(executions, former, self.worker(heir))
        assert taken == self.model.adopt(executions, former, self.worker(heir))
        self.compare()

    @when(lambda self: len(self.model.workers) > 2)
    @rule(worker=one)
    def leave(self, worker: int) -> None:
        name = self.worker(worker)
        assert self.ledger.leave(name) == self.model.leave(name)


# -- where an example lives ----------------------------------------------------------------------


@contextmanager
def rolled_back(session: PostgresSession | DjangoSession) -> Iterator[list[Ledger]]:
    """One connection, as a worker has it, and one transaction that leaves nothing behind."""
    with ExitStack() as stack:
        if isinstance(session, PostgresSession):
            stack.enter_context(session.connection.transaction(force_rollback=True))
        else:
            cursor = stack.enter_context(session.connection.cursor())
            cursor.execute("BEGIN IMMEDIATE")
            stack.callback(cursor.execute, "ROLLBACK")
        yield [Ledger(session)]


@contextmanager
def rolled_back_by_django() -> Iterator[list[Ledger]]:
    """Django's own connection, inside a transaction of the caller's."""
    with transaction.atomic():
        yield [Ledger(DjangoSession())]
        transaction.set_rollback(True)


@contextmanager
def really_committed(*sessions: PostgresSession | DjangoSession) -> Iterator[list[Ledger]]:
    """Several connections that see of each other only what is committed."""
    try:
        yield [Ledger(session) for session in sessions]
    finally:
        with connection.cursor() as cursor:
            for table in ("manta_attempt", "manta_run", "manta_worker", "manta_queue"):
                cursor.execute(f"DELETE FROM {table}")


def explore(part: str, examples: int, open_ledgers: Callable[[], AbstractContextManager[list[Ledger]]]) -> None:
    # In CI the examples follow from the name: another part looks at others.
    machine = type(part, (LedgerMachine,), {"open_ledgers": staticmethod(open_ledgers)})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=STEPS))


@pytest.fixture
def sessions(committed: None) -> Iterator[list[PostgresSession | DjangoSession]]:
    """Kept open from example to example: to connect costs as much as a whole example."""
    opened = [own_session() for _ in range(3)]
    yield opened
    for session in opened:
        session.close()


@pytest.mark.slow
@pytest.mark.parametrize("part", [1, 2, 3, 4])
def test_the_ledger_does_what_the_model_says(sessions: list[PostgresSession | DjangoSession], part: int) -> None:
    explore(f"RolledBack{part}", 425, lambda: rolled_back(sessions[0]))


@pytest.mark.slow
def test_the_ledger_does_so_through_django_too(committed: None) -> None:
    explore("ThroughDjango", 150, rolled_back_by_django)


@pytest.mark.slow
def test_the_ledger_does_so_when_three_connections_commit(
    sessions: list[PostgresSession | DjangoSession],
) -> None:
    explore("Committed", 150, lambda: really_committed(*sessions))
