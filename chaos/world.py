"""What the storms share: a scratch database, workers to mistreat, and ways to look."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import Error as DatabaseError
from django.db import connections
from psycopg import sql

from django_manta.ledger import Ledger, fsck

ROOT = Path(__file__).parent.parent

#: Child processes of each worker: so many executions it can have under way.
SLOTS = 2

#: How often a storm looks whether what it waits for has happened.
LOOK_SECONDS = 0.02

#: Where the workers' logs go. It is removed when every promise was kept.
#: The processes that a storm starts find it in their environment.
if "MANTA_CHAOS_LOGS" not in os.environ:
    os.environ["MANTA_CHAOS_LOGS"] = tempfile.mkdtemp(prefix="manta-chaos-")
LOGS = Path(os.environ["MANTA_CHAOS_LOGS"])

TABLES = """
CREATE TABLE chaos_start (run_id uuid NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE chaos_effect (run_id uuid NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE chaos_order (number integer PRIMARY KEY, run_id uuid NOT NULL);
"""


class Broken(Exception):
    """A promise was not kept."""


@dataclass(slots=True)
class Report:
    """The figures of one storm, and the promises it saw broken."""

    figures: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    #: Runs with two successful attempts, where the storm has looked for them: see judge_ledger().
    double_successes: int | None = None

    def expect(self, kept: bool, otherwise: str) -> None:
        if not kept:
            self.broken.append(otherwise)

    def line(self) -> str:
        looked = {} if self.double_successes is None else {"double_successes": self.double_successes}
        return " ".join(f"{name}={value}" for name, value in (self.figures | looked).items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How hard it blows."""

    quick: bool
    seed: int
    trials: int | None = None
    seconds: float | None = None

    def count(self, usual: int, quick: int) -> int:
        return self.trials or (quick if self.quick else usual)

    def lasting(self, usual: float, quick: float) -> float:
        return self.seconds or (quick if self.quick else usual)


# -- workers -----------------------------------------------------------------------------------------


class WorkerProcess:
    """``manage.py manta worker`` as a person would start it, in a process group of its own."""

    def __init__(
        self, log: Path, flags: Sequence[str], options: Mapping[str, Any], environment: Mapping[str, str], nice: int = 0
    ) -> None:
        self.log = log
        behind = ["nice", "-n", str(nice)] if nice else []
        with log.open("a") as output:
            self.process = subprocess.Popen(
                [*behind, sys.executable, "-m", "django", "manta", "worker", "--processes", str(SLOTS), *flags],
                cwd=ROOT,
                env={**os.environ, **environment, "MANTA_CHAOS_OPTIONS": json.dumps(dict(options))},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        if nice:
            # Linux shares the processors out among sessions first, and this is one of its own: how nice a process is
            # counts within its session only.
            _give_way(Path(f"/proc/{self.pid}/autogroup"), nice)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def signal_group(self, number: int) -> None:
        os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the worker itself at once; its children are left to notice."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End it and whatever is left of its group, which nobody else is in."""
        try:
            self.signal_group(signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()

    def wait(self, limit: float) -> int:
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Broken(f"worker {self.pid} did not end within {limit:g} s") from None

    def left_running(self) -> int:
        """How many processes of its group are alive. Those that are dead but not yet buried do not count."""
        count = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, group = status.read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            count += int(group) == self.pid and state not in "ZX"
        return count


def _give_way(group: Path, nice: int) -> None:
    while group.exists():
        try:
            group.write_text(str(nice))
        except BlockingIOError:
            # Who is not root may say so ten times a second.
            time.sleep(0.1)
        else:
            return


@contextmanager
def workers(
    environment: Mapping[str, str] | None = None, *, nice: int = 0, **options: Any
) -> Iterator[Callable[..., WorkerProcess]]:
    """
    Start workers with these OPTIONS; whatever is left of them ends with the block. ``nice`` ones let others go first
    where they share a processor.
    """
    directory = Path(tempfile.mkdtemp(prefix="workers-", dir=LOGS))
    started: list[WorkerProcess] = []

    def start(*flags: str, environment: Mapping[str, str] = environment or {}, **more: Any) -> WorkerProcess:
        log = directory / f"worker-{len(started)}.log"
        worker = WorkerProcess(log, flags, options | more, environment, nice)
        started.append(worker)
        return worker

    try:
        yield start
    finally:
        for worker in started:
            worker.end()


def fresh_workers(start: Callable[..., WorkerProcess], count: int = 2, *flags: str) -> list[WorkerProcess]:
    """Workers that have registered."""
    begun = [start(*flags) for _ in range(count)]
    for worker in begun:
        wait_for(lambda worker=worker: ids_of(worker), 60, "a worker has registered")
    return begun


def ids_of(worker: WorkerProcess) -> list[str]:
    """The identities of a worker, those it has lost included."""
    return [row[0] for row in look("SELECT id FROM manta_worker WHERE pid = %s ORDER BY started_at", worker.pid)]


# -- the database ------------------------------------------------------------------------------------


@contextmanager
def scratch() -> Iterator[None]:
    """The scratch database, for as long as the block."""
    _on_server("CREATE DATABASE {}")
    try:
        call_command("migrate", verbosity=0)
        run(TABLES)
        yield
    finally:
        connections["default"].close()
        _on_server("DROP DATABASE IF EXISTS {} WITH (FORCE)")


def _on_server(statement: str) -> None:
    name = str(connections["default"].settings_dict["NAME"])
    # The wrapper's way to the server's own database, as Django's test runner uses it.
    with connections["default"]._nodb_cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(sql.SQL(statement).format(sql.Identifier(name)))


def empty() -> None:
    """No runs, no workers, no leader, no marks."""
    run("TRUNCATE manta_worker, manta_cluster")
    empty_runs()


def empty_runs() -> None:
    """No runs; whoever works goes on."""
    run(
        "TRUNCATE manta_run, manta_attempt, manta_dependency, manta_gate, manta_herald,"
        " chaos_start, chaos_effect, chaos_order"
    )


def run(statement: str) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute(statement)


def look(statement: str, *params: Any) -> list[tuple[Any, ...]]:
    return named(statement, params)


def named(statement: str, params: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of a query; once more on a new connection if the old one turned out to be dead."""
    for last in (False, True):
        try:
            with connections["default"].cursor() as cursor:
                cursor.execute(statement, params)
                return list(cursor.fetchall())
        except DatabaseError:
            connections["default"].close()
            if last:
                raise
    raise AssertionError


def number(statement: str, *params: Any) -> int:
    [[value]] = look(statement, *params)
    return int(value)


def unfinished() -> int:
    return number(
        "SELECT count(*) FROM manta_run"
        " WHERE state IN ('HELD', 'SCHEDULED', 'WAITING', 'READY', 'RUNNING', 'CANCELLING')"
    )


def successful() -> int:
    return number("SELECT count(*) FROM manta_run WHERE state = 'SUCCESSFUL'")


def by_state() -> dict[str, int]:
    return dict(look("SELECT state, count(*) FROM manta_run GROUP BY state ORDER BY state"))


def by_outcome() -> dict[str, int]:
    return dict(look("SELECT outcome, count(*) FROM manta_attempt GROUP BY outcome ORDER BY outcome"))


def charged() -> int:
    """How many failures, crashes and losses runs were charged with."""
    return number("SELECT COALESCE(sum(failures + crashes + losses), 0) FROM manta_run")


def lost_workers() -> int:
    return number("SELECT count(*) FROM manta_worker WHERE lost_at IS NOT NULL")


def drained(limit: float) -> None:
    """Wait until every run has ended."""
    wait_for(lambda: not unfinished(), limit, "every run has ended", lambda: str(by_state()))


def let_end(limit: float) -> None:
    """Wait until every run has ended, or the time is over: for who counts those that have not."""
    with suppress(Broken):
        drained(limit)


def judge(report: Report, runs: int) -> None:
    """What every storm must leave behind: all runs successful, each once, and a clean ledger."""
    report.figures["lost"] = runs - successful()
    report.expect(successful() == runs, f"of {runs} runs not all are successful: {by_state()}")
    judge_ledger(report)


def judge_ledger(report: Report) -> None:
    twice = number(
        "SELECT count(*) FROM (SELECT 1 FROM manta_attempt WHERE outcome = 'SUCCESSFUL'"
        " GROUP BY run_id HAVING count(*) > 1) AS twice"
    )
    report.double_successes = (report.double_successes or 0) + twice
    report.expect(twice == 0, f"{twice} runs have two successful attempts")
    findings = fsck.check(Ledger())
    report.expect(not findings, f"fsck: {findings[:5]}")
    report.figures["fsck"] = len(findings)


# -- time --------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], Any], limit: float, what: str, explain: Callable[[], str] | None = None) -> Any:
    """Wait until ``condition`` is true, and give back what it was; Broken after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while True:
        try:
            found = condition()
        except DatabaseError:
            # It is the storm's own doing; the limit holds all the same.
            found = None
        if found:
            return found
        if time.monotonic() >= deadline:
            why = f": {explain()}" if explain else ""
            raise Broken(f"not within {limit:g} s: {what}{why}")
        time.sleep(LOOK_SECONDS)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of them do not exceed; nan of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def spread(values: Sequence[float]) -> str:
    return f"{percentile(values, 0.5):.2f}/{percentile(values, 0.99):.2f}s"
