"""
What cancel, retry, hold and release share: choose runs, move them batch by batch, tell.

A batch is chosen by keyset, in the order of ids, and moved by one statement of the ledger, which
looks at each run's state again: what moved on meanwhile is left alone. Each batch commits by
itself, so that a million runs hold no lock for longer than a thousand do; stopped in the middle, the
command can simply be given again.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import batched
from typing import Any, NamedTuple
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.db.models import Exists, OuterRef

from django_manta.backend import MantaBackend
from django_manta.commands import choosing
from django_manta.commands.printing import Printer, add_format, counts, runs
from django_manta.execution import announce
from django_manta.ledger import house
from django_manta.models import Gate, Run, RunQuerySet
from django_manta.ringing import CANCEL, ring_after_commit
from django_manta.states import State, read_state
from django_manta.workflow import own
from django_manta.workflow.promise import TASK as PROMISE

#: Runs per statement.
BATCH = 1_000

#: How many runs a dry run names.
SHOWN = 20

_PROGRESS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Move:
    """A verb that moves runs: which, and whereto."""

    verb: str
    done: str
    #: What the ledger's statement of this name moves.
    states: frozenset[State]
    #: Where a run already is that need not be moved: no error.
    goal: frozenset[State] = frozenset()
    #: Moved by filters only if ``--state`` names it.
    only_if_named: frozenset[State] = frozenset()
    takes_reason: bool = False
    #: What waits for the runs can be moved along.
    cascades: bool = False


class Chosen(NamedTuple):
    """As much of a run as moving it takes."""

    id: UUID
    queue: str
    state: State
    task: str
    due_at: datetime | None
    #: What it waits for lets it pass, or not.
    gated: bool


@dataclass(slots=True)
class Tally:
    """What was (or would be) done."""

    moved: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    missing: list[UUID] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser, move: Move) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="The runs, by id. Or say which by filters.")
    choosing.add_filters(parser)
    parser.add_argument("--all", action="store_true", help=f"Every run that {move.verb} can move, without a filter.")
    parser.add_argument("--dry-run", action="store_true", help="Say what would be moved, and move nothing.")
    if move.takes_reason:
        parser.add_argument("--reason", default="", metavar="TEXT", help="Why: kept with the runs, for people.")
    if move.cascades:
        parser.add_argument(
            "--cascade", action="store_true", help="Also everything that waits for them, directly or not."
        )
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any], move: Move) -> int:
    _refuse_the_unclear(options, move)
    printer = Printer(command, options)
    backend = choosing.backend_of(options)
    tally = Tally()
    if options["ids"]:
        batches = _by_id(backend, choosing.run_ids(options["ids"]), tally)
    else:
        batches = _by_filter(backend, options, move)
    if options["dry_run"]:
        _pretend(batches, move, house.clock(backend.ledger), tally)
    else:
        given: dict[str, Any] = {"reason": options["reason"]} if move.takes_reason else {}
        if options.get("cascade"):
            given["cascade"] = True
        _move(backend, batches, move, given, tally, printer)
    _tell(printer, options, move, tally)
    stuck = [state for state in tally.left if state not in move.goal]
    return 1 if options["ids"] and (tally.missing or stuck) else 0


def _refuse_the_unclear(options: dict[str, Any], move: Move) -> None:
    flags = ", ".join(f"--{name}" for name in choosing.FILTERS)
    given = [bool(options["ids"]), choosing.has_filters(options), options["all"]]
    if not any(given):
        raise CommandError(
            f"Say which runs to {move.verb}: by id, by filter ({flags}), or --all. --dry-run shows what would move."
        )
    if sum(given) > 1:
        raise CommandError(f"Say which runs to {move.verb} in one way: by id, by filter ({flags}), or --all.")


# -- choosing, batch by batch ----------------------------------------------------------------------


def _by_id(backend: MantaBackend, ids: list[UUID], tally: Tally) -> Iterator[list[Chosen]]:
    for batch in batched(ids, BATCH):
        found = {run.id: run for run in _read(Run.objects.using(backend.database).filter(pk__in=batch))}
        tally.missing += [run_id for run_id in batch if run_id not in found]
        yield [found[run_id] for run_id in batch if run_id in found]


def _by_filter(backend: MantaBackend, options: dict[str, Any], move: Move) -> Iterator[list[Chosen]]:
    named = choosing.states(options["state"], move.states, move.verb)
    matching = choosing.filtered(backend, options, named or sorted(move.states - move.only_if_named))
    # What is enqueued from now on is not meant, and a busy producer must not keep us here for ever.
    last: UUID | None = Run.objects.using(backend.database).order_by("-pk").values_list("pk", flat=True).first()
    after = UUID(int=0)
    while last is not None:
        batch = _read(matching.filter(pk__gt=after, pk__lte=last).order_by("pk")[:BATCH])
        if batch:
            yield batch
        if len(batch) < BATCH:
            return
        after = batch[-1].id


def _read(matching: RunQuerySet) -> list[Chosen]:
    gate = Gate.objects.filter(run=OuterRef("pk"))
    rows = matching.values_list("pk", "queue", "state", "task", "due_at", Exists(gate))
    return [Chosen(pk, queue, read_state(state), *rest) for pk, queue, state, *rest in rows]


# -- moving ----------------------------------------------------------------------------------------


def _move(
    backend: MantaBackend,
    batches: Iterable[list[Chosen]],
    move: Move,
    given: dict[str, Any],
    tally: Tally,
    printer: Printer,
) -> None:
    told = time.monotonic()
    for batch in batches:
        reached: dict[UUID, State] = getattr(backend.ledger, move.verb)([run.id for run in batch], **given)
        # Others may move for the sake of these; they are not what was asked for, unless it was.
        # And what fails again at once, for the sake of what it waits for, has not moved.
        moved = {run.id for run in batch if reached.get(run.id, run.state) is not run.state}
        if given.get("cascade"):
            moved |= reached.keys()
        tally.moved.update(reached[run_id].value for run_id in moved)
        tally.left.update(run.state.value for run in batch if run.id not in moved)
        ended = (State.CANCELLED, State.UPSTREAM_FAILED)
        _announce(backend, [run_id for run_id, state in reached.items() if state in ended])
        ring(backend.database, _words(batch, reached))
        if time.monotonic() - told >= _PROGRESS_SECONDS:
            told = time.monotonic()
            printer.progress(f"{move.done.capitalize()} {runs(tally.moved.total())} so far …")


def _announce(backend: MantaBackend, ended: list[UUID]) -> None:
    """No executor will tell of these ends: nothing of the runs was running."""
    if ended and own.is_heard_of(backend.database):
        transaction.on_commit(partial(announce.ended, backend, ended), using=backend.database, robust=True)


def _words(batch: list[Chosen], reached: dict[UUID, State]) -> set[str]:
    """What to ring for: queues that have something new, and what is to be stopped."""
    words = {CANCEL} if State.CANCELLING in reached.values() else set()
    woken = (State.READY, State.SCHEDULED)
    chosen = {run.id for run in batch}
    if any(state in woken for run_id, state in reached.items() if run_id not in chosen):
        # Something that waited for one of them is ready, in whatever queue: any word makes the workers look.
        words.add(CANCEL)
    return words | {run.queue for run in batch if reached.get(run.id) in woken}


def ring(database: str, words: Iterable[str]) -> None:
    """Wake the workers of every cluster that has its runs in ``database``."""
    for word in sorted(words):
        for cluster in choosing.clusters_of(database):
            ring_after_commit(database, cluster, word)


# -- a dry run -------------------------------------------------------------------------------------


def _pretend(batches: Iterable[list[Chosen]], move: Move, now: datetime, tally: Tally) -> None:
    for batch in batches:
        for run in batch:
            if run.state not in move.states:
                tally.left[run.state.value] += 1
                continue
            reached = _would_reach(move.verb, run, now)
            tally.moved[reached.value] += 1
            if len(tally.shown) < SHOWN:
                tally.shown.append(
                    {"id": run.id, "task": run.task, "queue": run.queue, "from": run.state, "to": reached}
                )


def _would_reach(verb: str, run: Chosen, now: datetime) -> State:
    """What the ledger's statements do."""
    match verb:
        case "cancel":
            return State.CANCELLING if run.state is State.RUNNING else State.CANCELLED
        case "hold":
            return State.HELD
        case "release" | "retry" if run.gated or run.task == PROMISE:
            return State.WAITING
        case "release" if run.due_at is not None and run.due_at > now:
            return State.SCHEDULED
    return State.READY


# -- telling ---------------------------------------------------------------------------------------


def _tell(printer: Printer, options: dict[str, Any], move: Move, tally: Tally) -> None:
    if printer.wants_json:
        printer.data(
            {
                "verb": move.verb,
                "dry_run": options["dry_run"],
                "moved": dict(tally.moved),
                "left": dict(tally.left),
                "missing": tally.missing,
                "runs": tally.shown,
            }
        )
        return
    if tally.shown:
        printer.table(["id", "task", "queue", "from", "to"], [list(run.values()) for run in tally.shown])
        if tally.moved.total() > len(tally.shown):
            printer.line(f"… and {tally.moved.total() - len(tally.shown)} more")
    done = f"Would have {move.done}" if options["dry_run"] else move.done.capitalize()
    into = f": {counts(tally.moved)}" if tally.moved else ""
    printer.line(f"{done} {runs(tally.moved.total())}{into}.")
    if tally.left:
        printer.line(f"Left as they are: {counts(tally.left)}.")
    for run_id in tally.missing:
        printer.line(f"There is no run {run_id}.")
