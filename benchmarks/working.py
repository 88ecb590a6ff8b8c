"""
Real workers to measure: started as a person starts them, waited for, and ended with the block.

What a worker logs goes to a file, which is shown when the block fails.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.db import connection, transaction

from benchmarks import scratch, tasks

ROOT = Path(__file__).parent.parent

#: Child processes of each worker.
PROCESSES = 2

#: No-ops after which a new worker knows how short they are, and its children have loaded what they need.
WARM_UP_RUNS = 500

#: Nothing that is waited for takes so long, on any machine, unless something is wrong.
LIMIT_SECONDS = 300.0

#: How long a worker may take to leave when it is told to.
STOP_SECONDS = 15.0

_LOG_CHARACTERS = 6_000


class Trouble(Exception):
    """A worker did not do what it was started for: there is nothing to measure."""


# -- processes ---------------------------------------------------------------------------------------


class Command:
    """``python -m django ARGUMENTS``, in a process group of its own."""

    def __init__(self, log: Path, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", *arguments],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def members(self) -> list[int]:
        """The live processes of its group: itself and whatever it has started."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.pid and state not in "ZX":
                    found.append(int(entry.name))
        return sorted(found)

    def wait_for[T](self, condition: Callable[[], T], what: str, every: float = 0.02) -> T:
        """Wait until ``condition`` is true, and give back what it was."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            if found := condition():
                return found
            if self.process.poll() is not None:
                raise Trouble(f"It ended with exit code {self.process.returncode} before this came true: {what}.")
            if time.monotonic() >= deadline:
                raise Trouble(f"Not within {LIMIT_SECONDS:g} s: {what}.")
            time.sleep(every)

    @contextmanager
    def still(self) -> Iterator[None]:
        """None of its processes does anything during the block (SIGSTOP); they go on after it."""
        stopped = self.members()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        """Ask it to leave; end by their ids whatever of its group is still there after a while."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def last_words(self) -> str:
        text = self.log.read_text(errors="replace").strip()
        return text[-_LOG_CHARACTERS:] or "(nothing)"


@contextmanager
def command(*arguments: str, settings: str = "benchmarks.settings", **environment: str) -> Iterator[Command]:
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as directory:
        begun = Command(Path(directory) / "log", arguments, {"DJANGO_SETTINGS_MODULE": settings, **environment})
        try:
            yield begun
        except BaseException as error:
            print(f"{type(error).__name__} while `{' '.join(arguments)}` ran. Its log:", file=sys.stderr)
            print(begun.last_words(), file=sys.stderr, flush=True)
            raise
        finally:
            begun.end()


@contextmanager
def worker(*queues: str, **environment: str) -> Iterator[Command]:
    """A worker that takes from these queues, has all its children, and has had something to do."""
    flags = ("--processes", str(PROCESSES), "--queues", ",".join(queues))
    scratch.empty()
    with command("manta", "worker", *flags, **environment) as begun:
        _warm_up(begun, queues[0])
        yield begun


def _warm_up(begun: Command, queue: str) -> None:
    # Each waits until the others have begun: so there are as many processes, and each has worked.
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as place:
        ids = enqueue(tasks.meet.using(queue_name=queue), [([place, PROCESSES], {})] * PROCESSES)
        wait_until_ended(begun, ids[-1])
    enqueue_and_wait(begun, queue, WARM_UP_RUNS)
    scratch.empty()


# -- runs --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Commit:
    """When a transaction was committed."""

    #: CLOCK_MONOTONIC counts from the machine's start and is the same in all its processes (Linux).
    nanoseconds: int = 0
    #: By the database's clock, if it was asked for.
    moment: datetime = field(default_factory=lambda: datetime.now(UTC))


@contextmanager
def committed(*, by_database: bool = False) -> Iterator[Commit]:
    """
    The block in one transaction, and when that was committed.

    The moment is noted by the transaction's first hook: after COMMIT has returned, and before the
    hook of the enqueue that rings the doorbell.
    """
    commit = Commit()

    def note() -> None:
        commit.nanoseconds = time.monotonic_ns()
        if by_database:
            [[commit.moment]] = ask("SELECT clock_timestamp()")

    with transaction.atomic():
        transaction.on_commit(note)
        yield commit


def ask(query: str, *params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, params)
        return list(cursor.fetchall())


def enqueue(task: Any, calls: Sequence[tuple[Sequence[Any], dict[str, Any]]]) -> list[str]:
    """The ids of the new runs."""
    return [result.id for result in task.enqueue_many(calls)]


def enqueue_and_wait(begun: Command, queue: str, count: int) -> Commit:
    """``count`` no-ops in one transaction, drained. When they were committed."""
    calls = [tasks.arguments(number) for number in range(count)]
    with committed(by_database=True) as commit:
        ids = enqueue(tasks.resize.using(queue_name=queue), calls)
    wait_until_ended(begun, ids[-1])
    return commit


def wait_until_ended(begun: Command, last: str, every: float = 0.05) -> None:
    """
    Wait until all runs have succeeded, of which ``last`` is probably the last.

    One row is looked at as long as it has not ended: to count them all, again and again, would slow
    down what is measured.
    """
    begun.wait_for(lambda: has_ended(last), "the last run has ended", every)
    begun.wait_for(lambda: not unfinished(), "every run has ended", every)
    others = ask("SELECT state, reason, count(*) FROM manta_run WHERE state <> 'SUCCESSFUL' GROUP BY 1, 2")
    if others:
        raise Trouble(f"Some runs did not succeed: {others}")


def has_ended(run_id: str) -> bool:
    return bool(ask("SELECT FROM manta_run WHERE id = %s AND finished_at IS NOT NULL", run_id))


def unfinished() -> int:
    [[count]] = ask("SELECT count(*) FROM manta_run WHERE finished_at IS NULL")
    return int(count)


def seconds_since(commit: Commit) -> float:
    """From a commit to the last end, both by the database's clock."""
    [[last]] = ask("SELECT max(finished_at) FROM manta_run")
    return float((last - commit.moment).total_seconds())


def values_of(ids: Sequence[str]) -> list[Any]:
    """What runs have returned."""
    rows = dict(ask("SELECT id::text, result FROM manta_run WHERE id = ANY(%s::uuid[])", list(ids)))
    return [json.loads(rows[run_id]) for run_id in ids]
