"""
What lost workers had on Ray, found and taken over.

Only workers with the runner ``ray`` do this, and only for workers that spoke to the same Ray: another one has foremen
of the same names, who know nothing of it. For each lost worker its foremen are told to refuse whatever it may still
send, and asked which of its runs they know. What one of them knows is adopted: in the ledger first (the token
survives, the owner changes), then there. What none of them knows never reached Ray and is given back; if one of
them is dead, it may have been there, and is lost. A foreman that cannot be reached is waited for.

Whoever dies on the way leaves nothing undone: the lost worker's runs are still its own, or they are those of a
worker whose row names the foremen that have them; and a foreman is asked by tokens, whoever it takes for their owner.
"""

import json
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_manta.execution.runners.flights import Flight
from django_manta.execution.runners.ray import messages
from django_manta.ledger import Ledger, Orphan, Settled, Settlement
from django_manta.states import Outcome, State
from django_manta.worker import losses
from django_manta.worker.caretaker import recovered
from django_manta.worker.losses import orphans_of_ours

if TYPE_CHECKING:
    from django_manta.worker.afar import OnRay

logger = logging.getLogger("django_manta")

#: How often the ledger is asked for runs whose worker is gone.
LOOK_SECONDS = 1.0

#: A foreman that did not answer is asked again after so long, and given up for dead after so long.
ASK_SECONDS = 5.0
UNREACHABLE_SECONDS = 600.0

#: How many are taken over at a time.
BATCH = 1_000

type Incarnation = tuple[str, str]


@dataclass(slots=True, eq=False)
class Case:
    """Runs whose worker is gone (or, without one, ours that we know nothing of), and what is known of them."""

    former: str
    orphans: dict[int, Orphan]
    foremen: list[Incarnation]
    #: They are, or were, on our Ray. The worker of an older release did not say on which.
    is_here: bool = True
    since: float = field(default_factory=time.monotonic)
    ask_at: float = 0.0
    #: What each foreman knows, by token (see Foreman._hear_fence); None if it is dead.
    answers: dict[Incarnation, dict[int, list[Any]] | None] = field(default_factory=dict)

    @property
    def unanswered(self) -> list[Incarnation]:
        return [each for each in self.foremen if each not in self.answers]


