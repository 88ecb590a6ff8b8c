"""
The ledger against its model: long random lives, compared after every step.

Runs wait for runs, and those who tell or arm them may come late, or die half-way: what follows from that is
compared as well. When all has been told nobody waits in vain, the counters are those of the model, and fsck is clean.

Most examples live inside one transaction that is rolled back, which is fast; some really commit,
through a connection for each worker. Split into parts so that two processes share the work; in CI
each part looks at the same examples every time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from copy import deepcopy
from datetime import timedelta
from functools import partial
from itertools import count
from json import dumps
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from django.db import connection, transaction
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from django_manta.ledger import (
    Claimed,
    DjangoSession,
    Ledger,
    PostgresSession,
    RunRecord,
    Settlement,
    fsck,
    graph,
    own_session,
    written,
)
from django_manta.ledger import session as session_module
from django_manta.ledger.claiming import Along, Wanted
from django_manta.ledger.session import statement
from django_manta.ledger.values import delegates_of
from django_manta.states import BAD_ENDS, ENDS, OWNED, Outcome, Role, State, When
from django_manta.workflow.promise import TASK
from tests.ledger.given import ASKED, HOUR, WELL, new_run, sql, worker_record
from tests.ledger.model import FUTURE, PAST, ModelLedger, ModelRun, Told

#: Where tell.sql takes some of the edges, whichever come first.
IN_ITS_ORDER = "LIMIT %(limit)s\n) AS edge"

QUEUES = ["red", "green", "blue"]
STEPS = 20

#: How far from now.
MOMENTS = {None: None, PAST: -HOUR, FUTURE: HOUR}

#: Every outcome, and more often those that others wait for, or that wait for others.
OUTCOMES = [
    *ASKED,
    *[(Outcome.SUCCESSFUL, State.SUCCESSFUL), (Outcome.FAILED, State.FAILED)] * 8,
    *[(Outcome.DELEGATED, State.WAITING), (Outcome.DEFERRED, State.WAITING)] * 4,
]

some = st.lists(st.integers(0, 30), min_size=1, max_size=4)
one = st.integers(0, 30)
few = st.lists(st.integers(0, 30), max_size=2)
four_outcomes = st.lists(st.sampled_from(OUTCOMES), min_size=4, max_size=4)
moment = st.sampled_from([None, None, None, None, None, PAST, FUTURE])
options = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(QUEUES),
        "priority": st.sampled_from([-5, 0, 5]),
        "deadline": st.integers(1, 2),
        "run_after": moment,
        "expires": moment,
        "hold": st.sampled_from([False] * 9 + [True]),
    }
)
PLAIN = {"queue": "red", "priority": 0, "deadline": 1, "run_after": None, "expires": None, "hold": False}
waiting_options = st.fixed_dictionaries(
    {
        "asked": options,
        "mode": st.sampled_from([None, *When]),
        "values": few,
        "after": few,
        "armed": st.sampled_from([True, True, False]),
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
        None if run.delegate is None else [UUID(each) for each in delegates_of(run.delegate)],
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
        None if run.delegates is None else list(run.delegates),
    )


class _Undo(Exception):
    """It was only a trial."""


def pointer(delegates: Sequence[UUID]) -> str:
    """To one run, or to several, or to none."""
    ids = [str(each) for each in delegates]
    return dumps(ids[0] if len(ids) == 1 else ids)


class LedgerMachine(RuleBasedStateMachine):
    """Every rule does one thing to the ledger and to the model, and compares their answers."""

    #: Opens the ledgers of an example: one for each of three workers, or the same for all.
    open_ledgers: Callable[[], AbstractContextManager[list[Ledger]]]

    def __init__(self) -> None:
        super().__init__()
        self.open = ExitStack()
        self.ledgers = self.open.enter_context(type(self).open_ledgers())
        self.model = ModelLedger()
        self.model.tells_at_once = not self.ledgers[0].session.in_transaction()
        self.model.graph.first_ended = self.first_ended
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
            self.quiet()

    def compare(self, ledger: Ledger | None = None, model: ModelLedger | None = None) -> None:
        found = {run.id: stands(run) for run in (ledger or self.ledger).fetch(self.known)}
        assert found == {run.id: should_stand(run) for run in (model or self.model).runs.values()}

    def compare_graph(self) -> None:
        """What is counted, and what it is counted from."""
        ledger, model = self.ledger, self.model.graph
        assert self.edges() == {
            (each.run, each.on, each.role): (each.known is not None, bool(each.known)) for each in model.edges
        }
        gates = sql(ledger, "SELECT run_id, mode, armed, passed, laters FROM manta_gate")
        assert {self.read(run): (When(mode), *rest) for run, mode, *rest in gates} == {
            run_id: (gate.when, gate.armed, gate.at_once, gate.laters) for run_id, gate in model.gates.items()
        }
        heralds = sql(ledger, "SELECT run_id FROM manta_herald")
        assert {self.read(run_id) for [run_id] in heralds} == model.heralds

    def edges(self, ledger: Ledger | None = None) -> dict[tuple[UUID, UUID, Role], tuple[bool, bool]]:
        """Who waits for whom, and knows that it ended, and that it ended well."""
        rows = sql(ledger or self.ledger, "SELECT run_id, on_id, role, told, met FROM manta_dependency")
        return {
            (self.read(run), self.read(on), Role(role)): (bool(told), bool(met)) for run, on, role, told, met in rows
        }

    def read(self, run_id: Any) -> UUID:
        return self.ledgers[0].dialect.read_id(run_id)

    def first_ended(self, ids: Sequence[UUID], ledger: Ledger | None = None) -> UUID:
        """Only the database knows."""
        ended = (ledger or self.ledger).fetch(ids, history=False)
        return min((run.finished_at, run.id) for run in ended if run.finished_at is not None)[1]

    def worker(self, place: int) -> str:
        return [*self.model.workers][place % len(self.model.workers)]

    def holders(self) -> list[ModelRun]:
        return self.standing(*OWNED)

    def standing(self, *states: State) -> list[ModelRun]:
        return [run for run in self.model.runs.values() if run.state in states]

    # -- the path of a run -----------------------------------------------------------------------

    @initialize(population=st.lists(waiting_options, min_size=3, max_size=6), claimed=st.integers(0, 3))
    def begin(self, population: list[dict[str, Any]], claimed: int) -> None:
        """A small graph, so that what happens to one of it matters to another."""
        self.enqueue(2, PLAIN)
        for each in population:
            self.enqueue_after(**each)
        self.claim(0, QUEUES, len(QUEUES), claimed)

    @rule(number=st.integers(1, 4), asked=options)
    def enqueue(self, number: int, asked: dict[str, Any]) -> None:
        runs = [new_run(**self.as_asked(asked)) for _ in range(number)]
        for run, enqueued in zip(runs, self.ledger.enqueue(runs), strict=True):
            made = asked | {"deadline": enqueued.deadline}
            assert (enqueued.id, enqueued.state) == (run.id, self.model.enqueue(run.id, **made))
            self.known.append(run.id)
        self.compare()

    def as_asked(self, asked: dict[str, Any]) -> dict[str, Any]:
        return asked | {
            "deadline": timedelta(days=asked["deadline"]),
            "run_after": MOMENTS[asked["run_after"]],
            "expires": MOMENTS[asked["expires"]],
        }

    def those(self, places: Iterable[int]) -> list[UUID]:
        """Some of all the runs there ever were, each once."""
        return list(dict.fromkeys(self.known[place % len(self.known)] for place in places))

    # -- runs that wait for runs -----------------------------------------------------------------

    @rule(more=waiting_options)
    def enqueue_one_after(self, more: dict[str, Any]) -> None:
        self.enqueue_after(**more)

    def enqueue_after(
        self, asked: dict[str, Any], mode: When | None, values: list[int], after: list[int], armed: bool
    ) -> None:
        """In whatever state the others are, and if they are gone. Some die before they can arm what they enqueued."""
        on = [*((each, Role.VALUE) for each in self.those(values)), *((each, Role.AFTER) for each in self.those(after))]
        run = new_run(**self.as_asked(asked), waits=bool(on))
        ledger = self.ledger
        with ledger.session.transaction():
            [enqueued] = ledger.enqueue([run])
            if on or mode is not None:
                gate = graph.NewGate(run.id, mode or When.ALL_SUCCESSFUL)
                graph.add(ledger, [gate], [graph.Edge(run.id, each, role) for each, role in on])
        asked = asked | {"deadline": enqueued.deadline}
        assert enqueued.state == self.model.enqueue(run.id, **asked, edges=on, when=mode)
        self.known.append(run.id)
        if armed:
            assert graph.arm(ledger, [run.id], new=True).states == self.model.graph.arm([run.id])
        self.compare()

    @rule(asked=options)
    def promise(self, asked: dict[str, Any]) -> None:
        asked = asked | {"run_after": None}
        run = new_run(**self.as_asked(asked), task=TASK, waits=True)
        [enqueued] = self.ledger.enqueue([run])
        asked = asked | {"deadline": enqueued.deadline}
        assert enqueued.state == self.model.enqueue(run.id, **asked, is_promise=True)
        self.known.append(run.id)
        self.compare()

    @when(lambda self: [run for run in self.model.runs.values() if run.is_promise])
    @rule(place=one, state=st.sampled_from([State.SUCCESSFUL, State.FAILED]))
    def settle_promise(self, place: int, state: State) -> None:
        promises = [run.id for run in self.model.runs.values() if run.is_promise]
        chosen = promises[place % len(promises)]
        settled = self.ledger.settle_promise(chosen, TASK, state, None, "", "")
        assert settled == self.model.settle_promise(chosen, state)
        self.compare()

    @when(lambda self: self.model.graph.unarmed())
    @rule(places=some)
    def arm(self, places: list[int]) -> None:
        unarmed = self.model.graph.unarmed()
        chosen = list(dict.fromkeys(unarmed[place % len(unarmed)] for place in places))
        assert graph.arm(self.ledger, chosen).states == self.model.graph.arm(chosen)
        self.compare()

    @when(lambda self: self.model.graph.heralds)
    @rule(limit=st.integers(1, 3), places=some)
    def tell_some(self, limit: int, places: list[int]) -> None:
        """Whoever tells dies after a few."""
        heralds = sorted(self.model.graph.heralds)
        self.tell_a_few_edges(heralds, limit)
        chosen = list(dict.fromkeys(heralds[place % len(heralds)] for place in places))
        told = graph.tell(self.ledger, chosen, at_once=1)
        assert told.states == self.model.graph.tell_some(chosen)[0]
        self.compare()

    def tell_a_few_edges(self, heralds: list[UUID], limit: int) -> None:
        """
        Which few is for the database to say, by where its rows happen to be. So it is undone: if what comes next
        depended on it, the same example would not go the same way twice.
        """
        ledger, model = self.ledger, deepcopy(self.model, {id(self): self})
        with suppress(_Undo), ledger.session.transaction():
            before = self.edges(ledger)
            with patch.object(graph, "_batch_of", lambda ids: limit):
                told = graph.tell(ledger, heralds, at_once=1)
            after = self.edges(ledger)
            chosen = {edge for edge, known in before.items() if after.get(edge) != known}
            model.graph.first_ended = partial(self.first_ended, ledger=ledger)
            assert told.states == model.graph.tell_some(heralds, limit, chosen)[0]
            self.compare(ledger, model)
            raise _Undo

    @when(lambda self: self.model.graph.heralds)
    @rule()
    def tell(self) -> None:
        told = graph.tell_leftovers(self.ledger)
        assert told.states == self.model.graph.tell(self.model.graph.heralds)
        self.compare()

    def spread(self) -> None:
        """The caretaker does what was left: then everybody knows everything, and nobody waits in vain."""
        for _ in range(20):
            told, armed = graph.tell_leftovers(self.ledger), graph.arm_leftovers(self.ledger)
            model = self.model.graph
            assert (told.states, armed.states) == (model.tell(model.heralds), model.arm(model.unarmed()))
            if not (told.seen or armed.seen):
                break
        else:
            raise AssertionError("It never comes to rest.")
        self.compare()
        assert (model.in_vain(), model.unjustly_ended()) == ([], [])

    @when(lambda self: self.model.graph.gates)
    @rule()
    def quiet(self) -> None:
        self.spread()
        self.compare_graph()
        # Nobody has recovered what a lost worker held: fsck says so, and finds nothing else.
        orphans = {("orphaned", run.id) for run in self.holders() if self.model.workers[run.worker]}
        assert {(finding.check, finding.run_id) for finding in fsck.check(self.ledger)} == orphans

    # -- the path of a run, continued ------------------------------------------------------------

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
        asked=four_outcomes,
        due=st.sampled_from([PAST, FUTURE]),
        company=st.booleans(),
        by_worker=st.booleans(),
        along=st.booleans(),
        on=few,
    )
    def settle(
        self,
        places: list[int],
        asked: list[tuple[Outcome, State]],
        due: str,
        company: bool,
        by_worker: bool,
        along: bool,
        on: list[int],
    ) -> None:
        """A worker settles what it holds, and perhaps claims what is ready by that; or an executor what it executes."""
        held = [(run.id, run.token, run.worker) for run in self.holders() if run.token is not None]
        chosen = [held[place % len(held)] for place in places]
        batch = [
            self.told(run_id, token, outcome, due, company, on)
            for (run_id, token, _), outcome in zip(chosen, asked, strict=False)
        ]
        self.settled(batch, chosen[0][2] if by_worker else None, along=by_worker and along)

    @when(lambda self: self.standing(State.READY))
    @rule(worker=one, asked=four_outcomes, on=few, spread=st.booleans())
    def work(self, worker: int, asked: list[tuple[Outcome, State]], on: list[int], spread: bool) -> None:
        """Claim, execute, settle, and perhaps tell, all in one: a life is short."""
        before = len(self.executions)
        self.claim(worker, QUEUES, len(QUEUES), len(asked))
        claimed = self.executions[before:]
        batch = [
            self.told(run_id, token, outcome, PAST, False, on)
            for (run_id, token, _), outcome in zip(claimed, asked, strict=False)
        ]
        self.settled(batch, None)
        if spread:
            self.spread()

    @when(lambda self: self.executions)
    @rule(
        places=some,
        asked=four_outcomes,
        by=st.sampled_from(["its worker", "an executor", "somebody else"]),
        crossed=st.booleans(),
    )
    def settle_too_late(self, places: list[int], asked: list[tuple[Outcome, State]], by: str, crossed: bool) -> None:
        """Any execution there ever was, settled by anybody, with its own token or its neighbour's."""
        chosen = [self.executions[place % len(self.executions)] for place in places]
        batch = [
            self.told(chosen[place - 1][0] if crossed else run_id, token, outcome, FUTURE, False, places)
            for place, ((run_id, token, _), outcome) in enumerate(zip(chosen, asked, strict=False))
        ]
        self.settled(batch, {"its worker": chosen[0][2], "an executor": None}.get(by, by))

    def told(
        self, run_id: UUID, token: int, asked: tuple[Outcome, State], due: str, company: bool, on: list[int]
    ) -> Told:
        outcome, state = asked
        waits_until = state is State.SCHEDULED or (asked == (Outcome.DEFERRED, State.WAITING) and company)
        return Told(
            run_id,
            token,
            outcome,
            state,
            due if waits_until else None,
            suspect=company and outcome in (Outcome.CRASHED, Outcome.LOST),
            after=tuple(self.those(on)) if asked == (Outcome.DEFERRED, State.WAITING) else (),
            at_once=outcome is Outcome.DEFERRED and state is not State.WAITING,
            delegates=tuple(self.those(on)) if outcome is Outcome.DELEGATED else (),
        )

    def settled(self, batch: list[Told], worker: str | None, *, along: bool = False) -> None:
        said = [
            Settlement(
                run_id=told.run_id,
                token=told.token,
                outcome=told.outcome,
                next_state=told.asked,
                delay=None if told.due is None else MOMENTS[told.due].total_seconds(),  # type: ignore[union-attr]
                suspect=told.suspect,
                after=told.after,
                at_once=told.at_once,
                delegate=pointer(told.delegates) if told.outcome is Outcome.DELEGATED else None,
                **(WELL if told.outcome is Outcome.SUCCESSFUL else {}),
            )
            for told in batch
        ]
        # As by those who executed them. Where all went well that is a statement of its own.
        settlements = [written(each) if each.outcome is Outcome.SUCCESSFUL else each for each in said]
        ledger, settled = self.ledger, None
        if along and worker is not None:
            settled = ledger.settle_and_claim(settlements, worker, Along([Wanted(worker, QUEUES, 2)]))
        if settled is None:
            settled = ledger.settle(settlements, worker)
        moved, refused = self.model.settle(batch, worker)
        assert (settled.moved, settled.not_mine, settled.busy) == (moved, refused, frozenset())
        if self.model.tells_at_once:
            assert set(settled.ended) == {run_id for run_id, state in self.model.spread.items() if state in ENDS}
        else:
            assert set(settled.heralds) == self.model.to_tell
        if settled.claims is not None:
            assert worker is not None
            self.claimed_along(worker, settled.claims)
            left = [run_id for run_id in self.model.spread if self.model.runs[run_id].state is State.READY]
            assert {self.model.runs[run_id].queue for run_id in left} <= settled.ready
        self.compare()

    def claimed_along(self, worker: str, claims: list[Claimed]) -> None:
        """Of what was ready then: what became so after the commit may come before it."""
        ids = {claim.id for claim in claims}
        assert len(ids) == len(claims)
        assert ids <= set(self.model.claimable(worker, QUEUES, len(self.known)))
        self.model.claim(worker, {claim.id: claim.token for claim in claims})
        self.executions += [(claim.id, claim.token, worker) for claim in claims]

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
        gone = self.model.runs.keys() - {run.id for run in self.ledger.fetch(self.known, history=False)}
        must, may = self.model.prunable(state)
        assert must <= gone <= may
        assert deleted == len(gone)
        self.model.remove(gone)
        self.compare()

    # -- what a person decides -------------------------------------------------------------------

    @rule(verb=st.sampled_from(["cancel", "hold", "hold", "release", "retry"]), places=some)
    def decide(self, verb: str, places: list[int]) -> None:
        self.decided(verb, [self.known[place % len(self.known)] for place in places])

    @when(lambda self: self.standing(State.HELD))
    @rule(places=some)
    def release(self, places: list[int]) -> None:
        held = self.standing(State.HELD)
        self.decided("release", [held[place % len(held)].id for place in places])

    @when(lambda self: self.standing(*BAD_ENDS))
    @rule(places=some, spread=st.booleans())
    def retry(self, places: list[int], spread: bool) -> None:
        ended = self.standing(*BAD_ENDS)
        self.decided("retry", [ended[place % len(ended)].id for place in places])
        if spread:
            self.spread()

    @when(lambda self: [edge for edge in self.model.graph.edges if self.model.downstream(edge.on)])
    @rule(place=one)
    def cancel_with_all_that_waits(self, place: int) -> None:
        [chosen] = self.those([place])
        waiting = graph.downstream(self.ledger, [chosen])
        assert set(waiting) == self.model.downstream(chosen)
        self.decided("cancel", [chosen, *waiting])

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
            for name in ("attempt", "dependency", "gate", "herald", "run", "worker", "queue"):
                cursor.execute(f"DELETE FROM manta_{name}")


