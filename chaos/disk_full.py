"""
The disk is full, under SQLite.

A file system of a few megabytes (tmpfs, where we may mount one; a limit of SQLite's pages where not) with the
database and some ballast on it. A caller enqueues until it is refused, two workers go on as far as they can, and
after a while the ballast is thrown off. What was accepted is there and nothing else is, the workers live, and
everything ends.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos import world

DISK_BYTES = 24 * 2**20
BALLAST_BYTES = 12 * 2**20
PAGE_BYTES = 4_096

#: How long the disk stays full, and how many are enqueued when there is room again.
FULL_SECONDS = 20.0
AFTERWARDS = 200

LEASE_SECONDS = 5
LIMIT_SECONDS = 90


@dataclass(frozen=True, slots=True)
class Disk:
    """A place for a database that can be full."""

    kind: str
    file: Path
    #: What its processes are started with.
    environment: dict[str, str]
    throw_off: Callable[[], None]

    def look(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.file, timeout=30)) as connection:
            return list(connection.execute(statement))

    def number(self, statement: str) -> int:
        return int(self.look(statement)[0][0])

    def unfinished(self) -> int:
        return self.number("SELECT count(*) FROM manta_run WHERE finished_at IS NULL")


def storm(weather: world.Weather, report: world.Report) -> None:
    share = 3 if weather.quick else 1
    seconds = FULL_SECONDS / share
    with disk(share) as place, world.workers(place.environment, LEASE_SECONDS=LEASE_SECONDS) as start:
        _manage(place, "migrate", "--verbosity", "0")
        pair = [start(), start()]
        world.wait_for(
            lambda: place.number("SELECT count(*) FROM manta_worker") == 2, 60, "two workers have registered"
        )
        full = _fill(place, 1_000_000, seconds)
        there, unfinished = place.number("SELECT count(*) FROM manta_run"), place.unfinished()
        place.throw_off()
        after = _fill(place, AFTERWARDS, 0.0)
        world.wait_for(lambda: not place.unfinished(), LIMIT_SECONDS, "every run has ended")
        exited = sum(not worker.alive for worker in pair)
        report.figures = {
            "disk": place.kind,
            "full": f"{seconds:.0f}s",
            "refused": full["refused"],
            "unfinished_when_full": unfinished,
            "exited": exited,
            "declared_lost": place.number("SELECT count(*) FROM manta_worker WHERE lost_at IS NOT NULL"),
        }
        for worker in pair:
            worker.signal(signal.SIGTERM)
        codes = [worker.wait(60) for worker in pair]
        report.expect(not exited and codes == [0, 0], f"{exited} workers ended by themselves, the others with {codes}")
        report.expect(full["refused"] > 0, "nothing was refused: the disk was not full")
        report.expect(all("full" in words for words in full["words"]), f"refused in these words: {full['words']}")
        report.expect(there == full["accepted"], f"{full['accepted']} runs were accepted and {there} are there")
        report.expect(not after["refused"], f"with room again {after['refused']} were refused: {after['words']}")
        _judge(report, place, full["accepted"] + after["accepted"])


def _judge(report: world.Report, place: Disk, accepted: int) -> None:
    successful = place.number("SELECT count(*) FROM manta_run WHERE state = 'SUCCESSFUL'")
    twice = place.number(
        "SELECT count(*) FROM (SELECT 1 FROM manta_attempt WHERE outcome = 'SUCCESSFUL'"
        " GROUP BY run_id HAVING count(*) > 1)"
    )
    outcomes = place.look("SELECT outcome, count(*) FROM manta_attempt GROUP BY outcome ORDER BY outcome")
    findings = json.loads(_manage(place, "manta", "fsck", "--format", "json"))["findings"]
    report.figures = {"runs": accepted, "lost": accepted - successful} | report.figures
    report.figures["attempts"] = ",".join(f"{outcome.lower()}:{count}" for outcome, count in outcomes)
    report.figures["fsck"] = len(findings)
    report.double_successes = twice
    report.expect(successful == accepted, f"of {accepted} runs only {successful} are successful")
    report.expect(not twice, f"{twice} runs have two successful attempts")
    report.expect(not findings, f"fsck: {findings[:5]}")


def _fill(place: Disk, runs: int, seconds: float) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(_run(place, "chaos.filler", str(runs), str(seconds)))
    return told


def _manage(place: Disk, *arguments: str) -> str:
    return _run(place, "django", *arguments)


def _run(place: Disk, module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=world.ROOT,
        env={**os.environ, **place.environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if not done.stdout and done.returncode:
        raise world.Broken(f"{module} {' '.join(arguments)} failed: {done.stderr[-500:]}")
    return done.stdout


# -- two ways to have a small disk -------------------------------------------------------------------


@contextmanager
def disk(share: int) -> Iterator[Disk]:
    """A small one, or a share of it."""
    with tempfile.TemporaryDirectory(prefix="manta-disk-") as name:
        directory = Path(name)
        options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES // share}", "tmpfs", name]
        try:
            mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            mounted = False
        try:
            yield _small_file_system(directory, share) if mounted else _few_pages(directory, share)
        finally:
            if mounted:
                # Lazily: whoever still has a file open keeps it until it ends.
                subprocess.run(["umount", "--lazy", name], capture_output=True, check=False)


def _small_file_system(directory: Path, share: int) -> Disk:
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES // share))
    file = directory / "default.sqlite3"
    return Disk("tmpfs", file, {"MANTA_CHAOS_SQLITE": str(file)}, ballast.unlink)


def _few_pages(directory: Path, share: int) -> Disk:
    """SQLite itself refuses to let the file grow. What the ballast leaves behind is used again."""
    file = directory / "default.sqlite3"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE ballast (weight blob)")
        connection.execute("INSERT INTO ballast VALUES (zeroblob(?))", [BALLAST_BYTES // share])

    def throw_off() -> None:
        with closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as connection:
            connection.execute("DROP TABLE ballast")

    pages = str(DISK_BYTES // share // PAGE_BYTES)
    return Disk("max_page_count", file, {"MANTA_CHAOS_SQLITE": str(file), "MANTA_CHAOS_PAGES": pages}, throw_off)
