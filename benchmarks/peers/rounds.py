"""A round visits one contender after the other, each with a fresh database, and leaves nothing of it behind."""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from benchmarks.peers import own_redis
from benchmarks.peers.contenders import Contender
from benchmarks.peers.record import Entry, Record
from benchmarks.peers.workers import ROOT

#: No visit takes so long unless something hangs.
VISIT_SECONDS = 400.0

#: A backlog or a fan-out that took longer than this, all in all, is measured once and not in every round. Unless the
#: first thousand of the backlog took less than a second: of so short a time once is not enough.
ONCE_SECONDS = 12.0
SHORT_RATE = 1_000.0

#: In the environment of a visit and of all that it starts.
MARK = "MANTA_PEERS_VISIT"


@dataclass(slots=True, kw_only=True)
class Tour:
    record: Record
    server: str
    redis: str
    sizes: str
    #: Only these; empty: all.
    measures: list[str]
    #: How many rounds there have been, and how long each visit of the last one took.
    rounds: int = 0
    lasted: dict[str, float] = field(default_factory=dict)

    def visit(self, contender: Contender, python: Path, say: Callable[[str], None]) -> None:
        """Measure one contender once. Whatever goes wrong becomes part of its entry."""
        entry = self.record.entry(contender.name)
        if entry.reason:
            return
        began = time.monotonic()
        try:
            self._visit(contender, python, entry, say)
        except Exception as error:
            # What goes wrong with one must not end the hour of all.
            words = f"{type(error).__name__}: {error}"[:300]
            say(f"{contender.name}: {words}")
            if not entry.rounds:
                entry.reason = words
        entry.conclude()
        self.lasted[contender.name] = time.monotonic() - began

    def _visit(self, contender: Contender, python: Path, entry: Entry, say: Callable[[str], None]) -> None:
        mark = uuid.uuid4().hex
        database = f"manta_peers_{mark[:12]}"
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
            try:
                self._measure(contender, python, database, mark, entry, say)
            finally:
                end_marked(mark)
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database)))
                if contender.redis:
                    own_redis.flush(self.redis)

    def _measure(
        self, contender: Contender, python: Path, database: str, mark: str, entry: Entry, say: Callable[[str], None]
    ) -> None:
        environment = {
            **os.environ,
            MARK: mark,
            "MANTA_PEER": contender.adapter,
            "MANTA_PEER_VARIANT": contender.variant,
            "MANTA_PEERS_DATABASE": urlsplit(self.server)._replace(path=f"/{database}").geturl(),
            "MANTA_PEERS_REDIS": self.redis,
            "DJANGO_SETTINGS_MODULE": "benchmarks.peers.settings",
            "PYTHONPATH": str(ROOT),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
        }
        environment.pop("DATABASE_URL", None)
        #: What it has said that it will measure, and has not told of yet.
        owed: list[str] = []
        with tempfile.TemporaryFile("w+") as log:
            visit = subprocess.Popen(
                [str(python), "-m", "benchmarks.peers.visit", self.sizes, *self._wanted(entry)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
            alarm = threading.Timer(VISIT_SECONDS, visit.terminate)
            alarm.start()
            try:
                assert visit.stdout is not None
                for text in visit.stdout:
                    line = json.loads(text)
                    if "measure" not in line:
                        entry.note = line.get("note", entry.note)
                        owed = line.get("measures", owed)
                        continue
                    entry.add(line)
                    owed = [name for name in owed if name != line["measure"]]
                    say(f"    {line['measure']}: {line.get('trouble') or format(line['value'], ',.2f')}")
                code = visit.wait(30)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                hung = not alarm.is_alive()
                alarm.cancel()
                if visit.poll() is None:
                    visit.terminate()
                    with suppress(subprocess.TimeoutExpired):
                        visit.wait(10)
            if code or os.environ.get("MANTA_PEERS_LOGS"):
                log.seek(0)
                words = log.read()
                print(words[-6_000:], file=sys.stderr)
            if code:
                last = [line for line in words.splitlines() if line.strip()][-1:]
                why = f"Not done within {VISIT_SECONDS:g} s." if hung else "".join(last)[-300:]
                if not entry.rounds:
                    entry.reason = why
                for name in owed:
                    entry.add({"measure": name, "trouble": f"Its visit was over before. {why}"})

    def _wanted(self, entry: Entry) -> list[str]:
        """What this visit measures: not again what took very long the last time."""
        done = self._done(entry)
        if self.measures:
            return [name for name in self.measures if name not in done]
        return [name for name in entry.rounds if name not in done] if done else []

    def _done(self, entry: Entry) -> dict[str, float]:
        """What is not measured again, and how long it took."""
        took = {
            name: max(sample.get("seconds", 0.0) for sample in samples)
            for name, samples in entry.rounds.items()
            if name == "fan" or (name.startswith("backlog_") and (entry.median(name) or 0.0) < SHORT_RATE)
        }
        return {name: seconds for name, seconds in took.items() if seconds > ONCE_SECONDS}

    def expected_seconds(self) -> float:
        """How long another round will take: as long as the last one, without what is not measured again."""
        lasted = 0.0
        for name, seconds in self.lasted.items():
            entry = self.record.entry(name)
            lasted += max(0.0, seconds - sum(self._done(entry).values())) if self.rounds == 1 else seconds
        return lasted


def turns[T](all_of: list[T], number: int, count: int) -> list[T]:
    """
    In which order they are visited in round ``number`` of ``count``. Each begins with another one, so that whatever the
    machine does besides falls on all of them. If every other round went backwards, the last of one would be the
    first of the next, and one bad minute two of its three figures.
    """
    first = number * len(all_of) // max(count, 1)
    return all_of[first:] + all_of[:first]


def end_marked(mark: str) -> None:
    """End whatever a visit has left running."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


def machine(server: str) -> dict[str, str]:
    """What it is measured on, as far as it matters."""
    with psycopg.connect(server) as connection:
        [version] = connection.execute("SHOW server_version").fetchone() or [""]
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{os.cpu_count()} × {model}",
        "memory": f"{memory:.0f} GiB",
        "system": f"Linux {platform.release()}",
        "load at the start": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
        "PostgreSQL": str(version),
        "Redis": own_redis.version() or "none",
    }
