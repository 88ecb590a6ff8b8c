"""
Runs that wait for runs: edges, gates, and who is told when something ends.

A run with edges is inserted WAITING behind a gate that nobody has armed. After its transaction has
committed, arming locks the preconditions for a moment, counts how they stand, says to them that
somebody waits, and lets the run pass if nothing is in its way. Whoever later moves a precondition to
an end, or back from one, leaves a herald in the same statement; telling the dependents is a short
transaction of its own that counts each edge once, moves what its gates let pass, and removes the
herald. Whoever dies in between leaves the herald, or the unarmed gate, and the caretaker does the rest:
each step can be repeated, and none is lost.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import batched
from json import dumps
from random import choice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import Error as AnyDatabaseError
from django.db import OperationalError

from django_manta.ledger.conflicts import CONFLICTS, code_of, is_refusal, patiently
from django_manta.ledger.records import Enqueued, NewRun, Settleable
from django_manta.ledger.rows import enqueued, has_no_dates, plain_run
from django_manta.ledger.values import delegates_of
from django_manta.states import ENDS, Outcome, Role, State, When

if TYPE_CHECKING:
    from django_manta.ledger.book import Ledger

logger = logging.getLogger("django_manta")

#: Edges that are counted in one transaction, unless it tells of more runs than that; and in all, before the rest is
#: left to the caretaker.
TELL_BATCH = 200
TELL_AT_ONCE = 1_000

#: And so long, before the rest is left to the caretaker: a long chain is one short transaction a step.
TELL_SECONDS = 0.1

#: Gates armed in one transaction; or, where that is known, so many as have so many edges together.
ARM_BATCH = 200
ARM_EDGES = 1_000

#: How long one waits for somebody who holds what a run waits for. The caretaker comes again.
PATIENCE_MILLISECONDS = 250

#: Edges per INSERT, and how many a run may have that is inserted together with them: their list stands in the statement
#: three times.
EDGE_BATCH = 5_000
FEW_EDGES = 100

#: How far, and over how many runs, a deadline is passed on.
NEARER_DEPTH, NEARER_LIMIT = 50, 1_000

#: Somebody held a row for as long as one waits. Once more would be as long again.
_HELD = "55P03"


@dataclass(frozen=True, slots=True)
class Edge:
    """``run`` waits for ``on``."""

    run: UUID
    on: UUID
    role: Role


@dataclass(frozen=True, slots=True)
class NewGate:
    """What a run waits for is counted here."""

    run: UUID
    mode: When = When.ALL_SUCCESSFUL
    #: Called at once, whatever it waits for.
    passed: bool = False
    #: It asked to be called again: so many times more.
    laters: int = 0


@dataclass(slots=True)
class Passed:
    """What moved when gates were counted."""

    #: States reached, by run.
    states: dict[UUID, State] = field(default_factory=dict)
    #: The queues in which something became ready.
    queues: set[str] = field(default_factory=set)
    #: How many gates and heralds were found to be left.
    seen: int = 0
    #: How many gates were armed, edges counted and heralds heard out. If none, nothing is left, or somebody holds it.
    done: int = 0
    #: How many runs nobody else could move meanwhile, because others wait for them.
    locked: int = 0
    #: The runs that were not counted, because somebody holds them or what they wait for.
    left: set[UUID] = field(default_factory=set)
    #: Whether some who wait were not told, because somebody holds them.
    untold: bool = False
    #: Whether there are gates and heralds behind those that were found.
    more: bool = False

    @property
    def ended(self) -> list[UUID]:
        return [run_id for run_id, state in self.states.items() if state in ENDS]

    @property
    def ready(self) -> set[UUID]:
        return {run_id for run_id, state in self.states.items() if state is State.READY}

    def __ior__(self, other: "Passed") -> "Passed":
        self.states |= other.states
        self.queues |= other.queues
        self.seen += other.seen
        self.done += other.done
        self.locked += other.locked
        self.left |= other.left
        self.untold |= other.untold
        self.more |= other.more
        return self


def add(ledger: "Ledger", gates: Iterable[NewGate], edges: Iterable[Edge]) -> None:
    """Gates and edges for runs, in the caller's transaction. They count when they are armed."""
    rows: list[dict[str, Any]] = [
        {"run_id": gate.run.hex, "mode": gate.mode.value, "passed": gate.passed, "laters": gate.laters}
        for gate in gates
    ]
    for batch in batched(rows, EDGE_BATCH):
        ledger.session.run("add_gates", {"gates": dumps(batch)})
    listed: list[dict[str, Any]] = [
        {"run_id": edge.run.hex, "on_id": edge.on.hex, "role": edge.role.value} for edge in edges
    ]
    for batch in batched(listed, EDGE_BATCH):
        ledger.session.run("add_edges", {"edges": dumps(batch)})