def explore(part: str, examples: int, open_ledgers: Callable[[], AbstractContextManager[list[Ledger]]]) -> None:
    # In CI the examples follow from the name: another part looks at others.
    machine = type(part, (LedgerMachine,), {"open_ledgers": staticmethod(open_ledgers)})
    # However slow the machine is today, whoever tells gets to the end.
    with patch.object(graph, "TELL_SECONDS", float("inf")):
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
    explore(f"RolledBack{part}", 400, lambda: rolled_back(sessions[0]))


@pytest.mark.slow
@pytest.mark.postgres("SQLite tells in the order of its rows")
def test_an_example_goes_the_same_way_in_whatever_order_the_database_tells(
    sessions: list[PostgresSession | DjangoSession],
) -> None:
    """Hypothesis refuses to go on when it does not. The order is that of rows on disk, which VACUUM changes."""

    def in_any_order(dialect: str, name: str) -> str:
        text = statement(dialect, name)
        if name == "tell":
            assert IN_ITS_ORDER in text
            text = text.replace(IN_ITS_ORDER, f"ORDER BY random() {IN_ITS_ORDER}")
        return text

    with patch.object(session_module, "statement", in_any_order):
        explore("AnyOrder", 200, lambda: rolled_back(sessions[0]))


@pytest.mark.slow
def test_the_ledger_does_so_through_django_too(committed: None) -> None:
    explore("ThroughDjango", 150, rolled_back_by_django)


@pytest.mark.slow
def test_the_ledger_does_so_when_three_connections_commit(
    sessions: list[PostgresSession | DjangoSession],
) -> None:
    explore("Committed", 250, lambda: really_committed(*sessions))
