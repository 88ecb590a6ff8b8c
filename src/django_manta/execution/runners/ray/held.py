"""What a foreman holds: runs, the chunks that execute them, and what their workers are to be told."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from django_manta.execution.runners.ray import messages
from django_manta.execution.runners.ray.chunk import OUTPUT_CHARACTERS

if TYPE_CHECKING:
    from django_manta.execution.runners.ray.connection import Connection

#: At most so many events in one answer.
EVENTS = 2_000

#: And so many characters of events. One that is larger is told by itself.
ANSWER_CHARACTERS = 8 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Held:
    """A run that is here: waiting for Ray, executing, or ended and not settled yet."""

    key: str
    run: str
    task: str
    worker: str
    #: As its worker wrote it: only who executes it has to read it.
    claim: str
    timeout: float | None
    kind: "Kind"
    chunk: "Chunk | None" = None
    started_at: float | None = None
    #: What its end counts as if its process has to be killed for it, and why.
    doomed: tuple[str, str] | None = None
    #: Somebody asked to cancel it before it was started.
    unwanted: bool = False
    #: Its worker wants it back, unless it has begun.
    withdrawn: bool = False
    #: How many processes gave it back because they could not speak with the foreman.
    unheard: int = 0
    #: The ledger has its outcome: nobody has to be told for its sake.
    is_kept: bool = False
    #: The event that tells how it ended.
    end: str = ""
    #: How much memory that takes.
    size: int = 0
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class Kind:
    """What runs have in common that may share a chunk."""

    options: dict[str, Any]
    environment: dict[str, Any]
    alone: bool
    #: Which field stands where in a claim.
    fields: list[str]


@dataclass(slots=True, eq=False)
class Chunk:
    """A Ray task and what it was given to execute."""

    id: str
    held: dict[str, Held]
    #: It was given one run only, and waits until it is heard.
    is_alone: bool = False
    ref: Any = None
    #: What Ray says in the end.
    answer: "asyncio.Future[bytes] | None" = None
    #: The run that it is at.
    head: Held | None = None
    connection: "Connection | None" = None
    #: Where the interpreter writes what its process dies of.
    last_words: "Connection | None" = None
    #: The process that executes it, and where it prints.
    pid: int = 0
    name: str = ""
    log: str = ""
    #: From where on the words there are of the run that it is at.
    log_part: str = ""
    #: The run for whose sake it was told to end: then it dies by our hand.
    killed_for: Held | None = None
    #: Why it was ended, if its process did what no process of ours does.
    fault: str = ""
    #: Something that it said could not be read: it may have begun what nobody heard of.
    is_garbled: bool = False
    asked_back: bool = False
    #: The end of what was printed by the run that it is at.
    output: str = ""
    #: It said all it has to say.
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def killed(self) -> bool:
        return self.killed_for is not None

    def overhear(self, text: str) -> None:
        """Something that its process printed, or wrote when it died."""
        self.output = (self.output + text)[-OUTPUT_CHARACTERS:]


class Outbox:
    """What one worker is to be told."""

    def __init__(self) -> None:
        self.starts: dict[str, Held] = {}
        #: In the order in which they ended; none is told twice in a row.
        self.ends: dict[str, Held] = {}
        self.filled = asyncio.Event()
        #: When its worker listened last.
        self.listened_at = time.monotonic()
        self._answered_at = 0.0

    def started(self, held: Held) -> None:
        self.starts[held.key] = held
        self.filled.set()

    def ended(self, held: Held) -> None:
        # Who hears that it ended need not hear that it had started.
        self.starts.pop(held.key, None)
        self.ends[held.key] = held
        self.filled.set()

    def forget(self, held: Held) -> None:
        """It is settled: nobody has to be told."""
        self.starts.pop(held.key, None)
        self.ends.pop(held.key, None)

    async def take(self, seconds: float, pause: float) -> list[str]:
        """What there is to tell, not sooner than ``pause`` after the last: short ones cost as much as long ones."""
        self.listened_at = time.monotonic()
        if not self.filled.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.filled.wait(), seconds)
        if (early := self._answered_at + pause - time.monotonic()) > 0:
            await asyncio.sleep(early)
        events = self._take_ends()
        now = time.monotonic()
        for held in self.starts.values():
            events.append(messages.dump(["started", held.key, now - (held.started_at or now)]))
        self.starts.clear()
        if not self.ends:
            self.filled.clear()
        self._answered_at = time.monotonic()
        return events

    def _take_ends(self) -> list[str]:
        events: list[str] = []
        characters = 0
        for held in list(islice(self.ends.values(), EVENTS)):
            characters += len(held.end)
            if events and characters > ANSWER_CHARACTERS:
                break
            events.append(held.end)
            del self.ends[held.key]
        return events