def enqueue_waiting(
    ledger: "Ledger", run: NewRun, mode: When, edges: Sequence[Edge], *, own: bool
) -> tuple[Enqueued, bool] | None:
    """
    Insert a run that waits, its gate and its edges, in one statement; and whether it is armed already: ``own`` says
    that the present transaction has enqueued all that it waits for. None for what takes more than that.
    """
    if ledger.dialect.name != "postgres" or len(edges) > FEW_EDGES or not has_no_dates(run):
        return None
    params = plain_run(ledger.dialect, run) | {
        "refs": run.references,
        "mode": mode.value,
        # As PostgreSQL writes lists: psycopg would look at each, and there is nothing to be escaped.
        "preconditions": f"{{{','.join(edge.on.hex for edge in edges)}}}",
        "roles": f"{{{','.join(edge.role.value for edge in edges)}}}",
        "own": own,
    }
    [(enqueued_at, deadline, armed)] = ledger.session.rows("enqueue_waiting", params)
    return enqueued(ledger.dialect, run, State.WAITING, enqueued_at, deadline), armed


def wait(ledger: "Ledger", settlements: Sequence[Settleable]) -> None:
    """Gates and edges for executions that delegated, or asked to be called again after others."""
    gates, edges = [], []
    for each in settlements:
        is_later = each.outcome is Outcome.DEFERRED
        gates.append(NewGate(each.run_id, passed=each.at_once, laters=int(is_later)))
        edges += [Edge(each.run_id, on, Role.AFTER) for on in each.after]
        edges += [Edge(each.run_id, UUID(on), Role.DELEGATE) for on in delegates_of(each.delegate)]
    add(ledger, gates, edges)


# -- arming ------------------------------------------------------------------------------------------


def arm(
    ledger: "Ledger", ids: Iterable[UUID], *, new: bool = False, batch: int = ARM_BATCH, patient: bool = True
) -> Passed:
    """
    Count what runs wait for, and let those pass that wait for nothing any more. Tells whoever waits for them.

    Ends those that asked to wait for something that waits for them; ``new`` ones cannot have. Runs that somebody holds,
    or what they wait for, in a transaction that takes its time, are waited for once and for a moment, or not at all
    unless ``patient``. Then they are left, and the caretaker comes again for them; the others are counted.
    """
    passed = Passed()
    heralds: list[UUID] = []
    ids = list(ids)
    for some in batched(ids, batch):
        moved, told, patient = _arm_or_leave(ledger, some, new, patient)
        moved.done += len(some) - len(moved.left)
        passed |= moved
        heralds += told
    passed |= tell(ledger, heralds)
    bring_forward(ledger, [run_id for run_id in ids if run_id not in passed.left])
    return passed


def arm_own(ledger: "Ledger", ids: Iterable[UUID]) -> set[UUID]:
    """
    Arm new runs that wait only for what the present transaction has enqueued as well. Which ones.

    Nobody else can see any of it: nothing is locked, and there is nothing to come back for after the commit.
    """
    if ledger.dialect.name != "postgres":
        return set()
    return {row[0] for row in ledger.session.rows("arm_own", {"ids": _listed(ledger, ids)})}


