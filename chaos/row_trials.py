"""
The process in which the storms ``rows`` and ``rows-sqlite`` alter rows, look at them, and start workers beside them.

It is told on its command line how many combinations and of which seed, and prints what came of them as JSON.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import Error as AnyDatabaseError
from django.db import connection, transaction
from django.tasks import task_backends
from django.test import Client

from chaos import row_reads, row_scenes, row_values, tasks, world
from chaos.row_scenes import SINGLE, Key, Scenes
from chaos.row_values import SIGNED, Combination
from django_manta.ids import parse_run_id
from django_manta.ledger import Ledger, fsck
from django_manta.models import Run
from django_manta.result import seal_of
from django_manta.states import State

LEASE_SECONDS = 2
SKEW_SECONDS = 2

#: Rows that are altered side by side.
BATCH = 100

#: Good runs end well within this, and a worker stops.
LIMIT_SECONDS = 60

#: Within this a worker has taken over from lost ones, refused what it does not know, and led (see caretaker.py).
SETTLED_SECONDS = 6.0

#: What a worker logs when something went wrong that is not the end of one run.
_ALARMS = (
    "A duty of the caretaker failed",
    "A heartbeat failed",
    "cannot reach the database",
    "The database is away",
    "CRITICAL",
    "died; the worker ends",
    "Could not tell of the end",
    "answer was lost",
    "Traceback (most recent call last)",
)


@dataclass(slots=True)
class Altered:
    """A combination that the database took."""

    combination: Combination
    #: The primary key of its row, as it is now.
    key: Key
    #: Whether fsck must name the row.
    is_wrong: bool
    #: What fsck may call it by: its key now and before, and the runs that it belonged to.
    names: frozenset[str]

    def __str__(self) -> str:
        return f"{self.combination} ({self.key!r:.60})"


@dataclass(slots=True)
class Tally:
    figures: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def breaks(self, what: str, promise: str) -> None:
        self.figures[what] += 1
        self.broken.append(promise)


def drawn(count: int, seed: int) -> list[Combination]:
    """Every value of every column once, of a row of any kind, and others until there are enough."""
    dice = random.Random(seed)
    every = [
        Combination(column, value, dice.choice(row_scenes.kinds(column)))
        for column in row_values.columns()
        for value in row_values.values_of(column)
    ]
    dice.shuffle(every)
    rest = list(row_values.combinations(row_scenes.kinds))
    dice.shuffle(rest)
    known = set(map(id, every))
    chosen = (every + [each for each in rest if id(each) not in known])[:count]
    dice.shuffle(chosen)
    return chosen


def batch(combinations: Sequence[Combination], tally: Tally, client: Client) -> None:
    """Alter rows, look at them, and start a worker beside them."""
    row_scenes.clear()
    made = Scenes()
    keys = [(each, row_scenes.make(made, each.column, each.kind)) for each in combinations if each.kind not in SINGLE]
    good = row_scenes.good_runs(made)
    another = row_scenes._key(made.succeeded())
    made.forsake()
    altered = [found for each, key in keys if (found := alter(each, key, another, tally))]
    judge_fsck(altered, tally)
    with world.workers(_environment(), LEASE_SECONDS=LEASE_SECONDS, SKEW_SECONDS=SKEW_SECONDS) as start:
        worker = start("--queues", "default,io")
        world.wait_for(lambda: world.ids_of(worker), 60, "a worker has registered", worker.log.read_text)
        until = time.monotonic() + SETTLED_SECONDS
        for each in altered:
            report(row_reads.look_at(each.combination, each.key, client), tally, str(each))
        report(row_reads.look_at_all(client), tally, "all rows")
        must_end(good, worker, tally, "that were there before it")
        for each in combinations:
            if each.kind in SINGLE:
                alter_single(made, each, another, worker, tally)
        time.sleep(max(0.0, until - time.monotonic()))
        by_hand(altered, tally)
        must_end(row_scenes.good_runs(Scenes()), worker, tally, "that came later")
        report(row_reads.look_at_all(client), tally, "all rows, afterwards")
        stop(worker, tally)
        judge_log(worker, tally)
    judge_imports(tally)


def _environment() -> dict[str, str]:
    return {"MANTA_CHAOS_MARK": os.environ["MANTA_CHAOS_MARK"]}


# -- altering ----------------------------------------------------------------------------------------


def alter(each: Combination, key: Key, another: str, tally: Tally) -> Altered | None:
    """None if the database refuses it, or nothing has changed by it."""
    column, table = each.column, each.column.table
    pk: str = column.field.model._meta.pk.column
    place, given = row_values.parameter(column, each.value, another)
    before, old_key = _row(table, pk, key), key
    tally.figures["combinations"] += 1
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET {column.name} = {place} WHERE {pk} = %s", [given, key])
            if column.name == pk and cursor.rowcount:
                cursor.execute(f"SELECT {pk} FROM {table} WHERE {pk} = {place}", [given])
                key = cursor.fetchall()[0][0]
    except (AnyDatabaseError, OverflowError, ValueError):
        tally.figures["refused"] += 1
        return None
    tally.figures["altered"] += 1
    after = _row(table, pk, key)
    if before.get(column.name) == after.get(column.name):
        return None
    is_forged = table == "manta_run" and column.name in SIGNED and before["finished_at"] in (None, "NULL")
    is_wrong = is_forged or row_values.is_impossible(column, each.value)
    names = {_plain(name) for name in (key, old_key, before.get("run_id"), after.get("run_id"))}
    return Altered(each, key if isinstance(key, int) else str(key), is_wrong, frozenset(names))


def _row(table: str, pk: str, key: Key) -> dict[str, Any]:
    """As text, because not all of it can be read otherwise."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"SELECT to_jsonb(t)::text FROM {table} AS t WHERE {pk} = %s", [key])
            return {name: value for [text] in cursor.fetchall() for name, value in json.loads(text).items()}
        columns = [row[1] for row in cursor.execute(f"PRAGMA table_info({table})").fetchall()]
        quoted = ", ".join(f"quote({column})" for column in columns)
        cursor.execute(f"SELECT {quoted} FROM {table} WHERE {pk} = %s", [key])
        return {name: value for row in cursor.fetchall() for name, value in zip(columns, row, strict=True)}


