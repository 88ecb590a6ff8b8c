"""
Look at all that must be right for runs to be executed, and say what to do about what is not.

Each line is ok, a warning (it works, but not as well as it could) or wrong. Exit code 1 if something
is wrong. Nothing is changed.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.core.checks import ERROR
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand
from django.db import Error as DatabaseError
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from django_manta.backend import MantaBackend
from django_manta.commands import choosing, workers
from django_manta.commands.fsck import remedy
from django_manta.commands.pause import paused
from django_manta.commands.printing import Printer, add_format, duration, moment, runs
from django_manta.conf import ON_RAY
from django_manta.ledger import Ledger, clusters, fsck, house, own_session, tokens
from django_manta.models import Run
from django_manta.result import seal_of
from django_manta.worker import doorbell, retention, troubles

HELP = "find what is wrong, and say what to do"

#: The oldest versions that have what the statements need.
OLDEST = {"postgresql": (15,), "sqlite": (3, 35)}

#: Clocks further apart than this are worth putting right.
SKEW_SECONDS = 5.0

#: The ledger is checked if it has at most so many runs; of more, `fsck` takes its time.
QUICK_RUNS = 100_000

_COUNT_LIMIT = 1_000

#: What lost workers hold has a line of its own.
_TOLD = ("orphaned", "stranded")

#: Retention is looked after where runs are oldest.
_OLDEST = 10_000

OK, WARNING, WRONG = "ok", "warning", "wrong"


@dataclass(frozen=True, slots=True)
class Line:
    """One finding: what was looked at, how it is, what to do."""

    check: str
    status: str
    message: str
    remedy: str = ""


type Check = Callable[[MantaBackend], Iterator[Line]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> int:
    printer = Printer(command, options)
    lines = list(examine(choosing.backend_of(options, configured=False)))
    wrong = any(line.status == WRONG for line in lines)
    if printer.wants_json:
        printer.data({"ok": not wrong, "checks": lines})
        return int(wrong)
    for line in lines:
        printer.line(f"{line.status:<7}  {line.check:<10}  {line.message}{' → ' if line.remedy else ''}{line.remedy}")
    return int(wrong)


def examine(backend: MantaBackend) -> Iterator[Line]:
    """Every finding. What needs something that is not there is not looked at."""
    settings = list(_settings(backend))
    yield from settings
    try:
        _ = backend.config, backend.database
    except ImproperlyConfigured as error:
        if not any(line.status == WRONG for line in settings):
            yield Line("settings", WRONG, str(error), "Correct TASKS.")
        return
    for needed in (_database, _migrations):
        found = list(_safely(needed, backend))
        yield from found
        if any(line.status == WRONG for line in found):
            return
    for check in (_doorbell, _clock, _key, _workers, _orphans, _retention, _ledger):
        yield from _safely(check, backend)


def _safely(check: Check, backend: MantaBackend) -> Iterator[Line]:
    try:
        yield from check(backend)
    except (DatabaseError, ImproperlyConfigured) as error:
        name = check.__name__.strip("_")
        yield Line(name, WRONG, " ".join(str(error).split()), f"See that database {backend.database!r} answers.")


def _settings(backend: MantaBackend) -> Iterator[Line]:
    found = backend.check()
    for message in found:
        status = WRONG if message.level >= ERROR else WARNING
        yield Line("settings", status, f"{message.id}: {message.msg}", message.hint or "")
    if not found:
        yield Line("settings", OK, f"TASKS[{backend.alias!r}] passes every check")


def _database(backend: MantaBackend) -> Iterator[Line]:
    connection: Any = connections[backend.database]
    oldest = OLDEST.get(connection.vendor)
    if oldest is None:
        # The settings have said so.
        return
    version = connection.get_database_version()
    house.clock(backend.ledger)
    words = f"{connection.display_name} {'.'.join(map(str, version))} ({backend.database!r})"
    if version < oldest:
        needed = ".".join(map(str, oldest))
        yield Line("database", WRONG, f"{words} is too old", f"Upgrade to {needed} or newer.")
    else:
        yield Line("database", OK, f"{words} answers")
        yield from _compiling(backend)


def _compiling(backend: MantaBackend) -> Iterator[Line]:
    session = own_session(backend.database)
    try:
        is_on = house.compiles(Ledger(session))
    finally:
        session.close()
    if is_on:
        role = connections[backend.database].settings_dict["USER"] or "the role of workers"
        yield Line(
            "database",
            WARNING,
            "the server may compile workers' statements (JIT), and behind a pooler they cannot switch that off",
            f"Give workers a direct connection, or: ALTER ROLE {role} SET jit = off",
        )


def _migrations(backend: MantaBackend) -> Iterator[Line]:
    executor = MigrationExecutor(connections[backend.database])
    targets = executor.loader.graph.leaf_nodes("manta")
    missing = [migration.name for migration, _ in executor.migration_plan(targets) if migration.app_label == "manta"]
    if missing:
        option = "" if backend.database == "default" else f" --database {backend.database}"
        yield Line("migrations", WRONG, f"not applied: {', '.join(missing)}", f"manage.py migrate manta{option}")
    else:
        yield Line("migrations", OK, "all applied")


def _doorbell(backend: MantaBackend) -> Iterator[Line]:
    if connections[backend.database].vendor == "sqlite":
        yield Line("doorbell", OK, "workers watch the file's change counter")
        return
    bell = doorbell.PostgresDoorbell(backend.database, backend.config.cluster)
    try:
        works = bell.try_out()
    finally:
        bell.close()
    if works:
        yield Line("doorbell", OK, "LISTEN and NOTIFY work")
    else:
        yield Line(
            "doorbell",
            WARNING,
            "LISTEN hears nothing on this connection, so workers look once a second",
            "A pooler that hands out connections per transaction is the usual cause: give workers a direct "
            "connection, or pool per session.",
        )


def _clock(backend: MantaBackend) -> Iterator[Line]:
    before = datetime.now(UTC)
    database = house.clock(backend.ledger)
    after = datetime.now(UTC)
    # The answer was given some time between the two: only what is outside of them is known to be wrong.
    skew = max((database - after).total_seconds(), (before - database).total_seconds(), 0.0)
    if skew > SKEW_SECONDS:
        which = "behind" if database > after else "ahead of"
        yield Line(
            "clock",
            WRONG,
            f"this machine's clock is {duration(skew)} {which} the database's",
            "Synchronise both (NTP). Leases and due dates go by the database's, so no run is at risk; dates that "
            "your code computes, the order of ids and the times in logs are.",
        )
    else:
        yield Line("clock", OK, f"within {SKEW_SECONDS:g} s of the database's")


def _key(backend: MantaBackend) -> Iterator[Line]:
    cluster, seal = backend.config.cluster, backend.seal
    known = clusters.known(backend.ledger)
    others = ", ".join(map(repr, sorted(known.keys() - {cluster})))
    if others:
        yield Line(
            "key",
            WRONG,
            f"the database belongs to the cluster {others}, and CLUSTER is {cluster!r}: one of them has no workers",
            f"One database holds one cluster: set CLUSTER as it was, or: manage.py manta cluster --rename {cluster}",
        )
    stored = known.get(cluster)
    if stored is None and others:
        return
    if stored is None:
        yield Line("key", OK, f"cluster {cluster!r} has none yet: the first worker leaves its key's fingerprint")
    elif stored == seal.fingerprint:
        yield Line("key", OK, f"the key of cluster {cluster!r} ({stored})")
    elif stored in seal.accepted_fingerprints:
        yield Line("key", OK, f"cluster {cluster!r} has a key of SECRET_KEY_FALLBACKS: the next worker rotates it")
    else:
        yield Line(
            "key",
            WRONG,
            f"cluster {cluster!r} signs with {stored}, this process with {seal.fingerprint}: it can verify nothing",
            "Give it the cluster's SECRET_KEY, or put the former key into SECRET_KEY_FALLBACKS.",
        )


def _workers(backend: MantaBackend) -> Iterator[Line]:
    present = workers.seen(backend)
    claiming = workers.claiming(present)
    ready = backend.ledger.ready_queues()
    troubles = [*_silent(present), *_hindered(present), *_unserved(backend, ready, claiming), *_overdue(backend)]
    yield from troubles
    if not any(line.status == WRONG for line in troubles):
        idle = sorted(set(backend.queues) - claiming - set(ready))
        without = f"; none for {', '.join(map(repr, idle))}, where nothing is ready" if idle else ""
        yield Line("workers", OK, f"{sum(worker.alive for worker in present)} alive{without}")


def _silent(present: list[workers.Seen]) -> Iterator[Line]:
    for worker in present:
        if not worker.alive and not worker.lost:
            ago = duration(worker.seen_seconds_ago)
            yield Line(
                "workers",
                WRONG,
                f"worker {worker.id} was last seen {ago} ago, and nobody declared it lost",
                "A live worker does so after LEASE_SECONDS, and recovers what it held: start one.",
            )


def _hindered(present: list[workers.Seen]) -> Iterator[Line]:
    for worker in present:
        if worker.obstacle is not None:
            words = f"worker {worker.id} claims nothing. {worker.obstacle}"
            yield Line("workers", WARNING, words, "It goes on when Ray is back: see RAY['ADDRESS'], and Ray itself.")
        waiting = list(troubles.about_runs(worker.troubles).values())
        if worker.alive and waiting:
            words = f"{runs(len(waiting))} of worker {worker.id} cannot begin. {waiting[0]}"
            yield Line("workers", WARNING, words, "`manta explain ID` tells of each; see the task's ray={...}.")
        for words in troubles.about_others(worker.troubles) if worker.alive else ():
            yield Line("workers", WARNING, f"worker {worker.id}: {words}", "See Ray itself, and docs/ray.md.")


def _unserved(backend: MantaBackend, ready: list[str], claiming: set[str]) -> Iterator[Line]:
    pauses = paused(backend)
    for queue in ready:
        if backend.queues and queue not in backend.queues:
            yield Line(
                "workers",
                WRONG,
                f"queue {queue!r} has ready runs and is not among QUEUES: no worker claims from it",
                f"put it back into QUEUES until it is empty, or: manage.py manta cancel --queue {queue}",
            )
        elif queue not in claiming:
            yield Line(
                "workers",
                WRONG,
                f"queue {queue!r} has ready runs and no live worker",
                f"manage.py manta worker{_runner_flag(backend, queue)} --queues {queue}",
            )
        elif queue in pauses:
            yield Line(
                "workers",
                WARNING,
                f"queue {queue!r} has ready runs and is paused since {moment(pauses[queue])}",
                f"manage.py manta resume {queue}",
            )


def _runner_flag(backend: MantaBackend, queue: str) -> str:
    runner = backend.config.queue_options.get(queue, {}).get("runner")
    return f" --runner {runner}" if runner in ON_RAY else ""


def _overdue(backend: MantaBackend) -> Iterator[Line]:
    due = backend.ledger.next_due()
    if due is not None and -due.total_seconds() > backend.config.lease_seconds:
        yield Line(
            "workers",
            WRONG,
            f"a scheduled run is overdue by {duration(-due.total_seconds())}: nobody makes it ready",
            "Any live worker does: start one.",
        )


def _orphans(backend: MantaBackend) -> Iterator[Line]:
    needed = workers.needed(backend)
    for words, advice in needed.values():
        yield Line("orphans", WRONG, words, advice)
    found = [orphan for orphan in backend.ledger.orphans(limit=_COUNT_LIMIT) if orphan.worker not in needed]
    if needed and not found:
        return
    if not found:
        yield Line("orphans", OK, "no run is held by a worker that is gone")
        return
    more = "at least " if len(found) >= _COUNT_LIMIT else ""
    holders = sorted({orphan.worker for orphan in found})
    present = workers.seen(backend)
    waits = any(workers.waiting_for_a_foreman(present, holder) for holder in holders)
    yield Line(
        "orphans",
        WRONG,
        f"{more}{runs(len(found))} held by workers that are gone ({', '.join(holders[:3])})",
        "The lines about workers above say what they wait for."
        if waits
        else "A live worker recovers them within seconds: start one, or look at its log.",
    )


def _retention(backend: MantaBackend) -> Iterator[Line]:
    kept = retention.unnamed(backend.ledger, backend.database, _OLDEST)
    for alias, number in kept.items():
        yield Line(
            "retention",
            WARNING,
            f"at least {runs(number)} that ended are of the alias {alias!r}, which TASKS does not name: they are kept",
            "Name it in TASKS, with a RETENTION: they are removed as that says.",
        )
    if not kept:
        yield Line("retention", OK, f"the oldest {_OLDEST} runs of each end are of aliases that TASKS names")


def _ledger(backend: MantaBackend) -> Iterator[Line]:
    if Run.objects.using(backend.database).order_by("pk").values("pk")[QUICK_RUNS : QUICK_RUNS + 1]:
        if missing := tokens.behind(backend.ledger):
            words = f"the sequence of tokens is {missing} behind those that were given: executions cannot be settled"
            yield Line("ledger", WRONG, words, "`manta fsck --repair` sets it, and so does a worker that starts.")
        yield Line("ledger", OK, f"more than {QUICK_RUNS} runs, so not checked here: `manta fsck` does")
        return
    findings = [finding for finding in fsck.check(backend.ledger, _COUNT_LIMIT, seal_of) if finding.check not in _TOLD]
    if not findings:
        yield Line("ledger", OK, "every invariant holds")
        return
    first = findings[0]
    more = "at least " if len(findings) >= _COUNT_LIMIT else ""
    about = f"run {first.run_id}, " if first.run_id else ""
    yield Line(
        "ledger",
        WRONG,
        f"{more}{len(findings)} broken invariants (first: {first.check}, {about}{first.detail})",
        f"`manta fsck` lists them; {remedy(first)}.",
    )
