"""
What lost workers had on Ray, found and taken over.

Only workers with the runner ``ray`` do this, and only for workers that spoke to the same Ray: another one has foremen
of the same names, who know nothing of it. For each lost worker its foremen are told to refuse whatever it may still
send, and asked which of its runs they know. What one of them knows is adopted: in the ledger first (the token
survives, the owner changes), then there. What none of them knows never reached Ray and is given back; if one of
them is dead, it may have been there, and is lost. A foreman that does not answer, or not in words that this release
understands, is waited for, however long that takes: what it has may be executing. The worker's row says so.

Whoever dies on the way leaves nothing undone: the lost worker's runs are still its own, or they are those of a
worker whose row names the foremen that have them; and a foreman is asked by tokens, whoever it takes for their owner.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_manta.execution.runners.flights import Flight
from django_manta.execution.runners.ray import messages
from django_manta.ledger import Claimed, Ledger, Orphan, Settled, Settlement, house
from django_manta.ledger.records import read_foremen
from django_manta.states import Outcome, State
from django_manta.worker import losses, troubles
from django_manta.worker.caretaker import recovered
from django_manta.worker.losses import orphans_of_ours
from django_manta.worker.questions import FOREMAN_SECONDS

if TYPE_CHECKING:
    from django_manta.worker.afar import OnRay

logger = logging.getLogger("django_manta")

#: How often the ledger is asked for runs whose worker is gone.
LOOK_SECONDS = 1.0

#: A foreman that was found dead, or restarted, or whose answer was lost is asked again after so long.
ASK_SECONDS = 5.0

#: One question is enough for a foreman that does not answer, unless that was lost in a way that nobody noticed.
ASK_AGAIN_SECONDS = 300.0

#: Where the worker of an older release did not say on which Ray its runs are, a foreman is given up for dead after so
#: long.
UNREACHABLE_SECONDS = 600.0

#: A case that waits is looked at again after so long: an operator, or another release, may have seen to its runs.
RECONSIDER_SECONDS = 30.0

#: How many are taken over at a time.
BATCH = 1_000

#: Of so many lost workers the row tells.
TOLD = 20

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
    #: The last question to each foreman: its number, and when it was asked.
    asked: dict[Incarnation, tuple[int, float]] = field(default_factory=dict)
    #: What each foreman knows, by token (see Foreman._hear_fence); None if it is dead.
    answers: dict[Incarnation, dict[int, list[Any]] | None] = field(default_factory=dict)
    #: Why a foreman did not want to answer.
    refused: dict[Incarnation, str] = field(default_factory=dict)
    #: An answer came that was not looked at yet.
    has_news: bool = False
    #: The runs whose claims this release cannot read: they stay where they are.
    unreadable: set[int] = field(default_factory=set)
    reconsider_at: float = field(default_factory=lambda: time.monotonic() + RECONSIDER_SECONDS)

    @property
    def unanswered(self) -> list[Incarnation]:
        return [each for each in self.foremen if each not in self.answers]


class Adoption:
    """The cases of one worker."""

    def __init__(self, runner: "OnRay", backend: Any) -> None:
        self.runner = runner
        self.backend = backend
        self.cases: list[Case] = []
        #: What else foremen have of lost workers, by the names of foreman and worker ("" if it is not known which), as
        #: sets that keep their order. Perhaps it is settled, and they need not keep it.
        self._left: dict[tuple[str, str], dict[str, None]] = {}
        self._look_at = 0.0
        self._ask_at = 0.0

    def forget(self) -> None:
        self.cases.clear()
        self._left.clear()

    def is_about(self, token: int) -> bool:
        return any(token in case.orphans for case in self.cases)

    def ask_about_our_own(self, executions: Iterable[tuple[UUID, int]]) -> None:
        new = {token: _own(run_id, token) for run_id, token in executions if not self.is_about(token)}
        if new:
            self.cases.append(Case("", new, list(self.runner.known)))
            self._ask_at = 0.0

    # -- asking ----------------------------------------------------------------------------------

    def tend(self, now: float) -> float | None:
        """Ask, and ask again. When to come again."""
        if now >= self._ask_at:
            self._ask_at = now + LOOK_SECONDS
            for case in self.cases:
                for foreman in case.unanswered:
                    if self.runner.may_ask(foreman[0]) and self._is_to_be_asked(case, foreman, now):
                        self._ask(case, foreman, now)
        return self._ask_at if self.cases else None

    def _is_to_be_asked(self, case: Case, foreman: Incarnation, now: float) -> bool:
        number, asked_at = case.asked.get(foreman, (None, -ASK_SECONDS))
        return now - asked_at >= (ASK_AGAIN_SECONDS if self.runner.questions.is_open(number) else ASK_SECONDS)

    def _ask(self, case: Case, foreman: Incarnation, now: float) -> None:
        keys = [messages.key_of(orphan.id.hex, token) for token, orphan in case.orphans.items()]
        then = partial(self._answered, case, foreman)
        case.asked[foreman] = self.runner.ask(foreman[0], "fence", then, former=case.former, keys=keys), now

    def _answered(self, case: Case, foreman: Incarnation, told: dict[str, Any]) -> None:
        if told["incarnation"] != foreman[1]:
            # It bears the name of the one we look for, which therefore is no more.
            self._is_dead(case, foreman)
        elif "refused" in told:
            if case.refused.get(foreman) != told["refused"]:
                logger.error("The foreman %s does not answer: %s.", foreman[0], told["refused"])
            case.refused[foreman] = told["refused"]
        else:
            try:
                known = {messages.token_of(key): facts for key, *facts in told["known"]}
            except messages.UNREADABLE as error:
                case.refused[foreman] = f"what it answers cannot be read ({type(error).__name__}: {error})"
                return
            case.answers[foreman] = known
            case.has_news = True
            self.note_left(foreman[0], case.former, told)
            if known:
                # We may have runs there from now on.
                self.runner.meet(*foreman)

    def note_left(self, foreman: str, former: str, told: dict[str, Any]) -> None:
        """A foreman named outcomes that it keeps for a worker which does not listen."""
        if told.get("left"):
            self._left.setdefault((foreman, former), {}).update(dict.fromkeys(told["left"]))

    def gone(self, name: str) -> None:
        """There is no foreman of that name."""
        for case in self.cases:
            for foreman in case.unanswered:
                if foreman[0] == name:
                    self._is_dead(case, foreman)

    def _is_dead(self, case: Case, foreman: Incarnation) -> None:
        if case.is_here:
            case.answers[foreman] = None
            case.has_news = True

    # -- telling ---------------------------------------------------------------------------------

    def troubles(self, now: float) -> dict[str, str]:
        """What lost workers had and has waited here for a while, and for what (see troubles.py)."""
        found = {}
        for case in self.cases:
            waits = case.unreadable or case.unanswered
            if waits and (case.unreadable or case.refused or now - case.since > FOREMAN_SECONDS):
                words = f"{len(case.orphans)} runs of {case.former or self.runner.host.id} {self._obstacle(case)}"
                found[troubles.of_lost_worker(case.former or self.runner.host.id)] = words
            if len(found) >= TOLD:
                break
        return found

    def _obstacle(self, case: Case) -> str:
        if case.unreadable:
            return (
                "were begun by another release, in words that this one cannot read: they go on on Ray, and a worker of "
                "that release takes them over. Start one."
            )
        foreman = case.unanswered[0]
        why = case.refused.get(foreman) or self.runner.refusals.get(foreman[0], ("", 0.0))[0]
        how = f"refuses to answer: {why}" if why else "does not answer"
        words = f"wait for the foreman {foreman[0]}, which {how}. They may be executing, and are not started again."
        if not case.former:
            return words
        if not case.is_here:
            # The worker of an older release did not say which Ray it spoke to.
            return f"wait for the foreman {foreman[0]}, which {how}. They are LOST after {UNREACHABLE_SECONDS:g} s."
        return (
            f"{words} If it never answers, end its process on Ray's head node (ray::Foreman), or give them up: "
            f"manage.py manta recover {case.former}"
        )

    # -- deciding --------------------------------------------------------------------------------

    def talk(self, ledger: Ledger, now: float) -> float | None:
        if self.runner.recorded and not self.runner.stopping:
            for case in list(self.cases):
                self._go_on_with(case, ledger, now)
        while self._left:
            (foreman, former), keys = next(iter(self._left.items()))
            try:
                self._clear_away(ledger, foreman, former, list(keys))
            except messages.UNREADABLE:
                logger.exception(
                    "What the foreman %s keeps of lost workers cannot be compared with the ledger.", foreman
                )
            # Only now: if the ledger cannot be asked it is asked again.
            del self._left[foreman, former]
        if self.runner.stopping:
            # For whoever stays.
            return None
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look(ledger)
            self.tend(now)
        return self._look_at

    def _go_on_with(self, case: Case, ledger: Ledger, now: float) -> None:
        if case.has_news:
            # What one foreman has need not wait for what another one says.
            self._adopt(case, ledger)
            case.has_news = False
        if self._is_decided(case, now):
            self._decide(case, ledger)
        if case.orphans and now >= case.reconsider_at:
            case.reconsider_at = now + RECONSIDER_SECONDS
            self._reconsider(case, ledger)
        if not case.orphans:
            self.cases.remove(case)

    def _is_decided(self, case: Case, now: float) -> bool:
        return not case.unanswered or (not case.is_here and now - case.since > UNREACHABLE_SECONDS)

    def _reconsider(self, case: Case, ledger: Ledger) -> None:
        """Forget what is no longer that worker's, and ask once more for what could not be read."""
        if case.former:
            found = ledger.orphans(case.former, limit=BATCH + sum(len(each.orphans) for each in self.cases))
            standing = {orphan.token for orphan in found}
        else:
            standing = {token for _, token in house.owned(ledger, self.runner.host.id)}
        case.orphans = {token: orphan for token, orphan in case.orphans.items() if token in standing}
        case.unreadable &= standing
        if case.unreadable:
            case.answers.clear()

    def _look(self, ledger: Ledger) -> None:
        known = {token for case in self.cases for token in case.orphans}
        # Those that are asked for already must not hide the others.
        limit = BATCH + sum(len(case.orphans) for case in self.cases)
        found = ledger.orphans(limit=limit, runner="ray", place=self.runner.place)
        held: dict[str, list[Orphan]] = {}
        for orphan in found:
            if orphan.token not in known:
                held.setdefault(orphan.worker, []).append(orphan)
        for former, orphans in held.items():
            foremen = read_foremen(orphans[0].foremen)
            logger.warning("Worker %s is gone; asking for the %s runs that it had on Ray.", former, len(orphans))
            by_token = {orphan.token: orphan for orphan in orphans}
            self.cases.append(Case(former, by_token, foremen, is_here=bool(orphans[0].ray)))
            self._ask_at = 0.0

    def _clear_away(self, ledger: Ledger, foreman: str, former: str, keys: list[str]) -> None:
        """Tell a foreman which outcomes of a lost worker nobody waits for."""
        states = ledger.states({UUID(messages.run_of(key)) for key in keys})
        executing = [run_id for run_id, state in states.items() if state in (State.RUNNING, State.CANCELLING)]
        standing = {messages.key_of(run.id.hex, run.token or 0) for run in ledger.fetch(executing, history=False)}
        if not former:
            # Its worker may have another database: only what this one knows can be judged.
            keys = [key for key in keys if UUID(messages.run_of(key)) in states]
        over = [key for key in keys if key not in standing]
        if over:
            self.runner.say(foreman, "settled", keys=over)
        if over and former:
            # A foreman names only so many at a time.
            then = partial(self.note_left, foreman, former)
            self.runner.ask(foreman, "fence", then, former=former, keys=[])

    def _adopt(self, case: Case, ledger: Ledger) -> None:
        """Take over what foremen have of it."""
        worker = self.runner.host.id
        known = self._known(case)
        executions = [(orphan.id, token) for token, orphan in case.orphans.items() if token in known]
        if not executions:
            return
        taken = {token for _, token in executions}
        if case.former:
            taken = ledger.adopt(executions, case.former, worker)
        by_foreman: dict[Incarnation, list[tuple[Flight, bool]]] = {}
        for token in taken:
            foreman, claim, timeout, alone = known[token]
            flight = Flight(claim._replace(worker=worker), timeout)
            by_foreman.setdefault(foreman, []).append((flight, alone))
        # What was not taken, because its row was locked, is seen at the next look.
        case.orphans = {token: orphan for token, orphan in case.orphans.items() if token not in known}
        for foreman, flights in by_foreman.items():
            self.runner.adopt(foreman, flights)

    def _known(self, case: Case) -> "dict[int, tuple[Incarnation, Claimed, float | None, bool]]":
        """What foremen have of it and this release can read. The rest is noted."""
        known = {}
        case.unreadable = set()
        for foreman, answer in case.answers.items():
            for token, facts in (answer or {}).items():
                try:
                    written, names, timeout, alone, *_ = facts
                    known[token] = foreman, messages.read_claim(written, names), timeout, alone
                except (ValueError, LookupError, TypeError) as error:
                    logger.debug("The claim of execution %s cannot be read: %s", token, error)
                    case.unreadable.add(token)
        case.unreadable &= case.orphans.keys()
        return known

    def _decide(self, case: Case, ledger: Ledger) -> None:
        """Settle what no foreman has."""
        rest = [orphan for token, orphan in case.orphans.items() if token not in case.unreadable]
        # What is not done when the database goes away is seen at the next look.
        case.orphans = {token: case.orphans[token] for token in case.unreadable}
        if rest:
            all_alive = all(case.answers.get(foreman) is not None for foreman in case.foremen)
            settled = self._return(case, rest, ledger) if all_alive else self._lose(case, rest, ledger)
            recovered(self.backend, ledger, {orphan.token: orphan for orphan in rest}, settled, lost=not all_alive)

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
