"""
What is measured, the same way for everybody.

A measure gives back a sample: its value, in the unit of its column, and what must be said about it. Every
measure has a time limit. Who is not done within it is judged by what he has done, and the sample says so.
"""

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from benchmarks.peers import database, work
from benchmarks.peers.workers import Trouble, Workers

PROCESSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    enqueue: int
    bulk: int
    drain: int
    latency: int
    chain: int
    fan: int
    naps: int
    statements: int
    backlogs: tuple[int, ...]
    #: Seconds that one measure may take.
    limit: float


FULL = Sizes(
    enqueue=1_000,
    bulk=10_000,
    drain=10_000,
    latency=50,
    chain=100,
    fan=1_000,
    naps=200,
    statements=500,
    backlogs=(1_000, 100_000, 1_000_000),
    limit=5.0,
)
QUICK = Sizes(
    enqueue=200,
    bulk=2_000,
    drain=2_000,
    latency=20,
    chain=20,
    fan=200,
    naps=40,
    statements=200,
    backlogs=(1_000, 10_000),
    limit=8.0,
)
TINY = Sizes(
    enqueue=50,
    bulk=200,
    drain=200,
    latency=5,
    chain=5,
    fan=20,
    naps=10,
    statements=50,
    # More than anybody writes one by one: the rest are copies, and these too must be seen to work.
    backlogs=(1_000, 25_000),
    limit=4.0,
)
SIZES = {"full": FULL, "quick": QUICK, "tiny": TINY}

NAP_SECONDS = 0.05

#: A workflow may take so many times as long as another measure: one that is cut off has no figure at all.
WORKFLOW_LIMITS = 6

#: So long workers may take to come up, a Ray of theirs included.
MEET_SECONDS = 25.0

#: Of a backlog, so many are timed.
FIRST = 1_000

#: So long nobody is asked how many have ended, where the moments of their ends can be read afterwards.
_UNASKED_SECONDS = 0.5

#: What is over within so long is measured so often, and the median counts: a moment in which the machine does something
#: else must not be a figure.
SHORT_SECONDS, OFTEN = 1.5, 3

#: And a large backlog only where that takes no longer than this, all in all.
AGAIN_SECONDS = 25.0

#: Between two single runs: long enough for everybody to go to sleep again, and never the same, so that nothing
#: that happens regularly is always met or always missed.
PAUSE_SECONDS = (0.04, 0.08)


@dataclass(slots=True)
class Sample:
    value: float
    note: str = ""
    #: Single observations, where the value is one of their percentiles.
    samples: list[float] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        # Microseconds are enough of a millisecond.
        kept = asdict(self) | {"samples": [round(one, 3) for one in self.samples]}
        return {name: given for name, given in kept.items() if given or name == "value"}


class Adapter(Protocol):
    """What each module in ``adapters`` offers. ``OPTIONAL`` names what it may offer besides."""

    #: Django settings beyond the common ones.
    SETTINGS: dict[str, Any]
    #: Which settings were chosen, and why; a sentence or two for the page.
    NOTE: str

    def commands(self) -> list[list[str]]:
        """The arguments of Python that start two worker processes, one run at a time each."""

    def purge(self) -> None:
        """Nothing waits and no result is kept. Workers may be running, but are doing nothing."""

    def enqueue(self, name: str, *args: Any) -> Any:
        """One call of the function ``name`` in ``work``; a handle to its result."""

    def value(self, handle: Any, timeout: float) -> Any:
        """The result, waited for in the best way that the peer offers. TimeoutError."""

    def fill(self, count: int) -> None:
        """``count`` calls of ``resize`` appear at once, each as an enqueue would leave it."""

    def finished(self) -> int:
        """How many results are stored."""


REQUIRED = ("SETTINGS", "NOTE", "commands", "purge", "enqueue", "value", "fill", "finished")

