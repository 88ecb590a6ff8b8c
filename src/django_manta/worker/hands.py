"""
What a worker has in hand: the runs that it has claimed and not settled.

Its runner tells here what becomes of them (see hosting.Host), and the outcomes go on to the settler; when the ledger
has said what became of those, they are forgotten, and who wants to know is told.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from django.db import Error as DatabaseError
from django.db import close_old_connections

from django_manta.execution import announce
from django_manta.execution.admission import resolve
from django_manta.execution.runners.flights import Died, Flight
from django_manta.ledger import Claimed, Ledger, Settleable, Settlement, Written
from django_manta.ledger.claiming import CLAIM_BYTES
from django_manta.payload import size_of
from django_manta.states import Outcome, State
from django_manta.worker import events
from django_manta.worker.events import facts_of, tell
from django_manta.worker.hosting import Runner
from django_manta.worker.obituaries import obituary
from django_manta.worker.prospects import Prospects
from django_manta.worker.queues import Queues
from django_manta.worker.settling import Moved, Settler
from django_manta.worker.stopping import Stopping

if TYPE_CHECKING:
    from django_manta.backend import MantaBackend

logger = logging.getLogger("django_manta")

#: Arguments of fewer characters are not counted: all that a worker can have of those is little.
LIGHT_CHARACTERS = 16 * 1024


class Hands:
    """What runners tell their host (see hosting.Host)."""

    #: Under which the runs are held, and who settles them: both begin anew when the lease was lost.
    id: str
    settler: Settler
    #: Made for these hands, and so after them.
    runner: Runner

    def __init__(
        self,
        backend: "MantaBackend",
        ledger: Ledger,
        queues: Queues,
        prospects: Prospects,
        stopping: Stopping,
        max_runs: int | None,
    ) -> None:
        self._backend = backend
        self._ledger = ledger
        self._queues = queues
        self._prospects = prospects
        self._stopping = stopping
        self._max_runs = max_runs
        self._in_flight: dict[int, Flight] = {}
        #: The bytes of large arguments, by token, and of those of them whose runs have not started.
        self._large: dict[int, int] = {}
        self._unstarted_bytes = 0
        self.executed = 0

    def __len__(self) -> int:
        return len(self._in_flight)

    def __contains__(self, token: int) -> bool:
        return token in self._in_flight or token in self.settler

    def get(self, token: int) -> Flight | None:
        return self._in_flight.get(token)

    @property
    def allowance(self) -> int | None:
        """How many more may be claimed, or None for any number."""
        return None if self._max_runs is None else self._max_runs - self.executed - len(self._in_flight)

    @property
    def room(self) -> int:
        """How many bytes of arguments may be claimed; none below 1. Those of runs that have started do not count."""
        return CLAIM_BYTES - self._unstarted_bytes

    @property
    def are_done(self) -> bool:
        """As much was executed as was asked for."""
        return self._max_runs is not None and self.executed >= self._max_runs

    def begin(self, worker: str, settler: Settler) -> None:
        self.id, self.settler = worker, settler

    def drop(self) -> None:
        """The lease is lost: nothing of this is ours."""
        self.settler.clear()
        self.settler.close(0)
        self._in_flight.clear()
        self._large.clear()
        self._unstarted_bytes = 0

    def take_on(self, claims: list[Claimed]) -> None:
        now = time.monotonic()
        flights = [Flight(claim, *self._traits(claim), now) for claim in claims]
        for flight in flights:
            claim = flight.claim
            self._in_flight[claim.token] = flight
            if len(claim.arguments) > LIGHT_CHARACTERS:
                self._large[claim.token] = size = size_of(claim.arguments)
                self._unstarted_bytes += size
        self.runner.take_on(flights)
        if events.are_told():
            for claim in claims:
                tell("claimed", **facts_of(claim, self.id))
        self.runner.dispatch()
        self.settler.expect(len(claims))

    def _traits(self, claim: Claimed) -> tuple[float | None, bool]:
        """The timeout of a run, and whether it is a coroutine. The executor finds what is wrong with it."""
        try:
            resolved = resolve(claim)
        except Exception:
            # A row that was altered, or a task that this code does not have.
            return None, False
        return resolved.options.timeout, resolved.is_coroutine

    # -- what the runner tells (see hosting.Host) ------------------------------------------------

    @property
    def in_hand(self) -> int:
        return len(self)

    @property
    def is_full(self) -> bool:
        return self.settler.is_full

    def is_put_aside(self, token: int) -> bool:
        return self.settler.is_put_aside(token)

    def started(self, flight: Flight) -> None:
        if self._large:
            self._is_begun(flight.claim.token)
        if events.are_told():
            tell("started", **facts_of(flight.claim, self.id))

    def ended(self, flight: Flight, settlement: Written | None, settled: bool) -> None:
        claim = flight.claim
        self.executed += 1
        self._prospects.hungry = True
        if settlement is None:
            # It found that the run was no longer its own.
            self._forget(claim.token)
            return
        # As the executor measured it: here many ends may be read at once.
        self.runner.note(claim.task, settlement.duration)
        if settled:
            self._forget(claim.token)
            self._announce(claim, settlement, settlement.next_state)
        else:
            self._settle(flight, settlement, time.monotonic())

    def _is_begun(self, token: int) -> None:
        """Its arguments wait no more."""
        if size := self._large.get(token):
            self._large[token] = 0
            self._unstarted_bytes -= size

    def _settle(self, flight: Flight, settlement: Settleable, now: float) -> None:
        """Its end is known, so its arguments are not needed any more; until it is settled may take long."""
        if self._large and self._has_no_arguments(flight.claim.token):
            flight.claim = flight.claim._replace(arguments="")
        self.settler.add(flight.claim, settlement, now)

    def _has_no_arguments(self, token: int) -> bool:
        """Forget the size of large arguments. Whether there were any."""
        self._is_begun(token)
        return self._large.pop(token, None) is not None

    def sent(self, flights: Iterable[Flight]) -> None:
        for flight in flights:
            self._is_begun(flight.claim.token)

    def returned(self, flights: list[Flight]) -> None:
        """An executor gave back what it had not started."""
        unwanted = [flight for flight in flights if flight.unwanted or self._stopping.requests]
        self.give_back(unwanted)
        if len(unwanted) < len(flights):
            wanted = [flight for flight in flights if flight not in unwanted]
            self.runner.take_back(wanted, time.monotonic())

    def give_back(self, flights: Sequence[Flight]) -> None:
        now = time.monotonic()
        for flight in flights:
            claim = flight.claim
            given_back = Settlement(
                run_id=claim.id, token=claim.token, outcome=Outcome.RETURNED, next_state=State.READY
            )
            self._settle(flight, given_back, now)

    def died(self, died: Died) -> None:
        if died.started or (died.code not in (0, None) and not died.killed):
            logger.warning("Process %s died. %s", died.executor or died.pid, died.evidence)
        now = time.monotonic()
        for flight in died.started:
            self.executed += 1
            self._settle(flight, obituary(flight, died), now)
        self._prospects.hungry = True
        self.returned(died.unstarted)

    def settle(self, flight: Flight, settlement: Settleable) -> None:
        """Nobody executes it any more, or ever did."""
        self._prospects.hungry = True
        self._settle(flight, settlement, time.monotonic())

    def forgotten(self, flight: Flight) -> None:
        self._let_go(flight.claim.token)

    def adopted(self, flights: Iterable[Flight]) -> None:
        """Executions of a lost worker, which are ours from now on."""
        for flight in flights:
            self._in_flight[flight.claim.token] = flight
            tell("adopted", level=logging.WARNING, **facts_of(flight.claim, self.id))

    def _forget(self, token: int) -> None:
        self._let_go(token)
        self.runner.settled([token])

    def _let_go(self, token: int) -> None:
        self._in_flight.pop(token, None)
        self._has_no_arguments(token)

    # -- what the ledger says --------------------------------------------------------------------

    def conclude(self, moved: list[Moved]) -> None:
        """The ledger has said what became of these: forget them, and tell who wants to know."""
        if not moved and not self.settler.ready and not self.settler.ended:
            return
        given_back = False
        settled, unmoved = [], []
        is_heard = events.are_told() or announce.is_heard()
        for claim, settlement, state in moved:
            self._in_flight.pop(claim.token, None)
            if state is State.SUCCESSFUL and settlement.told and not is_heard:
                # As most end: nobody wants to know more of it.
                settled.append(claim.token)
            elif state is None:
                unmoved.append(claim)
                tell("not ours any more", level=logging.WARNING, **facts_of(claim, self.id))
            else:
                settled.append(claim.token)
                if state is State.READY:
                    given_back = True
                    self._prospects.others_concerned |= claim.queue not in self._queues.names
                self._announce(claim, settlement, state)
        self.runner.settled(settled)
        if unmoved and self.runner.outlives_worker:
            # If the run has moved on, nobody needs the outcome. If only our lease is lost, whoever adopts it does.
            standing = {(run.id, run.token) for run in self._ledger.fetch([each.id for each in unmoved], history=False)}
            unmoved = [claim for claim in unmoved if (claim.id, claim.token) not in standing]
        self.runner.settled([claim.token for claim in unmoved])
        if moved and self._max_runs is not None:
            # As long as they were not settled, they were counted as if they might have to be executed again.
            self._prospects.hungry = True
        if self.settler.ready:
            self._queues.hear_of(self.settler.ready)
            self._prospects.others_concerned |= not self.settler.ready <= set(self._queues.names)
            self.settler.ready.clear()
            given_back = True
        if given_back:
            self._prospects.hungry = self._prospects.must_ring = True
        if self.settler.ended:
            announce.ended(self._backend, self.settler.ended, self._ledger)
            self.settler.ended = []
        # Receivers may have used Django's connections here, which nobody else tends.
        close_old_connections()

    def _announce(self, claim: Claimed, settlement: Settleable, state: State) -> None:
        level = events.level_of(settlement.outcome, state)
        if events.are_told(level):
            facts = facts_of(claim, self.id) | {
                "outcome": settlement.outcome.value,
                "state": state.value,
                "seconds": round(settlement.duration, 6),
            }
            tell(events.name_of(settlement.outcome, state), level=level, **facts)
        try:
            announce.settled(self._backend, claim, settlement, state, self._ledger)
        except DatabaseError as error:
            # It is settled all the same, and its neighbours are still to be announced.
            logger.warning("Could not tell that run %s ended: %s", claim.id, str(error).strip())
