"""
The ledger as the design tells it: plain Python, no SQL, no clock.

Every moment lies an hour back or an hour ahead (``PAST`` or ``FUTURE``), so that nothing happens by
itself while a test runs. A method does what the ledger's method of that name should do, and
returns what it should return; tokens come from the ledger, because only their order is promised.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django_manta.states import (
    BAD_ENDS,
    CHARGED,
    ENDS,
    OWNED,
    PENDING,
    UNSTARTED,
    WAITING_OUTCOMES,
    Outcome,
    Role,
    State,
    When,
    after,
)
from tests.ledger.model_graph import ModelGraph

PAST, FUTURE = "past", "future"


@dataclass(frozen=True)
class Tried:
    """An ended attempt."""

    token: int
    number: int
    outcome: Outcome
    worker: str


@dataclass
class ModelRun:
    id: UUID
    queue: str
    priority: int
    #: As the database made it; runs with the same one go by id.
    deadline: datetime
    state: State
    due: str | None
    expires: str | None
    run_after: str | None = None
    #: Nobody executes it: it is settled from outside.
    is_promise: bool = False
    #: The runs whose end is its own.
    delegates: tuple[UUID, ...] | None = None
    worker: str = ""
    token: int | None = None
    attempts: int = 0
    failures: int = 0
    crashes: int = 0
    losses: int = 0
    suspect: bool = False
    history: list[Tried] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, datetime, UUID]:
        return -self.priority, self.deadline, self.id

    @property
    def is_expired(self) -> bool:
        return self.expires == PAST and self.attempts == 0 and self.state in PENDING

    def end(self, state: State) -> None:
        self.state, self.due = state, None

    @property
    def next_due(self) -> str | None:
        """Before when it must not start. What failed before it was ever called waits for its date again."""
        if self.state is State.UPSTREAM_FAILED and self.attempts == 0:
            return FUTURE if self.run_after == FUTURE else None
        return self.due

    def go_on(self, state: State) -> None:
        due = self.next_due
        self.state = state
        self.due = due if state in (State.WAITING, State.SCHEDULED) else None


@dataclass(frozen=True)
class Told:
    """What a settlement says."""

    run_id: UUID
    token: int
    outcome: Outcome
    asked: State
    due: str | None = None
    suspect: bool = False
    #: With DEFERRED: what to wait for, or that it is called again whatever that does.
    after: tuple[UUID, ...] = ()
    at_once: bool = False
    #: With DELEGATED.
    delegates: tuple[UUID, ...] = ()


class ModelLedger:
    def __init__(self) -> None:
        self.runs: dict[UUID, ModelRun] = {}
        self.graph = ModelGraph(self.runs)
        #: Whoever moves something tells who waits for it, and arms it. In a transaction that is left for later.
        self.tells_at_once = False
        self.paused: set[str] = set()
        #: Registered workers, and whether their lease is lost.
        self.workers: dict[str, bool] = {}
        #: Of the last settlement: of whom to tell, or whom to arm; and what that moved, if it was done at once.
        self.to_tell: set[UUID] = set()
        self.spread: dict[UUID, State] = {}

    # -- the path of a run -----------------------------------------------------------------------

    def enqueue(
        self,
        run_id: UUID,
        queue: str,
        priority: int,
        deadline: datetime,
        run_after: str | None,
        expires: str | None,
        hold: bool,
        edges: Sequence[tuple[UUID, Role]] = (),
        when: When | None = None,
        is_promise: bool = False,
    ) -> State:
        is_early = run_after == FUTURE
        state = State.SCHEDULED if is_early else State.READY
        if edges or is_promise:
            state = State.WAITING
        if hold:
            state = State.HELD
        self.runs[run_id] = ModelRun(
            run_id,
            queue,
            priority,
            deadline,
            state,
            due=FUTURE if is_early else None,
            expires=expires,
            run_after=run_after,
            is_promise=is_promise,
        )
        if edges or when is not None:
            self.graph.add(run_id, when or When.ALL_SUCCESSFUL, edges)
        return state

    def claimable(self, worker: str, queues: Sequence[str], limit: int) -> list[UUID]:
        """Who comes next: one of each queue in turn, best first, until the limit is reached."""
        if self.workers.get(worker):
            return []
        lines = [
            sorted(
                (
                    run
                    for run in self.runs.values()
                    if run.queue == queue and run.state is State.READY and not run.is_expired
                ),
                key=lambda run: run.order,
            )
            for queue in queues
            if queue not in self.paused
        ]
        taken: list[UUID] = []
        while any(lines):
            for line in lines:
                if line:
                    taken.append(line.pop(0).id)
        return taken[:limit]

    def claim(self, worker: str, tokens: dict[UUID, int]) -> None:
        for run_id, token in tokens.items():
            run = self.runs[run_id]
            run.state, run.worker, run.token = State.RUNNING, worker, token
            run.attempts += 1

    def settle(
        self, batch: Iterable[Told], worker: str | None, recovering: bool = False
    ) -> tuple[dict[int, State], set[int]]:
        """What moved, and what was not theirs to move: nothing is a lost worker's, except to recover it."""
        moved, refused = {}, set()
        ended: list[UUID] = []
        waiting: list[UUID] = []
        unwanted: set[UUID] = set()
        is_lost = worker is not None and self.workers.get(worker, False) and not recovering
        for told in {(told.run_id, told.token): told for told in batch}.values():
            run = self.runs.get(told.run_id)
            if run is None or run.token != told.token or is_lost or worker not in (None, run.worker):
                refused.add(told.token)
                continue
            self._settle(run, told)
            moved[told.token] = run.state
            if run.state in ENDS:
                ended += self.graph.moved(run.id)
            elif told.outcome in WAITING_OUTCOMES:
                waiting.append(run.id)
            if run.state is State.CANCELLED:
                unwanted |= set(told.delegates)
        ended += self._cancel(unwanted)[1]
        self.to_tell = {*ended, *waiting}
        self.spread = self._tell(ended) | self._arm(waiting)
        return moved, refused - set(moved)

    def _settle(self, run: ModelRun, told: Told) -> None:
        run.history.append(Tried(told.token, run.attempts, told.outcome, run.worker))
        run.state = after(run.state, told.outcome, told.asked)
        run.worker, run.token = "", None
        run.due = told.due if run.state in (State.SCHEDULED, State.WAITING) else None
        run.delegates = None
        if run.state not in ENDS and told.outcome is Outcome.DEFERRED:
            self.graph.later(run.id, told.after, told.at_once)
        elif run.state not in ENDS and told.outcome is Outcome.DELEGATED:
            run.delegates = told.delegates
            self.graph.delegate(run.id, told.delegates)
        if told.outcome in UNSTARTED:
            run.attempts -= 1
        if told.outcome in CHARGED:
            run.failures += 1
        if told.outcome is Outcome.CRASHED and not told.suspect:
            run.crashes += 1
        if told.outcome is Outcome.LOST and not told.suspect:
            run.losses += 1
        came_through = told.outcome is Outcome.SUCCESSFUL or told.outcome in CHARGED
        run.suspect = told.suspect or (run.suspect and not came_through)

    def settle_promise(self, run_id: UUID, state: State) -> dict[UUID, State]:
        """From outside: an open one only, and once."""
        run = self.runs.get(run_id)
        if run is None or not run.is_promise or run.state not in (State.WAITING, State.HELD):
            return {}
        run.state = state
        return {run_id: state} | self._tell(self.graph.moved(run_id))

    # -- who waits -------------------------------------------------------------------------------

    def _tell(self, heralds: Iterable[UUID]) -> dict[UUID, State]:
        return self.graph.tell(heralds) if self.tells_at_once else {}

    def _arm(self, waiting: Iterable[UUID]) -> dict[UUID, State]:
        """Who waits looks at how things stand: now, or when somebody can see to it."""
        if self.tells_at_once:
            return self.graph.arm(waiting)
        for run_id in waiting:
            if run_id in self.graph.gates:
                self.graph.gates[run_id].armed = False
        return {}

    def downstream(self, run_id: UUID) -> set[UUID]:
        """Everything that waits for a run, directly or not: as far as they know, it has not ended."""
        found, ids = set(), [run_id]
        while ids:
            here = ids.pop()
            for edge in self.graph.edges:
                waits = edge.known is None and self.runs[edge.run].state not in ENDS
                if edge.on == here and waits and edge.run not in found:
                    found.add(edge.run)
                    ids.append(edge.run)
        return found

    # -- keeping the house -----------------------------------------------------------------------

    def promote(self, ahead: bool) -> int:
        due = [run for run in self.runs.values() if run.state is State.SCHEDULED and (ahead or run.due == PAST)]
        for run in due:
            run.state, run.due = State.READY, None
        return len(due)

    def expire(self) -> set[UUID]:
        late = [run for run in self.runs.values() if run.is_expired]
        heralds = []
        for run in late:
            run.end(State.EXPIRED)
            heralds += self.graph.moved(run.id)
        told = self._tell(heralds)
        return {run.id for run in late} | {run_id for run_id, state in told.items() if state in ENDS}

    def prunable(self, state: State) -> tuple[set[UUID], set[UUID]]:
        """What of an end goes, and what may go as well once that is gone: nobody who may need it refers to it."""
        kept = {run.id for run in self.runs.values() if run.state is not state}
        must = self._unreferred({run.id for run in self.runs.values()}) - kept
        may = must
        while True:
            more = self._unreferred({run.id for run in self.runs.values()} - may) - kept
            if more <= may:
                return must, may
            may = may | more

    def _unreferred(self, by: set[UUID]) -> set[UUID]:
        referred = set()
        for edge in self.graph.edges:
            dependent = self.runs[edge.run]
            needs = dependent.state not in ENDS or dependent.state is State.UPSTREAM_FAILED
            # Whatever ended badly may be retried.
            needs = needs or (edge.role is Role.VALUE and dependent.state in BAD_ENDS)
            if edge.run in by and (needs or dependent.delegates is not None):
                referred.add(edge.on)
        return self.runs.keys() - referred

    def remove(self, gone: set[UUID]) -> None:
        self.graph.forget(gone)
        for run_id in gone:
            del self.runs[run_id]

    # -- what a person decides -------------------------------------------------------------------

    def _those(self, ids: Iterable[UUID], states: Iterable[State]) -> list[ModelRun]:
        return [self.runs[run_id] for run_id in set(ids) if run_id in self.runs and self.runs[run_id].state in states]

    def cancel(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        reached, heralds = self._cancel(ids)
        return reached | self._tell(heralds)

    def _cancel(self, ids: Iterable[UUID]) -> tuple[dict[UUID, State], list[UUID]]:
        """What delegated ends when its delegates, which are cancelled, do."""
        wanted, chosen = set(), list(ids)
        while chosen:
            run_id = chosen.pop()
            run = self.runs.get(run_id)
            if run is not None and run_id not in wanted:
                wanted.add(run_id)
                chosen += run.delegates or () if run.state is State.WAITING else ()
        reached, heralds = {}, []
        for run in self._those(wanted, PENDING | {State.RUNNING}):
            if run.state is State.WAITING and run.delegates is not None:
                continue
            if run.state is State.RUNNING:
                run.state = State.CANCELLING
            else:
                run.end(State.CANCELLED)
                heralds += self.graph.moved(run.id)
            reached[run.id] = run.state
        return reached, heralds

    def hold(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        chosen = [run for run in self._those(ids, PENDING - {State.HELD}) if run.delegates is None]
        for run in chosen:
            if run.state is not State.WAITING and run.id in self.graph.gates:
                # What made it ready, it has not been called for.
                self.graph.gates[run.id].called_for.clear()
            run.state = State.HELD
        return {run.id: run.state for run in chosen}

    def release(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        chosen = self._those(ids, {State.HELD})
        for run in chosen:
            run.due = run.due if run.due == FUTURE else None
            run.state = self._first_state(run)
        reached = {run.id: run.state for run in chosen}
        return reached | self._arm([run.id for run in chosen])

    def retry(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        chosen = self._those(ids, BAD_ENDS)
        heralds = []
        for run in chosen:
            run.due, run.expires, run.delegates = None, None, None
            run.failures = run.crashes = run.losses = 0
            run.state = self._first_state(run)
            self.graph.renew(run.id)
            heralds += self.graph.moved(run.id)
        reached = {run.id: run.state for run in chosen}
        reached |= self._arm([run.id for run in chosen])
        return reached | self._tell(heralds)

    def _first_state(self, run: ModelRun) -> State:
        """Where a run starts from that is let go: what waits for others, with them."""
        if run.is_promise or run.id in self.graph.gates:
            return State.WAITING
        return State.SCHEDULED if run.due is not None else State.READY

    # -- workers and their leases ----------------------------------------------------------------

    def held_by(self, worker: str) -> list[ModelRun]:
        return [run for run in self.runs.values() if run.state in OWNED and run.worker == worker]

    def leave(self, worker: str) -> bool:
        if self.held_by(worker):
            return False
        return self.workers.pop(worker, None) is not None

    def recover(self, max_losses: int) -> dict[int, State]:
        """
        Nobody knows whose fault it was the first time: not charged, but suspected. What may never start
        twice has no second time.
        """
        moved = {}
        for worker in [worker for worker, lost in self.workers.items() if lost]:
            held = list(self.held_by(worker))
            # With more in hand than it has slots (one, here) the worker did not die of a suspect.
            alone = len(held) <= 1
            moved |= self.settle([self._loss(run, max_losses, alone) for run in held], worker, recovering=True)[0]
        return moved

    def _loss(self, run: ModelRun, max_losses: int, alone: bool) -> Told:
        assert run.token is not None
        charged = run.suspect and alone
        for_good = max_losses == 0 or (charged and run.losses + 1 > max_losses)
        asked = State.LOST if for_good else State.READY
        return Told(run.id, run.token, Outcome.LOST, asked, suspect=not charged)

    def adopt(self, executions: Iterable[tuple[UUID, int]], former: str, worker: str) -> set[int]:
        taken = set()
        for run_id, token in executions:
            run = self.runs.get(run_id)
            if run is not None and run.token == token and run.worker == former:
                run.worker = worker
                taken.add(token)
        return taken