def _plain(name: object) -> str:
    """A key as text; a run's id as 32 digits."""
    text = str(name).strip("'")
    run_id = parse_run_id(text)
    return text if run_id is None else run_id.hex


def alter_single(made: Scenes, each: Combination, another: str, worker: world.WorkerProcess, tally: Tally) -> None:
    """A row of which there is one, while a worker needs it; it is put back when that has coped with it."""
    if each.kind == row_scenes.LIVE_WORKER:
        ids = world.look("SELECT id FROM manta_worker WHERE pid = %s AND lost_at IS NULL", worker.pid)
        key: Key = str(ids[0][0]) if ids else ""
    else:
        key = row_scenes.make(made, each.column, each.kind)
    if each.kind == row_scenes.THE_QUEUE:
        world.run("INSERT INTO manta_queue (name) VALUES ('default')")
    altered = alter(each, key, another, tally)
    if each.kind == row_scenes.THE_CLUSTER and altered:
        with suppress(AnyDatabaseError):
            made.ledger.session.rows("lead", {"cluster": "default", "worker": made.living})
        world.run("DELETE FROM manta_cluster")
        made.ledger.check_key(task_backends["default"].seal)  # type: ignore[attr-defined]
    if each.kind == row_scenes.THE_QUEUE:
        world.run("DELETE FROM manta_queue")
    must_end({tasks.trial.enqueue(1).id: State.SUCCESSFUL}, worker, tally, f"beside {altered}")


# -- judging -----------------------------------------------------------------------------------------


def judge_fsck(altered: Sequence[Altered], tally: Tally) -> None:
    try:
        findings = fsck.check(Ledger(), 100_000, seal_of)
    except Exception as failure:
        tally.breaks("errors", f"fsck: {told(failure)}")
        return
    named = {each.run_id.hex for each in findings if each.run_id}
    details = "\n".join(each.detail for each in findings)
    for each in altered:
        is_named = bool(each.names & named) or any(f" {name} cannot" in details for name in each.names)
        tally.figures["named"] += is_named
        if each.is_wrong:
            tally.figures["wrong"] += 1
            if not is_named:
                tally.breaks("unnamed", f"fsck does not name {each}")


