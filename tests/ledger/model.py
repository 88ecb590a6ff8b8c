"""
The ledger as the design tells it: plain Python, no SQL, no clock.

Every moment lies an hour back or an hour ahead (``PAST`` or ``FUTURE``), so that nothing happens by
itself while a test runs. A method does what the ledger's method of that name should do, and
returns what it should return; tokens come from the ledger, because only their order is promised.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django_manta.states import (
    BAD_ENDS,
    CHARGED,
    ENDS,
    OWNED,
    PENDING,
    UNSTARTED,
    Outcome,
    State,
    after,
)

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
    #: Which of two deadlines; runs with the same one go by id.
    deadline: int
    state: State
    due: str | None
    expires: str | None
    worker: str = ""
    token: int | None = None
    attempts: int = 0
    failures: int = 0
    crashes: int = 0
    losses: int = 0
    suspect: bool = False
    history: list[Tried] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, int, UUID]:
        return -self.priority, self.deadline, self.id

    @property
    def is_expired(self) -> bool:
        return self.expires == PAST and self.attempts == 0 and self.state in PENDING

    def end(self, state: State) -> None:
        self.state, self.due = state, None


@dataclass(frozen=True)
class Told:
    """What a settlement says."""

    run_id: UUID
    token: int
    outcome: Outcome
    asked: State
    due: str | None = None
    suspect: bool = False


class ModelLedger:
    def __init__(self) -> None:
        self.runs: dict[UUID, ModelRun] = {}
        self.paused: set[str] = set()
        #: Registered workers, and whether their lease is lost.
        self.workers: dict[str, bool] = {}

    # -- the path of a run -----------------------------------------------------------------------

    def enqueue(
        self,
        run_id: UUID,
        queue: str,
        priority: int,
        deadline: int,
        run_after: str | None,
        expires: str | None,
        hold: bool,
    ) -> State:
        waits = run_after == FUTURE
        state = State.HELD if hold else State.SCHEDULED if waits else State.READY
        self.runs[run_id] = ModelRun(
            run_id, queue, priority, deadline, state, due=FUTURE if waits else None, expires=expires
        )
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
        is_lost = worker is not None and self.workers.get(worker, False) and not recovering
        for told in {(told.run_id, told.token): told for told in batch}.values():
            run = self.runs.get(told.run_id)
            if run is None or run.token != told.token or is_lost or worker not in (None, run.worker):
                refused.add(told.token)
            else:
                self._settle(run, told)
                moved[told.token] = run.state
        return moved, refused - set(moved)

    def _settle(self, run: ModelRun, told: Told) -> None:
        run.history.append(Tried(told.token, run.attempts, told.outcome, run.worker))
        run.state = after(run.state, told.outcome, told.asked)
        run.worker, run.token = "", None
        run.due = told.due if run.state is State.SCHEDULED else None
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

    # -- keeping the house -----------------------------------------------------------------------

    def promote(self, ahead: bool) -> int:
        due = [run for run in self.runs.values() if run.state is State.SCHEDULED and (ahead or run.due == PAST)]
        for run in due:
            run.state, run.due = State.READY, None
        return len(due)

    def expire(self) -> set[UUID]:
        late = [run for run in self.runs.values() if run.is_expired]
        for run in late:
            run.end(State.EXPIRED)
        return {run.id for run in late}

    def prune(self, state: State) -> int:
        gone = [run.id for run in self.runs.values() if run.state is state and state in ENDS]
        for run_id in gone:
            del self.runs[run_id]
        return len(gone)

    # -- what a person decides -------------------------------------------------------------------

    def _those(self, ids: Iterable[UUID], states: Iterable[State]) -> list[ModelRun]:
        return [self.runs[run_id] for run_id in set(ids) if run_id in self.runs and self.runs[run_id].state in states]

    def cancel(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        chosen = self._those(ids, PENDING | {State.RUNNING})
        for run in chosen:
            if run.state is State.RUNNING:
                run.state = State.CANCELLING
            else:
                run.end(State.CANCELLED)
        return {run.id: run.state for run in chosen}

    def hold(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        chosen = self._those(ids, PENDING - {State.HELD})
        for run in chosen:
            run.state = State.HELD
        return {run.id: run.state for run in chosen}

    def release(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        chosen = self._those(ids, {State.HELD})
        for run in chosen:
            if run.due == FUTURE:
                run.state = State.SCHEDULED
            else:
                run.state, run.due = State.READY, None
        return {run.id: run.state for run in chosen}

    def retry(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        chosen = self._those(ids, BAD_ENDS)
        for run in chosen:
            run.state, run.due, run.expires = State.READY, None, None
            run.failures = run.crashes = run.losses = 0
        return {run.id: run.state for run in chosen}

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
            alone = len(held) <= 1
            for run in held:
                assert run.token is not None
                # With more in hand than it has slots (one, here) the worker did not die of a suspect.
                charged = run.suspect and alone
                for_good = max_losses == 0 or (charged and run.losses + 1 > max_losses)
                asked = State.LOST if for_good else State.READY
                told = Told(run.id, run.token, Outcome.LOST, asked, suspect=not charged)
                moved |= self.settle([told], worker, recovering=True)[0]
        return moved

    def adopt(self, executions: Iterable[tuple[UUID, int]], former: str, worker: str) -> set[int]:
        taken = set()
        for run_id, token in executions:
            run = self.runs.get(run_id)
            if run is not None and run.token == token and run.worker == former:
                run.worker = worker
                taken.add(token)
        return taken
