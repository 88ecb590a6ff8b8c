"""
Somebody holds an old snapshot, and nothing that is dead can be removed.

A transaction in REPEATABLE READ is left open for the whole drain, beside four readers that open one after
another; then an atomic run of 50 s holds its own. Every claim has to step over what was claimed since. Told is how
many runs a second end in the first and in the last 30 s, and how many do when nobody holds anything. There is always
more to claim than is claimed at once, and told is the least there was: where the workers waited for work, a rate would
not be theirs. For that they are nice to whoever enqueues, who shares two processors with eight others; in the calm as
in the storm.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from django.db import connections
from django.tasks import DEFAULT_TASK_QUEUE_NAME

from chaos import tasks, world
from django_manta.ledger import Ledger

HELD_SECONDS = 600.0
CALM_SECONDS = 60.0
ATOMIC_SECONDS = 50.0

#: Before it is measured, the workers find their pace.
WARM_SECONDS = 5.0

#: The rate at the beginning and at the end is that of so long.
WINDOW_SECONDS = 30.0

READERS = 4
#: A reader keeps its snapshot so long, and looks so often.
READER_SECONDS, READER_LOOKS = 15.0, 15

#: So many are kept ready, and enqueued at a time: what workers claim in a few seconds, and what is one insert.
BACKLOG, FEED = 40_000, 2_000

#: And so many more for each second: whoever enqueues beside readers, workers and their database, on two processors,
#: falls short of them.
SHORT = 1_000

#: A tenth of the weight of others, to whoever shares the processors out.
NICE = 10

#: What is left of the calm rate, at least.
PROMISED = 0.5


@dataclass(frozen=True, slots=True)
class Rates:
    """Runs that ended in a second, at the beginning and at the end of a drain, and the fewest that were ready."""

    first: float
    last: float
    backlog: int


def storm(weather: world.Weather, report: world.Report) -> None:
    held = weather.lasting(HELD_SECONDS, 60.0)
    calm = min(CALM_SECONDS, held / 2)
    atomic = min(ATOMIC_SECONDS, held)
    world.empty()
    rates: dict[str, Rates] = {}
    runs = lost = findings = 0
    with world.workers(nice=NICE) as start:
        world.fresh_workers(start, 2, "--exclude-queues", "io")
        # A slot of its own for the run that holds its transaction: the others are not to miss one.
        world.fresh_workers(start, 1, "--queues", "io")
        for name, seconds, holding in (
            ("calm", calm, nobody),
            ("held", held, holder_and_readers),
            ("atomic", atomic, lambda: atomic_run(atomic + 2 * WARM_SECONDS)),
        ):
            world.empty_runs()
            world.run("VACUUM manta_run")
            rates[name], fed = _drain(seconds, holding)
            world.judge(report, fed + (name == "atomic"))
            runs += fed
            lost += report.figures["lost"]
            findings += report.figures["fsck"]
    usual = (rates["calm"].first + rates["calm"].last) / 2
    report.figures = {"runs": runs, "lost": lost, "held": f"{held:g}s", "calm_rate": f"{usual:.0f}/s"}
    for name, found in rates.items():
        report.figures[f"{name}_least_backlog"] = found.backlog
        report.expect(found.backlog > 0, f"{name}: the workers waited for work: it was no storm")
    for name in ("held", "atomic"):
        found = rates[name]
        report.figures |= {
            f"{name}_first": f"{found.first:.0f}/s",
            f"{name}_last": f"{found.last:.0f}/s",
            f"{name}_ratio": f"{found.last / usual:.2f}",
        }
        report.expect(found.last >= PROMISED * usual, f"{name}: {found.last / usual:.2f} of the calm rate at the end")
    report.figures["fsck"] = findings


def _drain(seconds: float, holding: Callable[[], Any]) -> tuple[Rates, int]:
    """Keep the workers busy for so long. How fast they were, and how many runs it took."""
    window = min(WINDOW_SECONDS, seconds / 2)
    backlog = BACKLOG + int(SHORT * seconds)
    fed = 0
    claims = _Claims()

    def feed(until: float) -> int:
        """Keep runs ready until then. The fewest that were, of those that were there before each insert."""
        nonlocal fed
        fewest = backlog
        while time.monotonic() < until:
            if fed - claims.kept() < backlog:
                tasks.nap.map([0.0] * FEED)
                fewest = min(fewest, fed - claims.kept())
                fed += FEED
            else:
                time.sleep(world.LOOK_SECONDS)
        return fewest

    with _paused():
        while fed < backlog:
            tasks.nap.map([0.0] * FEED)
            fed += FEED
    feed(time.monotonic() + WARM_SECONDS)
    with holding():
        began = _now()
        fewest = feed(time.monotonic() + seconds)
        ended = _now()
    # So that nobody counts while the next one is measured.
    world.wait_for(lambda: claims.all() >= fed, 600, "everything is claimed")
    world.drained(600)
    length = timedelta(seconds=window)
    return Rates(_ended(began, began + length) / window, _ended(ended - length, ended) / window, fewest), fed


@contextmanager
def _paused() -> Iterator[None]:
    """Nobody claims what is enqueued meanwhile."""
    ledger = Ledger()
    ledger.pause(DEFAULT_TASK_QUEUE_NAME)
    try:
        yield
    finally:
        ledger.resume(DEFAULT_TASK_QUEUE_NAME)


class _Claims:
    """How many there were since. To count what is ready would be what the storm makes slow."""

    #: So many claims later one has ended, or was given back: no worker holds half as many.
    SETTLED = 20_000

    def __init__(self) -> None:
        self._before = self._looked_through = self._last()
        self._given_back = 0

    def all(self) -> int:
        return self._last() - self._before

    def kept(self) -> int:
        """Those without what was given back and is ready once more, but for what was given back in the last moments."""
        last = self._last()
        if (until := last - self.SETTLED) > self._looked_through:
            self._given_back += world.number(
                "SELECT count(*) FROM manta_attempt WHERE token > %s AND token <= %s AND outcome = 'RETURNED'",
                self._looked_through,
                until,
            )
            self._looked_through = until
        return last - self._before - self._given_back

    @staticmethod
    def _last() -> int:
        # Before the first one it says 1 as well.
        return world.number("SELECT last_value - (NOT is_called)::integer FROM manta_attempt_token_seq")


def _now() -> datetime:
    [[now]] = world.look("SELECT clock_timestamp()")
    moment: datetime = now
    return moment


def _ended(after: datetime, until: datetime) -> int:
    return world.number(
        "SELECT count(*) FROM manta_run WHERE state = 'SUCCESSFUL' AND finished_at > %s AND finished_at <= %s",
        after,
        until,
    )


# -- who holds a snapshot ----------------------------------------------------------------------------


@contextmanager
def nobody() -> Iterator[None]:
    yield


@contextmanager
def holder_and_readers() -> Iterator[None]:
    """One snapshot for the whole block, and four that are taken again and again."""
    over = threading.Event()
    readers = [threading.Thread(target=_read, args=(over, number), daemon=True) for number in range(READERS)]
    with ExitStack() as stack:
        stack.enter_context(_snapshot())
        for reader in readers:
            reader.start()
        try:
            yield
        finally:
            over.set()
            for reader in readers:
                reader.join(READER_SECONDS)


@contextmanager
def atomic_run(seconds: float) -> Iterator[None]:
    """The snapshot of a run that holds its transaction, as long as the block or longer."""
    tasks.mark_effect.using(queue_name="io", timeout=600).enqueue(seconds)
    world.wait_for(
        lambda: world.number(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND state = 'idle in transaction' AND backend_xid IS NOT NULL"
        ),
        30,
        "the atomic run holds its transaction",
    )
    yield


def _read(over: threading.Event, number: int) -> None:
    # One after another, so that the oldest of them is never much younger than their time.
    over.wait(number * READER_SECONDS / READERS)
    while not over.is_set():
        with _snapshot() as connection:
            for _ in range(READER_LOOKS):
                connection.execute("SELECT state FROM manta_run ORDER BY id DESC LIMIT 100").fetchall()
                if over.wait(READER_SECONDS / READER_LOOKS):
                    break


@contextmanager
def _snapshot() -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    wrapper: Any = connections["default"]
    params = {name: value for name, value in wrapper.get_connection_params().items() if name != "cursor_factory"}
    params.pop("context", None)
    with psycopg.connect(**params, autocommit=True) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM manta_worker")
        yield connection