OPTIONAL = {
    "prepare": "what is to be done once, after `migrate`",
    "bulk": "(count): that many calls of `resize` through the peer's own call for many",
    "moments": "(most): when the first of them ended; without it they are counted while they end",
    "chain": "(length): a handle to the last of so many `link`, each after the one before",
    "fan": "(width): a handle to a `count` that runs after so many `resize`",
    "commands_sent": "(): commands that a Redis server has executed so far",
    "workflow_commands": "like `commands`, where `chain` and `fan` need other workers than the rest",
    "ready": "(timeout): waits for the workers, where a stamp cannot tell",
}

#: A limit has no workers and no queue: its adapter has `measures(sizes)`, a function for each measure it knows.
REQUIRED_OF_LIMITS = ("SETTINGS", "NOTE", "measures")


class Measures:
    """All measures of one contender, with its workers running where they are needed."""

    def __init__(self, adapter: Any, sizes: Sizes, start: Callable[[list[list[str]]], Workers]) -> None:
        self.adapter = adapter
        self.sizes = sizes
        self._start = start
        self.workers: Workers | None = None
        self._commands: list[list[str]] = []
        self._dice = random.Random(7)
        #: A thousand take it no more than two seconds.
        self._is_quick = False

    def names(self) -> list[str]:
        can = [
            "enqueue",
            *(["bulk"] if hasattr(self.adapter, "bulk") else []),
            "pickup",
            "result",
            *(["chain"] if hasattr(self.adapter, "chain") else []),
            *(["fan"] if hasattr(self.adapter, "fan") else []),
            "naps",
            "drain",
            "memory",
            "statements",
        ]
        return can + [f"backlog_{size}" for size in self.sizes.backlogs]

    def measure(self, name: str) -> Sample:
        if name.startswith("backlog_"):
            return self.backlog(int(name.removeprefix("backlog_")))
        return getattr(self, name)()  # type: ignore[no-any-return]

    # -- the workers ---------------------------------------------------------------------------------

    def at_rest(self) -> None:
        """No workers, nothing waiting."""
        if self.workers is not None:
            self.workers.end()
            self.workers = None
        self.adapter.purge()

    def at_work(self, *, workflows: bool = False) -> Workers:
        """Workers that have all their processes and have had something to do, and nothing waiting."""
        special = workflows and hasattr(self.adapter, "workflow_commands")
        commands = self.adapter.workflow_commands() if special else self.adapter.commands()
        if self.workers is not None and commands == self._commands:
            self.workers.check()
            return self.workers
        self.at_rest()
        self._commands = commands
        self._come_up()
        for handle in [self.adapter.enqueue("resize", *work.ARGUMENTS) for _ in range(50)]:
            self._value(handle, 30)
        return self.workers

    def _come_up(self) -> None:
        """Start workers and meet them. Who does not come up is started once more."""
        try:
            self.workers = self._start(self._commands)
            self._meet()
        except Trouble:
            self.at_rest()
            try:
                self.workers = self._start(self._commands)
                self._meet()
            except Trouble as trouble:
                raise Trouble(f"It did not come up, started twice. {trouble}") from None

    def _meet(self) -> None:
        """Wait until both processes have executed something."""
        if hasattr(self.adapter, "ready"):
            self.adapter.ready(60.0)
        seen: set[int] = set()
        deadline = time.monotonic() + MEET_SECONDS
        while len(seen) < PROCESSES and time.monotonic() < deadline:
            handles = [self.adapter.enqueue("stamp", 0.1) for _ in range(PROCESSES)]
            seen |= {self._value(handle, MEET_SECONDS)[1] for handle in handles}

    def _value(self, handle: Any, timeout: float) -> Any:
        """The value, or Trouble as soon as a worker has gone."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self.adapter.value(handle, min(5.0, timeout))
            except TimeoutError:
                if self.workers is not None:
                    self.workers.check()
                if time.monotonic() >= deadline:
                    words = self.workers.last_words() if self.workers else ""
                    raise Trouble(f"No result within {timeout:g} s. Its log ends: {words}") from None

    # -- enqueue -------------------------------------------------------------------------------------

    def enqueue(self) -> Sample:
        """Single calls a second, each in a transaction of its own, no worker running."""
        self.at_rest()
        self.adapter.enqueue("resize", *work.ARGUMENTS)
        done, began = 0, time.perf_counter()
        while done < self.sizes.enqueue and time.perf_counter() - began < self.sizes.limit / 2:
            self.adapter.enqueue("resize", *work.ARGUMENTS)
            done += 1
        return Sample(done / (time.perf_counter() - began), _of(done, self.sizes.enqueue))

    def bulk(self) -> Sample:
        """Calls a second through the peer's own call for many."""
        self.at_rest()
        self.adapter.bulk(10)
        began = time.perf_counter()
        self.adapter.bulk(self.sizes.bulk)
        return Sample(self.sizes.bulk / (time.perf_counter() - began))

    # -- latency -------------------------------------------------------------------------------------

    def pickup(self) -> Sample:
        """From the call of an enqueue to the first line of the function."""

        def one() -> float:
            began = time.monotonic_ns()
            handle = self.adapter.enqueue("stamp")
            # Left alone meanwhile: whoever asks for the result takes time on a processor.
            time.sleep(0.02)
            return float(self._value(handle, 20)[0] - began) / 1e6

        return self._singles(one)

    def result(self) -> Sample:
        """From before an enqueue until its caller holds the value."""

        def one() -> float:
            began = time.monotonic_ns()
            self._value(self.adapter.enqueue("stamp"), 20)
            return (time.monotonic_ns() - began) / 1e6

        return self._singles(one)

    def _singles(self, one: Callable[[], float]) -> Sample:
        self.at_work()
        one()
        found: list[float] = []
        deadline = time.monotonic() + self.sizes.limit
        while len(found) < self.sizes.latency and (time.monotonic() < deadline or len(found) < 3):
            time.sleep(self._dice.uniform(*PAUSE_SECONDS))
            found.append(one())
        return Sample(sorted(found)[len(found) // 2], _of(len(found), self.sizes.latency), found)

    # -- workflows -----------------------------------------------------------------------------------

    def chain(self) -> Sample:
        """Milliseconds a step, from before the first enqueue to the value of the last."""
        seconds = self._often(lambda: self._workflow(lambda: self.adapter.chain(self.sizes.chain)))
        return Sample(1000 * seconds / self.sizes.chain)

    def fan(self) -> Sample:
        """Milliseconds from before the first enqueue to the value of the join."""
        return Sample(1000 * self._workflow(lambda: self.adapter.fan(self.sizes.fan)))

    def _workflow(self, enqueue: Callable[[], Any]) -> float:
        self.at_work(workflows=True)
        began = time.perf_counter()
        handle = enqueue()
        try:
            self._value(handle, WORKFLOW_LIMITS * self.sizes.limit)
        except Trouble:
            self.at_rest()
            raise
        return time.perf_counter() - began

    # -- throughput ----------------------------------------------------------------------------------

    def naps(self) -> Sample:
        """Percent of the ideal: two processes that do nothing but sleep."""
        self.at_work()
        before = self.adapter.finished()
        began = time.perf_counter()
        for _ in range(self.sizes.naps):
            self.adapter.enqueue("nap", NAP_SECONDS)
        ideal = self.sizes.naps * NAP_SECONDS / PROCESSES
        done, seconds = self._finish(self.sizes.naps, began, 2.5 * ideal + 2, before)
        return Sample(100 * (done * NAP_SECONDS / PROCESSES) / seconds, _of(done, self.sizes.naps))

    def drain(self) -> Sample:
        """Runs a second, from the moment when all are there to the last result."""
        count = self.sizes.drain
        first = self._drained(count, count)
        if first.note:
            # It was not done within the limit.
            return first
        return Sample(count / self._often(lambda: count / self._drained(count, count).value, count / first.value))

    def _often(self, seconds: Callable[[], float], first: float | None = None) -> float:
        """How long it takes: what is short, more than once."""
        found = [seconds() if first is None else first]
        while len(found) < OFTEN and found[0] < SHORT_SECONDS:
            found.append(seconds())
        return sorted(found)[len(found) // 2]

    def backlog(self, size: int) -> Sample:
        """Runs a second of the first 1,000, with so many waiting. What is over in a moment, more than once."""
        began = time.perf_counter()
        samples = [self._first_of(size)]
        if size == FIRST:
            self._is_quick = samples[0].value > 500
        # A small one costs little; to start workers and fill a large one again takes long.
        is_short = samples[0].value * _UNASKED_SECONDS > FIRST and time.perf_counter() - began < AGAIN_SECONDS
        again = self._is_quick if size == FIRST else is_short
        while len(samples) < OFTEN and again:
            samples.append(self._first_of(size))
        return sorted(samples, key=lambda sample: sample.value)[len(samples) // 2]

    def _first_of(self, size: int) -> Sample:
        if size > FIRST and self.workers is None and self._is_quick:
            # As warm as for the small one, before which there were drains: new processes still have to come by their
            # memory, page by page.
            self._drained(self.sizes.drain, self.sizes.drain)
            self._drained(FIRST, FIRST)
        return self._drained(size, FIRST)

    def _drained(self, count: int, most: int) -> Sample:
        workers = self.at_work()
        # The workers have nothing to do, so that nothing of theirs is in the way.
        self.adapter.purge()
        with workers.still():
            self.adapter.fill(count)
            began, wall = time.perf_counter(), time.time()
        if hasattr(self.adapter, "moments"):
            # The rows say when each ended. To count them among a million takes a processor longer than the fastest need
            # for a thousand.
            time.sleep(_UNASKED_SECONDS)
        done, seconds = self._finish(most, began, self.sizes.limit)
        if hasattr(self.adapter, "moments"):
            found = [moment - wall for moment in self.adapter.moments(most)]
            found = [moment for moment in found if moment <= self.sizes.limit]
            if found:
                # Who was cut off worked for as long as the limit, and not while the last ones were counted.
                done, seconds = len(found), found[-1] if len(found) == most else self.sizes.limit
        if done < count:
            self.at_rest()
        if not done:
            raise Trouble(f"Nothing of {count:,} was done within {self.sizes.limit:g} s.")
        return Sample(done / seconds, _of(done, most))

    def _finish(self, count: int, began: float, limit: float, before: int = 0) -> tuple[int, float]:
        """How many of ``count`` were finished, and after how many seconds."""
        assert self.workers is not None
        while True:
            asked = time.perf_counter()
            done = self.adapter.finished() - before
            now = time.perf_counter()
            if done >= count:
                return count, now - began
            self.workers.check()
            if asked - began >= limit:
                # A count is of the moment when it was asked for, however long it takes.
                return max(0, done), asked - began
            # Asking may take a twentieth of the time, and no more.
            time.sleep(max(0.005, min(20 * (now - asked), began + limit - now)))

    # -- cost ----------------------------------------------------------------------------------------

    def memory(self) -> Sample:
        """MiB of all worker processes together, after they have worked."""
        return Sample(self.at_work().memory() / 2**20)

    def statements(self) -> Sample:
        """Statements a run while a backlog is drained, those of the enqueue apart."""
        workers = self.at_work()
        self.adapter.purge()
        count = self.sizes.statements
        counter, sent = database.Statements(), getattr(self.adapter, "commands_sent", None)
        with counter.counted():
            # What idle workers ask for while the rows are being written is no part of any run.
            with workers.still():
                self.adapter.fill(count)
                before = sent() if sent else 0
            done, _ = self._finish(count, time.perf_counter(), 2 * self.sizes.limit)
        notes = [] if counter.unit == "statements" else [counter.unit]
        total = float(counter.count)
        if sent:
            commands = sent() - before
            total += commands
            notes.append(f"{commands / max(done, 1):.1f} of them to Redis")
        if done < count:
            self.at_rest()
        return Sample(total / max(done, 1), "; ".join(notes))


def _of(done: int, wanted: int) -> str:
    return "" if done >= wanted else f"{done:,} of {wanted:,} within the limit"