def _arm_or_leave(ledger: "Ledger", ids: Sequence[UUID], new: bool, patient: bool) -> tuple[Passed, list[UUID], bool]:
    """Arm runs; if somebody holds what some of them wait for, the others. Whether there is patience for the next."""
    if patient:
        try:
            return *patiently(ledger, lambda: _arm_after_news(ledger, ids, new, waiting=True)), True
        except OperationalError as error:
            if code_of(error) not in CONFLICTS | {_HELD} or ledger.session.in_transaction():
                raise
    return *patiently(ledger, lambda: _arm_after_news(ledger, ids, new, waiting=False)), False


def _arm_after_news(ledger: "Ledger", ids: Sequence[UUID], new: bool, waiting: bool) -> tuple[Passed, list[UUID]]:
    """A circle may be none: somebody in it may go on, and has not been told yet."""
    try:
        return _arm(ledger, ids, new, waiting, sure=False)
    except _PerhapsCircle:
        passed = tell_leftovers(ledger)
    moved, heralds = _arm(ledger, ids, new, waiting, sure=True)
    moved.states = passed.states | moved.states
    moved.queues |= passed.queues
    return moved, heralds


class _PerhapsCircle(Exception):
    """Somebody would wait for itself, unless there is news."""


def _arm(ledger: "Ledger", ids: Sequence[UUID], new: bool, waiting: bool, sure: bool) -> tuple[Passed, list[UUID]]:
    with _briefly(ledger):
        locked, left = _lock(ledger, ids, waiting)
        ids = [run_id for run_id in ids if run_id not in left]
        if not ids:
            return Passed(left=left), []
        params = {"ids": _listed(ledger, ids)}
        circles = [] if new else in_circles(ledger, ids)
        if circles and not sure:
            raise _PerhapsCircle
        refused, heralds = _refuse(ledger, circles)
        ledger.session.run("arm_flag", params)
        ledger.session.run("arm_edges", params)
        ledger.session.rows("arm_gates", {**params, "locked": _listed(ledger, locked)})
        passed, told = _let_pass(ledger, ids, reopening=True)
        passed |= refused
        passed.locked = len(locked.difference(ids))
        passed.left = left
        return passed, [*heralds, *told]


def _lock(ledger: "Ledger", ids: Sequence[UUID], waiting: bool) -> tuple[set[UUID], set[UUID]]:
    """Lock runs and what they wait for: what is locked, and which of the runs are left because somebody holds it."""
    if ledger.dialect.name == "sqlite":
        return set(), set()
    params = {"ids": _listed(ledger, ids)}
    if waiting:
        return {row[0] for row in ledger.session.rows("arm_lock", params)}, set()
    found = ledger.session.rows("arm_free", params)
    return {run_id for run_id, is_left in found if not is_left}, {run_id for run_id, is_left in found if is_left}


def arm_leftovers(ledger: "Ledger", *, older_than: float = 0.0, limit: int = 1_000, page: int = 0) -> Passed:
    """
    Arm what nobody armed after it was enqueued, ``limit`` at most, or the same of a further ``page``. What somebody
    holds is passed over, but for one of them: where others are always in line, it gets its turn only if it waits.
    """
    rows = ledger.session.rows("unarmed", {"seconds": older_than, "limit": limit, "skip": page * limit})
    ids = [ledger.dialect.read_id(row[0]) for row in rows]
    passed = _past_refusals(ledger, ids, lambda some: arm(ledger, some, patient=False))
    if passed.left:
        one = choice(sorted(passed.left))
        passed.left.discard(one)
        passed |= arm(ledger, [one])
    passed.seen += len(rows)
    passed.more |= len(rows) == limit
    return passed