def must_end(good: dict[str, State], worker: world.WorkerProcess, tally: Tally, which: str) -> None:
    tally.figures["good"] += len(good)

    def left() -> dict[str, str]:
        rows = Run.objects.filter(pk__in=good).values_list("pk", "state", "task")
        return {f"{pk} {task}": state for pk, state, task in rows if state != good[str(pk)]}

    deadline = time.monotonic() + LIMIT_SECONDS
    while (wrong := left()) and time.monotonic() < deadline and worker.alive:
        time.sleep(0.05)
    if wrong:
        tally.figures["lost"] += len(wrong)
        tally.broken.append(f"good runs {which} did not end as they must: {wrong}; the log: {worker.log}")


def by_hand(altered: Sequence[Altered], tally: Tally) -> None:
    """What people do with rows: they cancel, hold, release and retry them."""
    for each in altered:
        run_id = row_reads.run_of(each.combination, each.key)
        if run_id is not None:
            report(row_reads.move(run_id), tally, str(each))
    report(row_reads.prune(), tally, "all rows")


def stop(worker: world.WorkerProcess, tally: Tally) -> None:
    if not worker.alive:
        tally.breaks("exited", f"a worker ended with code {worker.process.returncode}; its log: {worker.log}")
        return
    worker.signal(signal.SIGTERM)
    try:
        code = worker.wait(LIMIT_SECONDS)
    except world.Broken as broken:
        tally.breaks("exited", f"{broken}; its log: {worker.log}")
        return
    if code:
        tally.breaks("exited", f"a worker that was told to stop ended with code {code}; its log: {worker.log}")


def judge_log(worker: world.WorkerProcess, tally: Tally) -> None:
    text = worker.log.read_text(errors="replace")
    lines = text.splitlines()
    tally.figures["log_lines"] += len(lines)
    for alarm, found in alarms_in(lines).items():
        tally.breaks("alarms", f"{len(found)} times in {worker.log}: {alarm}: {found[0][:300]}")
    if "\x1b" in text:
        tally.breaks("alarms", f"control characters in {worker.log}")


def alarms_in(lines: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    said = ""
    for line in lines:
        # What follows of a traceback is indented.
        said = line if not line.startswith(" ") else said
        # That one is told with its reason, and left to the caretaker, which goes on without it.
        alarm = next((each for each in _ALARMS if each in line), None)
        if alarm and not said.endswith("the caretaker will."):
            found.setdefault(alarm, []).append(f"{said} {line}")
    return found


def judge_imports(tally: Tally) -> None:
    marks = Path(os.environ["MANTA_CHAOS_MARK"])
    if "chaos.unwanted" in sys.modules:
        tally.breaks("imports", "this process has imported a module that no signed run names")
        del sys.modules["chaos.unwanted"]
    if marks.exists():
        tally.breaks("imports", f"processes have imported what no signed run names: {marks.read_text().split()}")
        marks.unlink()


def report(failures: Iterator[row_reads.Failure], tally: Tally, of: str) -> None:
    for what, failure in failures:
        tally.breaks("errors", f"{what}, {of}: {told(failure)}")


def told(failure: BaseException) -> str:
    last = traceback.extract_tb(failure.__traceback__)
    where = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in last if "django_manta" in frame.filename]
    return f"{type(failure).__name__}: {str(failure)[:200]!r} at {' < '.join(reversed(where[-3:]))}"


# -- the process -------------------------------------------------------------------------------------


def rage(count: int, seed: int) -> Tally:
    call_command("migrate", verbosity=0)
    client, tally = row_reads.browser(), Tally()
    chosen = drawn(count, seed)
    for number, some in enumerate(batched(chosen, BATCH), 1):
        print(f"rows: batch {number} of {-(-len(chosen) // BATCH)}", file=sys.stderr, flush=True)
        try:
            batch(some, tally, client)
        except world.Broken as broken:
            tally.broken.append(str(broken))
    return tally


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    tally = rage(int(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps({"figures": tally.figures, "broken": tally.broken}))
