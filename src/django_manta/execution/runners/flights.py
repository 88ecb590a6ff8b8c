"""Claimed runs on their way through a runner, and what is told when an executor dies under them."""

import signal
import time
from dataclasses import dataclass, field

from django_manta.ledger import Claimed
from django_manta.states import Outcome

#: After its time limit, or after it was told to stop, an execution has so long before its process is killed.
GRACE_SECONDS = 1.5

#: After the task of an execution with a time limit has returned, its value has to be encoded and stored within this
#: time, from the moment in which its process would have been killed for the limit. Then the process is killed.
STORE_SECONDS = 600.0


@dataclass(slots=True, eq=False)
class Flight:
    """A claimed run in the hands of an executor."""

    claim: Claimed
    timeout: float | None
    concurrent: bool = False
    #: Since when it waits for an executor.
    waiting_since: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    #: What its end counts as if the process has to be killed for it, and why.
    doomed: tuple[Outcome, str] | None = None
    kill_at: float | None = None
    #: Its task has returned: its time limit is not for what is left to do.
    returned: bool = False
    #: For that its process was not killed at its time limit. It has STORE_SECONDS instead.
    excused: bool = False
    #: Somebody asked to cancel it before it was started: it is given back, to end there.
    unwanted: bool = False


@dataclass(slots=True, eq=False)
class Died:
    """A process that executed runs is gone."""

    pid: int
    code: int | None
    #: Executions that had started, with what it printed last.
    started: list[Flight]
    unstarted: list[Flight]
    output: str
    peak_memory: int | None
    #: Whether it was we who killed it.
    killed: bool
    #: Whether it never said that it had started what it is said to have been at.
    presumed: bool = False
    #: What is known of its end, where there is no exit code.
    words: str = ""
    #: What it is called, where it is not a process of this machine, and how its log is found.
    executor: str = ""
    log_ref: str = ""

    @property
    def evidence(self) -> str:
        if self.words:
            return self.words
        if self.code is None:
            return "Its process is gone."
        if self.code < 0:
            try:
                name = signal.Signals(-self.code).name
            except ValueError:
                name = f"signal {-self.code}"
            return f"Its process was ended by {name}."
        return f"Its process ended with exit code {self.code}."