def in_circles(ledger: "Ledger", ids: Iterable[UUID], *, reopened: bool = False) -> list[tuple[UUID, UUID]]:
    """
    Those of the runs that would wait for themselves, each with what it must not wait for. With ``reopened`` also
    those that were never called: what they wait for had ended, and has learned of them since.
    """
    found = ledger.session.rows("reaches", {"ids": _listed(ledger, ids), "reopened": reopened})
    if not found:
        return []
    origins = [ledger.dialect.read_id(row[0]) for row in found]
    rows = ledger.session.rows("closing", {"ids": _listed(ledger, origins)})
    return [(ledger.dialect.read_id(run_id), ledger.dialect.read_id(on_id)) for run_id, on_id in rows]


def _refuse(ledger: "Ledger", circles: Sequence[tuple[UUID, UUID]]) -> tuple[Passed, list[UUID]]:
    """
    End runs that would wait for themselves. Of two that close a circle at the same time, whoever is counted last
    sees both edges: they were committed before they are counted.
    """
    if not circles:
        return Passed(), []
    reasons = {run_id: _circle(run_id, on_id) for run_id, on_id in circles}
    refused = [{"run_id": run_id.hex, "reason": reason} for run_id, reason in reasons.items()]
    moved = ledger.session.rows("refuse", {"refused": dumps(refused)})
    heralds = [ledger.dialect.read_id(run_id) for run_id, _, is_herald in moved if is_herald]
    if heralds and ledger.dialect.name == "sqlite":
        ledger.session.run("add_heralds", {"ids": _listed(ledger, heralds)})
    passed = Passed({ledger.dialect.read_id(run_id): State(state) for run_id, state, _ in moved})
    # Without the edges that closed it: an operator's retry calls the run again, and it may decide otherwise.
    edges = [{"run_id": run_id.hex, "on_id": on_id.hex} for run_id, on_id in circles if run_id in passed.states]
    ledger.session.run("unlink", {"edges": dumps(edges)})
    return passed, heralds


def _circle(run_id: UUID, on_id: UUID) -> str:
    if run_id == on_id:
        return "It asked to wait for itself."
    return f"It asked to wait for run {on_id}, which waits for it: neither could ever go on."


# -- telling -----------------------------------------------------------------------------------------


def tell(ledger: "Ledger", ids: Iterable[UUID], *, at_once: int = TELL_AT_ONCE) -> Passed:
    """
    Tell the dependents of runs that ended or were reopened, and theirs if that ends or reopens them.

    After ``at_once`` edges, or a moment, the rest is left to the heralds, for the caretaker; and so is whoever
    somebody holds in a transaction of their own: a settlement waits for nobody.
    """
    passed = Passed()
    heralds = list(ids)
    told = 0
    until = time.monotonic() + TELL_SECONDS
    tried_again = False
    while heralds and told < at_once:
        moved, more, count, left = patiently(ledger, lambda: _tell(ledger, heralds))  # noqa: B023 (called at once)
        passed |= moved
        told += count
        again = left is Left.MORE or (left is Left.HELD and not tried_again)
        # Who holds a join is most often another worker that tells it of another run, and is done in a moment.
        tried_again = tried_again or left is Left.HELD
        passed.untold |= left is Left.HELD and not again
        heralds = [*heralds, *more] if again else more
        if time.monotonic() >= until:
            break
    return passed


class Left(Enum):
    """Who has not been told: nobody, those that did not fit into one statement, those that somebody holds."""

    NOBODY = 0
    MORE = 1
    HELD = 2


def _tell(ledger: "Ledger", ids: Sequence[UUID]) -> tuple[Passed, list[UUID], int, Left]:
    """What moved, whose dependents are next, how many edges were counted, and who is left."""
    gone = 0
    alone = not ledger.session.in_transaction()
    with ledger.session.transaction():
        if ledger.dialect.name == "postgres":
            locked = [row[0] for row in ledger.session.rows("tell_lock", {"ids": _listed(ledger, ids)})]
            if len(locked) < len(ids):
                gone = len(ledger.session.rows("hush_gone", {"ids": _listed(ledger, set(ids) - set(locked))}))
            ids = locked
        if not ids:
            return Passed(done=gone), [], 0, Left.NOBODY
        moved, heralds, told, left = _tell_held(ledger, ids)
        moved.done += gone
        if alone and not moved.ended:
            # The heralds would be there again. An end is told to others, and stays.
            ledger.session.is_repeatable()
    return moved, heralds, told, left


