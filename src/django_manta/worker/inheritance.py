"""
What lost workers had as jobs on Ray, found and taken over.

Ray is asked for the job that an execution would have. If there is one it is adopted, in the ledger first (the token
survives, the owner changes), whatever has become of it meanwhile. Its claim is read from the envelope on its command
line. If there is none, a job of that name which does nothing is put in its place: what the lost worker may still
submit is refused by Ray itself, and the run can be given back. Unless Ray was started anew since the worker
recorded its session: then there may have been one, and the run is lost. A Ray that cannot be reached is waited for.
"""

import logging
import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_manta.exceptions import BadTaskSignature
from django_manta.execution import envelope
from django_manta.execution.runners.flights import Flight
from django_manta.execution.runners.ray.dashboard import ENDED
from django_manta.execution.runners.ray.messages import UnknownProtocol
from django_manta.ledger import Ledger, Orphan, Settled, Settlement
from django_manta.ledger.records import read_foremen
from django_manta.states import Outcome, State
from django_manta.worker import losses
from django_manta.worker.adoption import BATCH, LOOK_SECONDS, UNREACHABLE_SECONDS
from django_manta.worker.caretaker import recovered
from django_manta.worker.losses import orphans_of_ours

if TYPE_CHECKING:
    from django_manta.worker.jobs import RayJobs

logger = logging.getLogger("django_manta")

#: In the place of a foreman in a worker's row: there is none, only sessions of Ray.
FOREMAN = "jobs"


@dataclass(slots=True, eq=False)
class Case:
    """An execution whose worker is gone (or, without one, ours that we know nothing of)."""

    run_id: UUID
    token: int
    former: str
    #: The sessions of Ray in which it may have been submitted.
    sessions: frozenset[str]
    orphan: Orphan | None = None
    #: It was submitted here, or where this Ray is now.
    is_here: bool = True
    since: float = field(default_factory=time.monotonic)
    answered: bool = False
    #: In which session the answer was given, and what it was.
    session: str = ""
    found: dict[str, Any] | None = None


class Inheritance:
    """The cases of one worker, by the names of their jobs."""

    def __init__(self, runner: "RayJobs", backend: Any) -> None:
        self.runner = runner
        self.backend = backend
        self.cases: dict[str, Case] = {}
        self._look_at = 0.0

    def forget(self) -> None:
        self.cases.clear()

    def ask_about_our_own(self, executions: Iterable[tuple[UUID, int]]) -> None:
        sessions = frozenset(session for _, session in self.runner.known)
        for run_id, token in executions:
            self._open(Case(run_id, token, "", sessions))

    def _open(self, case: Case) -> bool:
        job = envelope.name_of(case.run_id, case.token)
        if job in self.cases:
            return False
        self.cases[job] = case
        self.runner.clerk.seek(job)
        return True

    def hear(self, job: str, session: str, found: dict[str, Any] | None = None) -> None:
        case = self.cases.get(job)
        # The worker of an older release did not say which Ray it spoke to: it need not have been this one.
        if case is not None and (case.is_here or session in case.sessions):
            case.answered, case.session, case.found = True, session, found
            # We may have a job there from now on.
            self.runner.meet(FOREMAN, session)

    # -- deciding --------------------------------------------------------------------------------

    def talk(self, ledger: Ledger, now: float) -> float | None:
        if self.runner.stopping:
            # For whoever stays.
            return None
        if self.runner.recorded:
            for job, case in list(self.cases.items()):
                if case.answered or now - case.since > UNREACHABLE_SECONDS:
                    # What is not done when the database goes away is seen at the next look.
                    del self.cases[job]
                    self._decide(job, case, ledger)
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look(ledger)
        return self._look_at

    def _look(self, ledger: Ledger) -> None:
        for orphan in ledger.orphans(limit=BATCH, runner="ray_job", place=self.runner.place):
            sessions = frozenset(session for _, session in read_foremen(orphan.foremen))
            is_here = bool(orphan.ray) or not sessions
            if self._open(Case(orphan.id, orphan.token, orphan.worker, sessions, orphan, is_here)):
                logger.warning("Worker %s is gone; asking Ray for the job of its run %s.", orphan.worker, orphan.id)

    def _decide(self, job: str, case: Case, ledger: Ledger) -> None:
        # Not answered, or by another Ray than the one that may have had it: nobody knows.
        lost = not case.answered or bool(case.sessions - {case.session})
        command = shlex.split((case.found or {}).get("entrypoint", ""))
        if len(command) > 1:
            try:
                claim, timeout = envelope.unseal_any(command[-1])
            except (BadTaskSignature, UnknownProtocol) as error:
                logger.error("The command of Ray's job %s cannot be read. %s", job, error)
                if (case.found or {}).get("status") not in ENDED:
                    # Nothing of it may run when it is done again. What has become of it is asked at another look.
                    self.runner.clerk.watch(job)
                    self.runner.clerk.stop_job(job)
                    return
                lost = True
            else:
                self._adopt(case, Flight(claim._replace(worker=self.runner.host.id), timeout), ledger)
                return
        settled = self._lose(case, ledger) if lost else self._return(case, ledger)
        if case.orphan is not None:
            recovered(self.backend, ledger, {case.token: case.orphan}, settled, lost=lost)

    def _adopt(self, case: Case, flight: Flight, ledger: Ledger) -> None:
        execution = case.run_id, case.token
        if not case.former or ledger.adopt([execution], case.former, self.runner.host.id):
            self.runner.adopt(flight)

    def _return(self, case: Case, ledger: Ledger) -> Settled:
        given_back = Settlement(run_id=case.run_id, token=case.token, outcome=Outcome.RETURNED, next_state=State.READY)
        if case.former:
            return ledger.settle([given_back], case.former, recovering=True)
        return ledger.settle([given_back], self.runner.host.id)

    def _lose(self, case: Case, ledger: Ledger) -> Settled:
        if case.orphan is not None:
            return losses.recover(ledger, [case.orphan])
        ours = orphans_of_ours(ledger, [(case.run_id, case.token)], self.runner.host.id)
        return losses.recover(ledger, ours)
