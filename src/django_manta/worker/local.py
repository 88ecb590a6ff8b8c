"""The runner ``processes``: children of this machine (a Pool), and the rules by which they get runs (a Dispatcher)."""

import selectors
from collections.abc import Sequence
from uuid import UUID

from django_manta.execution.runners.flights import Flight
from django_manta.execution.runners.processes import Pool, Recycle
from django_manta.ledger import Ledger
from django_manta.states import Outcome
from django_manta.worker.dispatch import Appetite, Dispatcher, Tier
from django_manta.worker.hosting import Host


class Processes:
    """See hosting.Runner."""

    outlives_worker = False
    recovers = False

    def __init__(
        self,
        host: Host,
        selector: selectors.BaseSelector,
        processes: int,
        async_slots: int,
        recycle: Recycle,
        tiers: Sequence[Tier],
    ) -> None:
        self.processes = processes
        self.pool = Pool(
            selector,
            processes,
            async_slots,
            recycle,
            on_started=host.started,
            on_ended=host.ended,
            on_returned=host.returned,
            on_died=host.died,
            is_full=lambda: host.is_full,
        )
        self.dispatcher = Dispatcher(self.pool, list(tiers), async_slots, lambda: host.in_hand)

    @property
    def words(self) -> str:
        return f"{self.processes} processes"

    @property
    def slots(self) -> int:
        # And one child for all coroutines.
        return self.processes + 1

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        self.pool.start()

    def stop(self) -> list[Flight]:
        self.pool.stop()
        return self._empty_backlog()

    def interrupt(self, kill_at: float) -> None:
        self.pool.hear()
        for child in self.pool.children.values():
            for flight in list(child.under_way):
                if flight.started_at is not None:
                    flight.doomed = None
                    self.pool.interrupt(child, flight, Outcome.INTERRUPTED, "The worker was stopped.")
                    # If it has to be killed, then for this.
                    flight.kill_at = kill_at

    def kill(self) -> None:
        self.pool.kill()

    def drop(self) -> None:
        self._empty_backlog()
        self.pool.drop()

    def close(self) -> None:
        self.pool.close()

    def _empty_backlog(self) -> list[Flight]:
        left = list(self.dispatcher.backlog)
        self.dispatcher.backlog.clear()
        return left

    # -- the path of a run -----------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return bool(self.pool.sync_children())

    @property
    def is_busy(self) -> bool:
        return any(child.held for child in self.pool.children.values())

    def appetite(self, queues: Sequence[str], now: float) -> list[Appetite]:
        return self.dispatcher.appetite(queues, now)

    def next_appetite(self, now: float) -> float | None:
        return self.dispatcher.next_fetch(now)

    def take_on(self, flights: Sequence[Flight]) -> None:
        self.dispatcher.take_on(flights)

    def take_back(self, flights: Sequence[Flight], now: float) -> None:
        self.dispatcher.take_back(flights, now)

    def dispatch(self) -> None:
        self.dispatcher.dispatch()

    @property
    def waits(self) -> bool:
        return bool(self.dispatcher.backlog)

    def overdue(self, now: float) -> list[Flight]:
        return self.dispatcher.overdue(now)

    def rest(self, patience: float) -> float:
        return self.pool.rest(patience)

    def tend(self, now: float) -> float | None:
        self.pool.hear()
        times = [self.pool.tend(now), self.dispatcher.tend(now)]
        return min((time for time in times if time is not None), default=None)

    def cancel(self, flight: Flight) -> list[Flight]:
        # It may have begun since.
        self.pool.hear()
        for child in self.pool.children.values():
            if flight.claim.token in child.held:
                if flight.started_at is not None:
                    self.pool.interrupt(child, flight, Outcome.CANCELLED, "It was cancelled.")
                else:
                    flight.unwanted = True
                    self.pool.take_back(child)
                return []
        if flight in self.dispatcher.backlog:
            self.dispatcher.backlog.remove(flight)
            return [flight]
        return []

    def note(self, task: str, seconds: float) -> None:
        self.dispatcher.durations.note(task, seconds)

    def settled(self, tokens: Sequence[int]) -> None:
        self.dispatcher.settled(len(tokens))

    # -- the database ----------------------------------------------------------------------------

    def unknown(self, executions: list[tuple[UUID, int]]) -> list[tuple[UUID, int]]:
        return executions

    def talk(self, ledger: Ledger, now: float) -> float | None:
        return None