def telling_own(ledger: "Ledger", ids: Sequence[UUID]) -> dict[str, object]:
    """
    What to say to tell_own.sql in a transaction that may be moving these to a good end, quietly: it tells the
    dependents of those that it has moved. Only on PostgreSQL.
    """
    return {"ids": _listed(ledger, ids), "limit": _batch_of(ids)}


def told_own(ended: Iterable[UUID], answer: Iterable[Sequence[Any]], passed: Passed) -> list[UUID]:
    """
    After telling_own(): the same transaction has moved ``ended`` to an end, and ``answer`` is what tell_own.sql said.
    Of whom the dependents are to be told when it has committed; and in ``passed`` what moved by it.
    """
    told = set()
    for run_id, state, queue in answer:
        if state is None:
            told.add(run_id)
        else:
            _note(passed, [(run_id, state, queue)])
    return [run_id for run_id in ended if run_id not in told]


def _tell_held(ledger: "Ledger", ids: Sequence[UUID]) -> tuple[Passed, list[UUID], int, Left]:
    """Tell the dependents of runs that nobody else can move meanwhile."""
    limit = _batch_of(ids)
    params = {"ids": _listed(ledger, ids), "limit": limit}
    news = _count_sqlite(ledger, params) if ledger.dialect.name == "sqlite" else _count(ledger, params)
    moved = Passed(done=news.told + news.hushed)
    _note(moved, zip(news.passed, news.states, news.queues, strict=True))
    heralds: list[UUID] = []
    if news.told:
        passed, heralds = _let_pass(ledger, news.dependents, reopening=news.reopening)
        moved |= passed
        if news.again:
            # While it was over, somebody may have begun to wait for who waited for it.
            refused, more = _refuse(ledger, in_circles(ledger, sorted(set(news.again)), reopened=True))
            moved |= refused
            heralds += more
    if news.found and not news.hushed:
        # Of some there may be more, or somebody who could not be told.
        moved.done += len(ledger.session.rows("hush", {"ids": params["ids"]}))
    left = Left.MORE if news.found == limit and news.told else Left.HELD if news.found > news.told else Left.NOBODY
    return moved, heralds, news.told, left


def _batch_of(ids: Sequence[UUID]) -> int:
    """One edge of each, and one more, so that most often nothing is left; of one with very many, a batch."""
    return max(TELL_BATCH, len(ids) + 1)


@dataclass(frozen=True, slots=True)
class _News:
    """What gates did not know, and have counted now."""

    #: Edges that were found, and of them those whose dependents nobody held.
    found: int
    told: int
    #: Heralds that have nothing more to tell.
    hushed: int
    #: Whether some of it was over when it was told of last.
    reopening: bool
    #: The runs whose gates have counted it, and may let them pass.
    dependents: Sequence[UUID]
    #: The runs that wait again for something.
    again: Sequence[UUID]
    #: The runs that their gates have let pass already, their states and queues.
    passed: Sequence[UUID] = ()
    states: Sequence[str] = ()
    queues: Sequence[str] = ()


def _count(ledger: "Ledger", params: dict[str, object]) -> _News:
    [row] = ledger.session.rows("tell", params)
    return _News(*row)


def _count_sqlite(ledger: "Ledger", params: dict[str, object]) -> _News:
    """SQLite moves nothing inside a query: look, then mark, then count. Nobody else holds anything."""
    news = ledger.session.rows("untold", params)
    if not news:
        return _News(0, 0, len(ledger.session.rows("hush", {"ids": params["ids"]})), False, (), ())
    edges = [{"id": edge, "told": bool(ended), "met": bool(succeeded)} for edge, _, _, ended, succeeded, *_ in news]
    ledger.session.run("tell_edges", {"edges": dumps(edges)})
    counted = ledger.session.rows("tell_gates", {"gates": dumps(_deltas(news))})
    return _News(
        found=len(news),
        told=len(news),
        hushed=0,
        reopening=any(was_told for *_, was_told, _, _ in news),
        dependents=[ledger.dialect.read_id(row[0]) for row in counted],
        again=[ledger.dialect.read_id(row[1]) for row in news if not row[3]],
    )


