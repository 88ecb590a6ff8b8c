"""
Runs that wait for runs, as the design tells it: who knows what of whom, and what follows from it.

Nothing is counted here. A dependent knows of each thing it waits for that it ended well, that it
ended badly, or neither; it learns so when it is armed, and when it is told. From what it knows follows
where it goes.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from django_manta.states import BAD_ENDS, ENDS, MOVES, PENDING, Role, State, When

if TYPE_CHECKING:
    from tests.ledger.model import ModelRun

#: Who waits: not yet called, or not again.
UNCALLED = frozenset({State.WAITING, State.READY, State.SCHEDULED})


@dataclass
class ModelEdge:
    run: UUID
    on: UUID
    role: Role
    #: What ``run`` knows of ``on``: that it ended well, or badly. None: it has not ended.
    known: bool | None = None


@dataclass
class ModelGate:
    when: When
    armed: bool = False
    #: Asked to be called again whatever the others do.
    at_once: bool = False
    laters: int = 0
    #: The ends that it has been called for.
    called_for: set[UUID] = field(default_factory=set)


class ModelGraph:
    def __init__(self, runs: "dict[UUID, ModelRun]") -> None:
        self.runs = runs
        #: In the order in which they were made.
        self.edges: list[ModelEdge] = []
        self.gates: dict[UUID, ModelGate] = {}
        #: Runs that somebody waits for: when they end, or are reopened, there is something to tell.
        self.awaited: set[UUID] = set()
        self.heralds: set[UUID] = set()
        #: Which of several runs ended first. Only the database knows.
        self.first_ended: Callable[[Sequence[UUID]], UUID] = lambda ids: ids[0]

    def edges_of(self, run_id: UUID, *roles: Role) -> list[ModelEdge]:
        return [edge for edge in self.edges if edge.run == run_id and (not roles or edge.role in roles)]

    def truth(self, run_id: UUID) -> bool | None:
        """How a run ended. What is gone, or never was, is as good as ended badly."""
        run = self.runs.get(run_id)
        if run is None:
            return False
        return run.state is State.SUCCESSFUL if run.state in ENDS else None

    # -- making ----------------------------------------------------------------------------------

    def add(self, run_id: UUID, when: When, edges: Iterable[tuple[UUID, Role]]) -> None:
        """What a new run waits for; or what a run that asked to be called again waits for, too."""
        gate = self.gates.setdefault(run_id, ModelGate(when))
        gate.armed = False
        for on, role in edges:
            if not any(edge.on == on for edge in self.edges_of(run_id, role)):
                self.edges.append(ModelEdge(run_id, on, role))

    def later(self, run_id: UUID, after: Iterable[UUID], at_once: bool) -> None:
        self.add(run_id, When.ALL_SUCCESSFUL, [(on, Role.AFTER) for on in after])
        self.gates[run_id].at_once = at_once
        self.gates[run_id].laters += 1

    def delegate(self, run_id: UUID, children: Iterable[UUID]) -> None:
        self.add(run_id, When.ALL_SUCCESSFUL, [(on, Role.DELEGATE) for on in children])
        self.gates[run_id].at_once = False

    def renew(self, run_id: UUID) -> None:
        """An operator's retry: it waits for the same, as if for the first time, and has delegated to nobody."""
        gate = self.gates.get(run_id)
        if gate is not None:
            self.gates[run_id] = ModelGate(gate.when)
            self.edges = [edge for edge in self.edges if edge.run != run_id or edge.role is not Role.DELEGATE]

    def forget(self, gone: set[UUID]) -> None:
        # Whoever waited for one of them remembers how it ended.
        self.edges = [edge for edge in self.edges if edge.run not in gone]
        for run_id in gone:
            self.gates.pop(run_id, None)
            self.awaited.discard(run_id)

    # -- learning --------------------------------------------------------------------------------

    def moved(self, run_id: UUID) -> list[UUID]:
        """It ended, or was reopened: those who wait for it are to be told."""
        if run_id not in self.awaited:
            return []
        self.heralds.add(run_id)
        return [run_id]

    def arm(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        """The runs look at what they wait for themselves, and from now on they are told."""
        ids = [run_id for run_id in ids if run_id in self.gates]
        # Who may go on, and has not been told so yet, waits for nobody.
        reached = self.tell(self.heralds) if self._circles(ids) else {}
        refused, heralds = self._refuse_circles(ids)
        for run_id in ids:
            self.gates[run_id].armed = True
            for edge in self.edges_of(run_id):
                if edge.on in self.runs:
                    self.awaited.add(edge.on)
                self._learn(edge)
        passed, more = self._let_pass(ids, reopening=True)
        told = self.tell([*heralds, *more])
        self._bring_forward(ids)
        return reached | refused | passed | told

    def _bring_forward(self, ids: Iterable[UUID]) -> None:
        """What a run waits for is wanted as soon as the run; what is running, or over, cannot come any sooner."""
        wanted: dict[UUID, datetime] = {}
        asked = [(edge.on, self.runs[run_id].deadline) for run_id in ids for edge in self.edges_of(run_id)]
        while asked:
            run_id, deadline = asked.pop()
            run = self.runs.get(run_id)
            if run is None or deadline >= wanted.get(run_id, run.deadline):
                continue
            wanted[run_id] = deadline
            if run.state not in ENDS:
                asked += [(edge.on, deadline) for edge in self.edges_of(run_id)]
        for run_id, deadline in wanted.items():
            if self.runs[run_id].state in PENDING:
                self.runs[run_id].deadline = deadline

    def unarmed(self) -> list[UUID]:
        return [run_id for run_id, gate in self.gates.items() if not gate.armed]

    def tell(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        """All who wait for these learn how they stand, then all who wait for those that moved because of it."""
        reached: dict[UUID, State] = {}
        ids = list(ids)
        while ids:
            passed, ids = self.tell_some(ids)
            reached |= passed
        return reached

    def tell_some(
        self, ids: Iterable[UUID], limit: int | None = None, chosen: Container[tuple[UUID, UUID, Role]] = ()
    ) -> tuple[dict[UUID, State], list[UUID]]:
        """
        Those who wait for these, or a few ``chosen`` ones, learn how they stand. Who moved, and of whom to tell next.
        """
        ids = set(ids)
        untold = [edge for edge in self.edges if self._is_untold(edge, ids)]
        if limit is not None:
            number = min(limit, len(untold))
            untold = [edge for edge in untold if (edge.run, edge.on, edge.role) in chosen]
            assert len(untold) == number
        reopening = any(edge.known is not None for edge in untold)
        for edge in untold:
            self._learn(edge)
        told = {edge.run for edge in untold if self.gates[edge.run].armed}
        passed, heralds = self._let_pass(sorted(told), reopening)
        # While it was over, somebody may have begun to wait for who waited for it.
        again = {edge.run for edge in untold if edge.known is None}
        refused, more = self._refuse_circles(again, reopened=True)
        passed |= refused
        heralds += more
        self.heralds -= {each for each in ids if not any(self._is_untold(edge, {each}) for edge in self.edges)}
        return passed, heralds

    def _is_untold(self, edge: ModelEdge, ids: set[UUID]) -> bool:
        return edge.on in ids and edge.on in self.runs and edge.known is not self.truth(edge.on)

    def _learn(self, edge: ModelEdge) -> None:
        truth = self._standing(edge)
        if edge.known is not None and truth is not edge.known:
            # It ended once, and was reopened: when it ends anew, that counts again.
            self.gates[edge.run].called_for.discard(edge.on)
        edge.known = truth

    def _standing(self, edge: ModelEdge) -> bool | None:
        """How what it waits for stands; or stood, when it was there. A value is needed, and cannot be remembered."""
        is_remembered = edge.on not in self.runs and edge.known is not None and edge.role is not Role.VALUE
        return edge.known if is_remembered else self.truth(edge.on)

    # -- going on --------------------------------------------------------------------------------

    def _let_pass(self, ids: Iterable[UUID], reopening: bool) -> tuple[dict[UUID, State], list[UUID]]:
        """Those who may go on do, those who must not end; when something was reopened, some wait again."""
        reached = {}
        for run_id in ids:
            run = self.runs[run_id]
            if run.state is State.WAITING or (reopening and self._can_wait_again(run)):
                verdict = self.verdict(run)
                if verdict is not run.state:
                    reached[run_id] = verdict
        heralds = []
        for run_id, state in reached.items():
            run = self.runs[run_id]
            assert state in MOVES[run.state]
            crosses = (run.state in ENDS) is not (state in ENDS)
            if run.state is State.WAITING and state in UNCALLED:
                self.gates[run_id].called_for = self._ended_for(run)
            run.go_on(state)
            if crosses or state in ENDS:
                heralds += self.moved(run_id)
        return reached, heralds

    def _can_wait_again(self, run: "ModelRun") -> bool:
        """What has not started, what failed for the sake of others, what delegated."""
        if run.delegates is not None:
            return run.state in BAD_ENDS
        return run.state in (State.READY, State.SCHEDULED, State.UPSTREAM_FAILED)

    def verdict(self, run: "ModelRun") -> State:
        if run.delegates is not None:
            return self._verdict_of_delegates(run)
        gate = self.gates[run.id]
        values = [edge.known for edge in self.edges_of(run.id, Role.VALUE)]
        after = [edge.known for edge in self.edges_of(run.id, Role.AFTER)]
        if False in values or (self._is_hopeless(gate.when, after) and not gate.at_once):
            return State.UPSTREAM_FAILED
        if None in values or not (gate.at_once or self._may_go_on(run, gate, after)):
            return State.WAITING
        return State.SCHEDULED if run.next_due is not None and run.next_due != "past" else State.READY

    def _is_hopeless(self, when: When, after: list[bool | None]) -> bool:
        if when is When.ALL_SUCCESSFUL:
            return False in after
        return when is When.ANY_SUCCESSFUL and bool(after) and all(known is False for known in after)

    def _may_go_on(self, run: "ModelRun", gate: ModelGate, after: list[bool | None]) -> bool:
        if None not in after:
            return True
        if gate.when in (When.ALL_SUCCESSFUL, When.ALL_FINISHED):
            return False
        # Called again only for another one; but who has not been called yet is ready as long as one stands.
        called_for = gate.called_for if run.state is State.WAITING else set()
        return bool(self._ended_for(run) - called_for)

    def _ended_for(self, run: "ModelRun") -> set[UUID]:
        """The ends that count for any: the good ones, or all."""
        good_only = self.gates[run.id].when is When.ANY_SUCCESSFUL
        after = self.edges_of(run.id, Role.AFTER)
        return {edge.on for edge in after if edge.known or (edge.known is False and not good_only)}

    def _verdict_of_delegates(self, run: "ModelRun") -> State:
        children = self.edges_of(run.id, Role.DELEGATE)
        bad = [edge.on for edge in children if edge.known is False and edge.on in self.runs]
        if bad:
            return self.runs[self.first_ended(bad) if len(bad) > 1 else bad[0]].state
        if any(edge.known is False for edge in children):
            return State.UPSTREAM_FAILED
        return State.SUCCESSFUL if all(edge.known for edge in children) else State.WAITING

    # -- circles ---------------------------------------------------------------------------------

    def _circles(self, ids: Iterable[UUID], reopened: bool = False) -> set[tuple[UUID, UUID]]:
        """
        Who would wait for itself, and by way of whom. It is the fault of who asked to wait: not of one that was never
        called, unless what it waits for was over when it was asked for.
        """
        return {
            (edge.run, edge.on)
            for run_id in ids
            for edge in self.edges_of(run_id)
            if (self.runs[run_id].attempts > 0 or edge.known is not None or reopened)
            and self._leads_to(edge.on, run_id, {edge.on})
        }

    def _refuse_circles(self, ids: Iterable[UUID], reopened: bool = False) -> tuple[dict[UUID, State], list[UUID]]:
        """Who asked to wait for itself, or for what waits for it, fails, and no longer waits for that."""
        reached, heralds = {}, []
        for run_id, on in self._circles(ids, reopened):
            run = self.runs[run_id]
            if run.state in (State.WAITING, State.HELD):
                run.delegates = None
                run.end(State.FAILED)
                reached[run_id] = State.FAILED
                heralds += self.moved(run_id)
            if run_id in reached:
                self.edges = [edge for edge in self.edges if (edge.run, edge.on) != (run_id, on)]
        return reached, heralds

    def _leads_to(self, start: UUID, end: UUID, seen: set[UUID]) -> bool:
        """Whether a run is, or waits for, another one; what may run, or has ended, waits for nobody."""
        if start == end:
            return True
        run = self.runs.get(start)
        if run is None or run.state not in (State.WAITING, State.HELD):
            return False
        for edge in self.edges_of(start):
            if edge.known is None and edge.on not in seen:
                seen.add(edge.on)
                if self._leads_to(edge.on, end, seen):
                    return True
        return False

    # -- what must be true when everybody knows everything ---------------------------------------

    def in_vain(self) -> list[UUID]:
        """Runs that wait, though nothing that they need is still to come; or that wait only for each other."""
        return [
            run.id
            for run in self.runs.values()
            if run.state is State.WAITING and not run.is_promise and not self._has_hope(run.id, set())
        ]

    def _has_hope(self, run_id: UUID, seen: set[UUID]) -> bool:
        run = self.runs[run_id]
        if run.state is not State.WAITING or run.is_promise:
            return run.state not in ENDS
        seen.add(run_id)
        roles = (Role.DELEGATE,) if run.delegates is not None else (Role.VALUE, Role.AFTER)
        unfinished = [edge.on for edge in self.edges_of(run_id, *roles) if self.truth(edge.on) is None]
        return any(on not in seen and self._has_hope(on, seen) for on in unfinished)

    def unjustly_ended(self) -> list[UUID]:
        """Runs that ended because of others that did not end so."""
        return [run.id for run in self.runs.values() if run.state in ENDS and not self._is_just(run)]

    def _is_just(self, run: "ModelRun") -> bool:
        if run.delegates is not None:
            children = [self._standing(edge) for edge in self.edges_of(run.id, Role.DELEGATE)]
            return all(children) if run.state is State.SUCCESSFUL else False in children
        if run.state is State.UPSTREAM_FAILED:
            return any(self._standing(edge) is False for edge in self.edges_of(run.id))
        return True
