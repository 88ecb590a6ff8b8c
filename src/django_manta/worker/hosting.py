"""
The seam between the worker's loop and where runs are executed.

The loop claims and settles; a runner takes claimed runs on and tells what becomes of them. There are three:
``local.py``, children of this machine, ``afar.py``, tasks on a Ray cluster, and ``jobs.py``, a Ray job for each run.
All are driven by the loop's one thread: whatever a runner waits for is registered with the loop's selector, and
nothing here may block.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from django_manta.execution.runners.flights import Died, Flight
from django_manta.ledger import Ledger, Settleable, Written
from django_manta.worker.dispatch import Appetite


class Host(Protocol):
    """What a runner tells. The worker's hands are the ones that listen."""

    @property
    def id(self) -> str:
        """The identity under which the worker holds its runs at present."""
        ...

    @property
    def in_hand(self) -> int:
        """How many runs it has claimed and not settled."""
        ...

    @property
    def is_full(self) -> bool:
        """So much has ended and is not settled that it should take no more."""
        ...

    def is_put_aside(self, token: int) -> bool:
        """Whether the database refuses what it is given of that execution, for now."""
        ...

    def started(self, flight: Flight) -> None: ...

    def sent(self, flights: Iterable[Flight]) -> None:
        """
        These are with Ray, where they may wait long for what they need: their arguments do not keep the worker from
        claiming others.
        """

    def ended(self, flight: Flight, settlement: Written | None, settled: bool) -> None:
        """An execution ended; without a settlement, its run was no longer its own. ``settled``: the row says so."""

    def returned(self, flights: list[Flight]) -> None:
        """What was not started, and will not be unless it is taken on again."""

    def died(self, died: Died) -> None:
        """A process is gone, and with it what it was executing."""

    def settle(self, flight: Flight, settlement: Settleable) -> None:
        """What became of an execution that has no executor to say so."""

    def forgotten(self, flight: Flight) -> None:
        """It is not where it should be. The ledger, or others, will say what becomes of it."""

    def adopted(self, flights: Iterable[Flight]) -> None:
        """Executions of a lost worker that are this one's from now on."""


class Runner(Protocol):
    """Where the runs of one worker are executed."""

    #: What is under way goes on when the worker leaves, for a successor to settle.
    outlives_worker: bool
    #: What this kind of runner left behind is recovered by ``talk``, not by the caretaker.
    recovers: bool

    @property
    def words(self) -> str:
        """What it is, for the log."""
        ...

    @property
    def slots(self) -> int:
        """How many executions it has under way at most, as far as that is known."""
        ...

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None: ...

    def stop(self) -> list[Flight]:
        """Take on nothing more. What is to be given back, because nobody has begun it."""
        ...

    def interrupt(self, kill_at: float) -> None:
        """The time to stop is over: raise inside what runs here, and kill it at ``kill_at``."""

    def kill(self) -> None: ...

    def drop(self) -> None:
        """The lease is lost: nothing that is under way is ours any more."""

    def close(self) -> None: ...

    # -- the path of a run -----------------------------------------------------------------------

    @property
    def is_ready(self) -> bool: ...

    @property
    def is_busy(self) -> bool:
        """Something is under way that may end at any moment."""
        ...

    def appetite(self, queues: Sequence[str], now: float) -> list[Appetite]:
        """What to claim now."""
        ...

    def next_appetite(self, now: float) -> float | None:
        """When there will be room, if nothing else happens."""
        ...

    def take_on(self, flights: Sequence[Flight]) -> None:
        """Claimed runs that are to be executed here."""

    def take_back(self, flights: Sequence[Flight], now: float) -> None:
        """Runs that were returned and are still wanted: first in line."""

    def dispatch(self) -> None:
        """Hand out what waits."""

    @property
    def waits(self) -> bool:
        """Something was taken on and could not be handed out yet."""
        ...

    def overdue(self, now: float) -> list[Flight]:
        """What has waited here for too long, and is to be given back: others may have room for it."""
        ...

    def rest(self, patience: float) -> float:
        """The loop is going to wait for so long, and then to tend it. How long it may wait."""
        ...

    def tend(self, now: float) -> float | None:
        """Do what is due. When to come again."""
        ...

    def cancel(self, flight: Flight) -> list[Flight]:
        """Somebody wants it to end. It is returned here if nobody has begun it; otherwise one will hear of it."""
        ...

    def note(self, task: str, seconds: float) -> None:
        """How long an execution took."""

    def settled(self, tokens: Sequence[int]) -> None:
        """The ledger has said what became of these executions: nobody has to keep their outcomes any longer."""

    # -- the database ----------------------------------------------------------------------------

    def unknown(self, executions: list[tuple[UUID, int]]) -> list[tuple[UUID, int]]:
        """Of executions that the ledger says are ours and the loop does not know: those to be given back now."""
        ...

    def talk(self, ledger: Ledger, now: float) -> float | None:
        """Do what has to be done with the ledger. When to come again."""
        ...