def _deltas(news: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """What changes in each gate: an edge that is told of goes from the pending ones to the met or bad ones, or back."""
    gates: dict[Any, dict[str, Any]] = {}
    for _, run_id, role, ended, succeeded, was_told, was_met, was_called in news:
        gate = gates.setdefault(
            run_id,
            {
                "run_id": run_id,
                "pending_values": 0,
                "met_values": 0,
                "bad_values": 0,
                "pending_after": 0,
                "met_after": 0,
                "bad_after": 0,
                "consumed": 0,
            },
        )
        kind = "after" if role == Role.AFTER else "values"
        gate[f"{_standing(was_told, was_met)}_{kind}"] -= 1
        gate[f"{_standing(ended, succeeded)}_{kind}"] += 1
        gate["consumed"] -= bool(was_called)
    return list(gates.values())


def _standing(told: bool, met: bool) -> str:
    return "met" if met else "bad" if told else "pending"


def heralds_for(ledger: "Ledger", ids: Iterable[UUID]) -> list[UUID]:
    """What runs wait for, if they have not been told how it stands. Some of it, if it is very much."""
    return [row[0] for row in ledger.session.rows("heralds_for", {"ids": _listed(ledger, ids)})]


def tell_leftovers(ledger: "Ledger", limit: int = 100, page: int = 0) -> Passed:
    """Tell the dependents of whom nobody told so far, ``limit`` at most, or the same of a further ``page``."""
    rows = ledger.session.rows("heralds", {"limit": limit, "skip": page * limit})
    ids = [ledger.dialect.read_id(row[0]) for row in rows]
    passed = _past_refusals(ledger, ids, lambda some: tell(ledger, some))
    passed.seen += len(rows)
    passed.more |= len(rows) == limit
    return passed


def _past_refusals(ledger: "Ledger", ids: list[UUID], act: Callable[[list[UUID]], Passed]) -> Passed:
    """
    What ``act`` does with runs; with one after the other if the database refuses it for some, so that the others go on.
    """
    try:
        return act(ids)
    except AnyDatabaseError as error:
        if not is_refusal(error) or ledger.session.in_transaction():
            raise
    passed = Passed()
    for run_id in ids:
        try:
            passed |= act([run_id])
        except AnyDatabaseError as error:
            if not is_refusal(error):
                raise
            words = "The database refuses to count what run %s waits for, or to move what waits for it: %s"
            logger.error(words, run_id, str(error).strip())
    return passed


# -- passing -----------------------------------------------------------------------------------------


def _let_pass(ledger: "Ledger", ids: Sequence[UUID], *, reopening: bool) -> tuple[Passed, list[UUID]]:
    """Move runs as their gates say. What moved, and of those the ones whose own dependents are to be told."""
    if not ids:
        return Passed(), []
    params = {"ids": _listed(ledger, ids), "reopening": reopening}
    passed = Passed()
    found = _pass_sqlite(ledger, params) if ledger.dialect.name == "sqlite" else _pass(ledger, params)
    moved = [(ledger.dialect.read_id(run_id), state, queue, is_herald) for run_id, state, queue, is_herald in found]
    _note(passed, ((run_id, state, queue) for run_id, state, queue, _ in moved))
    return passed, [run_id for run_id, _, _, is_herald in moved if is_herald]


def _note(passed: Passed, moved: Iterable[tuple[UUID, str, str]]) -> None:
    for run_id, state, queue in moved:
        passed.states[run_id] = State(state)
        if state == State.READY:
            passed.queues.add(queue)


def _pass(ledger: "Ledger", params: dict[str, object]) -> list[Any]:
    return ledger.session.rows("pass_gates", params)


def _pass_sqlite(ledger: "Ledger", params: dict[str, object]) -> list[Any]:
    """SQLite moves nothing inside a query: judge, then move."""
    judged = ledger.session.rows("judge_gates", params)
    moving = [row for row in judged if row[1] != row[2]]
    if not moving:
        return []
    rows = [{"id": row[0], "next_state": row[2], "delegates": bool(row[5]), "due_at": row[6]} for row in moving]
    ledger.session.run("pass_gates", {"judged": dumps(rows)})
    called = [row[0] for row in moving if row[1] == State.WAITING and row[2] in (State.READY, State.SCHEDULED)]
    ledger.session.run("consume_edges", {"ids": dumps(called)})
    ledger.session.run("consume_gates", {"ids": dumps(called)})
    heralds = {row[0] for row in moving if row[4] and (row[1] in ENDS or row[2] in ENDS)}
    ledger.session.run("add_heralds", {"ids": dumps(sorted(heralds))})
    return [(row[0], row[2], row[3], row[0] in heralds) for row in moving]


# -- what was waited for -----------------------------------------------------------------------------


def upstream(ledger: "Ledger", run_id: UUID) -> list[UUID]:
    """What a run waits or waited for, in the order in which it was asked, each once."""
    rows = ledger.session.rows("upstream", {"ids": _listed(ledger, [run_id])})
    return list(dict.fromkeys(ledger.dialect.read_id(on_id) for _, on_id, role in rows if role != Role.DELEGATE))


def downstream(ledger: "Ledger", ids: Iterable[UUID]) -> list[UUID]:
    """Everything that waits for runs, directly or not."""
    rows = ledger.session.rows("downstream", {"ids": _listed(ledger, ids)})
    return [ledger.dialect.read_id(row[0]) for row in rows]


def with_downstream(ledger: "Ledger", ids: Iterable[UUID]) -> list[UUID]:
    """
    Runs and all that waits for them, in the order in which to cancel them a few at a time, so that none starts because
    one before it was cancelled: first those that a bad end lets pass, the farthest of them first; then the runs
    themselves; then the others, the nearest first.
    """
    ids = list(dict.fromkeys(ids))
    known = set(ids)
    rows = ledger.session.rows("downstream", {"ids": _listed(ledger, ids)})
    found = [(ledger.dialect.read_id(run_id), passes) for run_id, passes in rows]
    passing = [run_id for run_id, passes in found if passes and run_id not in known]
    others = [run_id for run_id, passes in found if not passes and run_id not in known]
    return [*reversed(passing), *ids, *others]


def bring_forward(ledger: "Ledger", ids: Iterable[UUID], *, at_once: int = EDGE_BATCH) -> int:
    """Pass the deadlines of runs on to what they wait for. Best effort: waits for nobody. How many moved."""
    moved = 0
    for batch in batched(ids, at_once):
        params = {"ids": _listed(ledger, batch), "depth": NEARER_DEPTH, "limit": NEARER_LIMIT}
        moved += len(ledger.session.rows("nearer", params))
    return moved


def forget(ledger: "Ledger", ids: Iterable[UUID]) -> None:
    """Remove the edges of runs that are gone."""
    ledger.session.run("forget_edges", {"ids": _listed(ledger, ids)})


@contextmanager
def _briefly(ledger: "Ledger") -> Iterator[None]:
    """
    A transaction that soon gives up on a row which somebody holds: neither a caller nor a worker's loop has the time.
    """
    limited = ledger.dialect.name == "postgres" and not ledger.session.in_transaction()
    with ledger.session.transaction():
        if limited:
            ledger.session.rows("briefly", {"milliseconds": str(PATIENCE_MILLISECONDS)})
        yield


def _listed(ledger: "Ledger", ids: Iterable[UUID]) -> object:
    return ledger.dialect.listing([run_id.hex for run_id in ids])