class Adoption:
    """The cases of one worker."""

    def __init__(self, runner: "OnRay", backend: Any) -> None:
        self.runner = runner
        self.backend = backend
        self.cases: list[Case] = []
        #: What else foremen have of lost workers, by their names. Perhaps it is settled, and they need not keep it.
        self._left: list[tuple[str, list[str]]] = []
        self._look_at = 0.0

    def forget(self) -> None:
        self.cases.clear()
        self._left.clear()

    def is_about(self, token: int) -> bool:
        return any(token in case.orphans for case in self.cases)

    def ask_about_our_own(self, executions: Iterable[tuple[UUID, int]]) -> None:
        new = {token: _own(run_id, token) for run_id, token in executions if not self.is_about(token)}
        if new:
            self.cases.append(Case("", new, list(self.runner.known)))

    # -- asking ----------------------------------------------------------------------------------

    def tend(self, now: float) -> float | None:
        """Ask, and ask again. When to come again."""
        times = []
        for case in self.cases:
            for name, incarnation in case.unanswered:
                if now >= case.ask_at:
                    self._ask(case, (name, incarnation))
            if case.unanswered:
                case.ask_at = case.ask_at if now < case.ask_at else now + ASK_SECONDS
                times.append(case.ask_at)
        return min(times, default=None)

    def _ask(self, case: Case, foreman: Incarnation) -> None:
        keys = [messages.key_of(orphan.id.hex, token) for token, orphan in case.orphans.items()]
        then = partial(self._answered, case, foreman)
        self.runner.ask(foreman[0], "fence", then, former=case.former, keys=keys)

    def _answered(self, case: Case, foreman: Incarnation, told: dict[str, Any]) -> None:
        if told["incarnation"] != foreman[1]:
            # It bears the name of the one we look for, which therefore is no more.
            self._is_dead(case, foreman)
        elif "refused" in told:
            logger.error("The foreman %s does not answer: %s.", foreman[0], told["refused"])
        else:
            case.answers[foreman] = {messages.token_of(key): facts for key, *facts in told["known"]}
            if told["left"]:
                self._left.append((foreman[0], told["left"]))
            if told["known"]:
                # We may have runs there from now on.
                self.runner.meet(*foreman)

    def gone(self, name: str) -> None:
        """There is no foreman of that name."""
        for case in self.cases:
            for foreman in case.unanswered:
                if foreman[0] == name:
                    self._is_dead(case, foreman)

    def _is_dead(self, case: Case, foreman: Incarnation) -> None:
        if case.is_here:
            case.answers[foreman] = None

    # -- deciding --------------------------------------------------------------------------------

    def talk(self, ledger: Ledger, now: float) -> float | None:
        if self.runner.recorded and not self.runner.stopping:
            for case in [each for each in self.cases if self._is_decided(each, now)]:
                # What is not done when the database goes away is seen at the next look.
                self.cases.remove(case)
                self._decide(case, ledger)
        while self._left:
            self._clear_away(ledger, *self._left.pop())
        if self.runner.stopping:
            # For whoever stays.
            return None
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look(ledger)
            self.tend(now)
        return self._look_at

    def _is_decided(self, case: Case, now: float) -> bool:
        return not case.unanswered or now - case.since > UNREACHABLE_SECONDS

    def _look(self, ledger: Ledger) -> None:
        known = {case.former for case in self.cases}
        # Those that are asked for already must not hide the others.
        limit = BATCH + sum(len(case.orphans) for case in self.cases)
        found = ledger.orphans(limit=limit, runner="ray", place=self.runner.place)
        held: dict[str, list[Orphan]] = {}
        for orphan in found:
            if orphan.worker not in known:
                held.setdefault(orphan.worker, []).append(orphan)
        for former, orphans in held.items():
            foremen = [(name, incarnation) for name, incarnation in json.loads(orphans[0].foremen)]
            logger.warning("Worker %s is gone; asking for the %s runs that it had on Ray.", former, len(orphans))
            by_token = {orphan.token: orphan for orphan in orphans}
            self.cases.append(Case(former, by_token, foremen, is_here=bool(orphans[0].ray)))

    def _clear_away(self, ledger: Ledger, foreman: str, keys: list[str]) -> None:
        """Tell a foreman which outcomes of a lost worker nobody waits for."""
        ids = [UUID(messages.run_of(key)) for key in keys]
        standing = {messages.key_of(run.id.hex, run.token or 0) for run in ledger.fetch(ids, history=False)}
        over = [key for key in keys if key not in standing]
        if over:
            self.runner.say(foreman, "settled", keys=over)

    def _decide(self, case: Case, ledger: Ledger) -> None:
        known: dict[int, tuple[Incarnation, list[Any]]] = {}
        for foreman, answer in case.answers.items():
            known |= {token: (foreman, each) for token, each in (answer or {}).items()}
        self._adopt(case, ledger, known)
        rest = [orphan for token, orphan in case.orphans.items() if token not in known]
        if rest:
            all_alive = all(case.answers.get(foreman) is not None for foreman in case.foremen)
            settled = self._return(case, rest, ledger) if all_alive else self._lose(case, rest, ledger)
            recovered(self.backend, ledger, {orphan.token: orphan for orphan in rest}, settled, lost=not all_alive)

    def _adopt(self, case: Case, ledger: Ledger, known: dict[int, tuple[Incarnation, list[Any]]]) -> None:
        worker = self.runner.host.id
        executions = [(orphan.id, token) for token, orphan in case.orphans.items() if token in known]
        if not executions:
            return
        taken = {token for _, token in executions}
        if case.former:
            taken = ledger.adopt(executions, case.former, worker)
        by_foreman: dict[Incarnation, list[tuple[Flight, bool]]] = {}
        for token in taken:
            foreman, (claim, names, timeout, alone) = known[token]
            flight = Flight(messages.read_claim(claim, names)._replace(worker=worker), timeout)
            by_foreman.setdefault(foreman, []).append((flight, alone))
        for foreman, flights in by_foreman.items():
            self.runner.adopt(foreman, flights)

    def _return(self, case: Case, rest: list[Orphan], ledger: Ledger) -> Settled:
        """It never reached Ray, and never will: its worker's submissions are refused."""
        settlements = [
            Settlement(run_id=orphan.id, token=orphan.token, outcome=Outcome.RETURNED, next_state=State.READY)
            for orphan in rest
        ]
        if case.former:
            return ledger.settle(settlements, case.former, recovering=True)
        return ledger.settle(settlements, self.runner.host.id)

    def _lose(self, case: Case, rest: list[Orphan], ledger: Ledger) -> Settled:
        if case.former:
            return losses.recover(ledger, rest)
        ours = orphans_of_ours(ledger, [(orphan.id, orphan.token) for orphan in rest], self.runner.host.id)
        return losses.recover(ledger, ours)


def _own(run_id: UUID, token: int) -> Orphan:
    return Orphan(run_id, token, "", "", "", "", 0, False, "", 0)
