"""
The ledger's interface: what can be done to runs, in the vocabulary of the project.

A method is a statement, or a constant number of them, whatever the size of its batch. The
database's clock decides everywhere; no method takes the time of the calling machine.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import batched
from json import dumps
from typing import Any
from uuid import UUID

from django.db import DatabaseError, IntegrityError
from django.db import Error as AnyDatabaseError

from django_manta import text
from django_manta.exceptions import WrongKey
from django_manta.ledger import bad_rows, claiming, clusters, conflicts, graph, rows, settling
from django_manta.ledger.marks import Marks
from django_manta.ledger.records import (
    AttemptRecord,
    Claimed,
    Enqueued,
    NewRun,
    Orphan,
    RayPlace,
    RunRecord,
    Settleable,
    Settled,
    WorkerRecord,
    plain,
)
from django_manta.ledger.session import DjangoSession, Row, Session
from django_manta.ledger.values import delegates_of
from django_manta.payload import Seal
from django_manta.states import ENDS, Outcome, State, read_outcome, read_state

logger = logging.getLogger("django_manta")

#: Rows per INSERT: large enough to drown the round trip, small enough for one message. And about how many bytes of
#: arguments.
ENQUEUE_BATCH = 2_000
ENQUEUE_BYTES = 16 * 1024 * 1024

#: Runs that are cancelled by one statement: as many as the commands move.
CANCEL_BATCH = 1_000

_LONG_AGO = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True)
class Pruned:
    """One step of retention: what went, what could not go, and where the next step begins."""

    deleted: int
    refused: tuple[UUID, ...]
    next: tuple[datetime, UUID] | None
    #: The last run that was looked at, also if none follows; None if there was none.
    reached: tuple[datetime, UUID] | None = None


class Ledger:
    """Every move of a run, through one session."""

    def __init__(self, session: Session | None = None) -> None:
        self.session = session or DjangoSession()
        self.dialect = self.session.dialect

    # -- enqueue ---------------------------------------------------------------------------------

    def enqueue(self, runs: Sequence[NewRun]) -> list[Enqueued]:
        """Insert runs: one statement a batch, in the caller's transaction, locking nothing else."""
        if len(runs) == 1:
            return self._enqueue(runs)
        batches = list(_batches(runs))
        if len(batches) == 1:
            return self._enqueue(runs)
        with self.session.transaction():
            return [enqueued for batch in batches for enqueued in self._enqueue(batch)]

    def _enqueue(self, runs: Sequence[NewRun]) -> list[Enqueued]:
        if not runs:
            return []
        if len(runs) == 1 and self.dialect.name == "postgres" and rows.is_plain(runs[0]):
            [(enqueued_at, deadline)] = self.session.rows("enqueue_plain", rows.plain_run(self.dialect, runs[0]))
            return [rows.enqueued(self.dialect, runs[0], State.READY, enqueued_at, deadline)]
        params, keys = rows.new_runs(self.dialect, runs)
        made = {row[0]: rows.made(self.dialect, row) for row in self.session.rows("enqueue", params)}
        return [Enqueued(id=run.id, **made[key]) for run, key in zip(runs, keys, strict=True)]

    # -- the path of a run -----------------------------------------------------------------------

    def claim(
        self,
        worker: str,
        queues: Sequence[str],
        limit: int,
        *,
        horizon: float | None = None,
        not_tasks: Sequence[str] = (),
        marks: Marks | None = None,
        budget: int = claiming.CLAIM_BYTES,
    ) -> list[Claimed]:
        """
        Take up to ``limit`` ready runs of ``queues`` for ``worker``, in one statement, or behind marks in one a queue.

        The queues take turns, so that none starves another; within a queue it is priority, then
        deadline, then first come. With ``horizon``, only runs whose deadline is within so many
        seconds; with ``not_tasks``, none of these tasks. ``marks`` are the worker's, who begins behind them while
        there is a backlog. No more are taken once their arguments have ``budget`` bytes. A second statement fetches
        history only for runs that have any.
        """
        return claiming.claim(self, claiming.Wanted(worker, queues, limit, horizon, not_tasks, budget=budget), marks)

    def settle(
        self, settlements: Iterable[Settleable], worker: str | None = None, *, recovering: bool = False
    ) -> Settled:
        """
        Move the runs of ended executions and append their attempts.

        Fenced by id, token and, for a worker's settlement, ``worker``; an executor that settles
        itself gives None. A worker whose lease is lost can settle nothing; ``recovering`` is for whoever
        settles what it held. What the database refuses to store is found by halving the batch and
        settled as a failure, so that one bad outcome never takes its neighbours with it.
        """
        return settling.settle(self, settlements, worker, recovering)

    def get_ready(self) -> None:
        """Connect, and have a settlement planned, so that the first batch need not wait for that."""
        for name in ("settle", "settle_well") if self.dialect.name == "postgres" else ("settle",):
            self.session.rows(name, settling.request([], ""))

    def settle_and_claim(
        self, settlements: Sequence[Settleable], worker: str, along: claiming.Along, marks: Marks | None = None
    ) -> Settled | None:
        """
        Settle, tell who waited, and claim ``along`` with it what there is, also what became ready by it: in one
        transaction, so that a step of a chain waits for the disk once, and all of it sent at once. None if that is not
        possible: then nothing was done at all. ``claims`` are None if nobody knows what was claimed.
        """
        return settling.settle_and_claim(self, settlements, worker, along, marks)

    # -- keeping the house -----------------------------------------------------------------------

    def promote(self, limit: int = 1_000, *, ahead: timedelta = timedelta(0)) -> int:
        """Make ready what is due (or will be, within ``ahead``). How many."""
        params = {"limit": limit, "ahead": ahead.total_seconds()}
        return len(self._past_bad_rows("heads_due", State.READY, params, lambda: self.session.rows("promote", params)))

    def next_due(self) -> timedelta | None:
        """How long until the next scheduled run is due, or None if nothing is scheduled."""
        [[seconds]] = self.session.rows("next_due", {})
        return None if seconds is None else timedelta(seconds=seconds)

    def expire(self, limit: int = 1_000) -> list[UUID]:
        """End what did not start in time, and what can never start because of that."""
        params = {"limit": limit}
        moved = self._past_bad_rows("heads_late", State.EXPIRED, params, lambda: self._move("expire", params))
        return [run_id for run_id, state in moved.items() if state in ENDS]

    def _past_bad_rows[T](self, heads: str, state: State, params: dict[str, Any], act: Callable[[], T]) -> T:
        """What ``act`` does; once more without the rows that it cannot move."""
        try:
            return act()
        except AnyDatabaseError as error:
            if not conflicts.is_refusal(error) or self.session.in_transaction():
                raise
            if bad_rows.put_away_among(self, heads, params, state.value, error) is None:
                raise
        return act()

    def prune(
        self,
        state: State,
        age: timedelta,
        *,
        limit: int = 1_000,
        after: tuple[datetime, UUID] | None = None,
        backends: Sequence[str] | None = None,
    ) -> Pruned:
        """
        Look at up to ``limit`` runs that ended in ``state`` longer than ``age`` ago, and delete those that may go: of
        the aliases ``backends``, or of all.

        A row that cannot be deleted (a foreign key of yours protects it) is reported and passed
        over; ``after``, from the step before, keeps the next step from meeting it again.
        """
        if state not in ENDS:
            raise ValueError(f"Only finished runs can be pruned, not {state}.")
        found = self.prunable(state, age, limit, after, backends)
        ids = [run_id for run_id, _, goes in found if goes]
        refused: list[UUID] = []
        deleted = self._delete(ids, refused) if ids else 0
        last = (found[-1][1], found[-1][0]) if found else None
        return Pruned(deleted, tuple(refused), last if len(found) == limit else None, last)

    def prunable(
        self,
        state: State,
        age: timedelta,
        limit: int,
        after: tuple[datetime, UUID] | None = None,
        backends: Sequence[str] | None = None,
    ) -> list[tuple[UUID, datetime, bool]]:
        """Runs that ended so long ago, when they did, and whether they may go: see prune()."""
        after_time, after_id = after or (_LONG_AGO, UUID(int=0))
        params = {
            "state": state.value,
            "age": age.total_seconds(),
            "after_time": self.dialect.moment(after_time),
            "after_id": after_id.hex,
            "limit": limit,
            "backends": None if backends is None else self.dialect.listing(backends),
        }
        found = self.session.rows("prunable", params)
        return [(self.dialect.read_id(row[0]), self.dialect.read_moment(row[1]), bool(row[2])) for row in found]

    def _delete(self, ids: list[UUID], refused: list[UUID]) -> int:
        try:
            with self.session.transaction():
                gone = self.session.rows("delete", {"ids": self.listed(ids)})
                if self.dialect.name == "sqlite":
                    ids_gone = {"ids": self.dialect.listing([row[0] for row in gone])}
                    for name in ("delete_attempts", "delete_edges", "delete_gates", "delete_promises"):
                        self.session.run(name, ids_gone)
                else:
                    self.session.run("constraints", {})
                return len(gone)
        except IntegrityError:
            if len(ids) == 1:
                refused.extend(ids)
                return 0
            half = len(ids) // 2
            return self._delete(ids[:half], refused) + self._delete(ids[half:], refused)

    def forget_workflows(self, limit: int = 1_000) -> int:
        """Remove workflows none of whose runs is kept any more, so that their unique keys are free. How many."""
        return len(self.session.rows("forget_workflows", {"limit": limit}))

    # -- what a person decides -------------------------------------------------------------------

    def cancel(self, ids: Iterable[UUID], reason: str = "", *, cascade: bool = False) -> dict[UUID, State]:
        """
        Cancel runs: pending ones at once, running ones by way of CANCELLING. The states reached, also by
        others because of it. What has delegated ends when its delegates, which are cancelled, do. With ``cascade``
        also everything that waits for them, directly or not.

        CANCEL_BATCH runs are one transaction, unless the caller's is open. What stops this in the middle leaves some
        cancelled and others not; to cancel them once more does the rest.
        """
        words = text.storable(reason, text.MESSAGE_LIMIT) or "It was cancelled."
        reached: dict[UUID, State] = {}
        heralds: list[UUID] = []
        # In the caller's transaction each batch stays locked while the next one is cancelled, so all take runs in one
        # order. A cascade cannot: what the end of a run would let pass has to be cancelled before it.
        wanted = graph.with_downstream(self, ids) if cascade else sorted(set(ids))
        for batch in batched(wanted, CANCEL_BATCH):
            moved, told = self.cancel_only(set(batch), words)
            reached |= moved
            if cascade:
                heralds += told
            else:
                reached |= self._tell(told)
        # Those who wait for a run of a cascade are about to be cancelled themselves, and need not hear of it before.
        return reached | self._tell(heralds[:CANCEL_BATCH])

    def cancel_only(self, ids: set[UUID], reason: str) -> tuple[dict[UUID, State], list[UUID]]:
        """The same, without telling those who wait; they are for the caller to tell."""
        reached: dict[UUID, State] = {}
        heralds: list[UUID] = []
        asked: set[UUID] = set()
        while ids:
            asked |= ids
            for batch in batched(sorted(ids), CANCEL_BATCH):
                moved, told = self._move_only("cancel", {"ids": self.listed(batch), "reason": reason})
                reached |= moved
                heralds += told
            left = ids - reached.keys()
            delegates = self.session.rows("delegates", {"ids": self.listed(left)}) if left else []
            ids = {UUID(each) for _, delegate in delegates for each in delegates_of(delegate)} - asked
        return reached, heralds

    def hold(self, ids: Iterable[UUID], reason: str = "") -> dict[UUID, State]:
        """Keep pending runs back until they are released."""
        words = text.storable(reason, text.MESSAGE_LIMIT) or "It is held."
        ids = list(ids)

        def hold() -> dict[UUID, State]:
            with self.session.step():
                if self.dialect.name == "sqlite":
                    self.session.run("unready", {"ids": self.listed(ids)})
                return self._act("hold", ids, reason=words)

        return conflicts.patiently(self, hold)

    def release(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        """Let held runs go; those that wait for others to their gates."""
        ids = list(ids)
        reached = conflicts.patiently(self, lambda: self._release(ids))
        return reached | self._ask_gates(reached)

    def _release(self, ids: list[UUID]) -> dict[UUID, State]:
        with self.session.step():
            reached = self._act("release", ids)
            if self.dialect.name == "sqlite" and (waiting := _waiting(reached)):
                self.session.run("unarm", {"ids": self.listed(waiting)})
        return reached

    def retry(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        """
        Make runs that ended badly ready again, with a fresh budget. The states reached, also by those that
        had failed for their sake. What waits for others is ready only if they let it.
        """
        ids = list(ids)
        reached, heralds = conflicts.patiently(self, lambda: self._retry(ids))
        reached |= self._ask_gates(reached)
        return reached | self._tell(heralds)

    def _retry(self, ids: list[UUID]) -> tuple[dict[UUID, State], list[UUID]]:
        with self.session.transaction():
            reached, heralds = self._move_only("retry", {"ids": self.listed(ids)})
            waiting = _waiting(reached)
            if waiting:
                self.session.run("forget_delegates", {"ids": self.listed(waiting)})
                self.session.run("uncall", {"ids": self.listed(waiting)})
                self.session.run("reset_gates", {"ids": self.listed(waiting)})
                self._reopen_names(waiting)
        return reached, heralds

    def _ask_gates(self, reached: dict[UUID, State]) -> dict[UUID, State]:
        """
        Let those pass that wait for nothing any more. Their gates were unarmed with the move, so that the caretaker
        finds them if this process dies here, or if what they wait for is locked. In the caller's transaction it is left
        to the caretaker: arming locks what they wait for, and nobody could settle that until the caller commits.
        """
        waiting = _waiting(reached)
        if not waiting or self.session.in_transaction():
            return {}
        try:
            return graph.arm(self, waiting).states
        except DatabaseError:
            logger.warning("Could not count what runs wait for; the caretaker will.", exc_info=True)
            return {}

    def _move(self, verb: str, params: dict[str, Any]) -> dict[UUID, State]:
        """Runs that move to an end or from one, and whoever waits for them."""
        reached, heralds = self._move_only(verb, params)
        return reached | self._tell(heralds)

    def _tell(self, heralds: list[UUID]) -> dict[UUID, State]:
        """Who waited learns of it now, or, if the caller's transaction is open, from the caretaker."""
        if not heralds or self.session.in_transaction():
            return {}
        try:
            return graph.tell(self, heralds).states
        except DatabaseError:
            logger.warning("Could not tell who waits for runs that moved; the caretaker will.", exc_info=True)
            return {}

    def _move_only(self, verb: str, params: dict[str, Any]) -> tuple[dict[UUID, State], list[UUID]]:
        def move() -> tuple[dict[UUID, State], list[UUID]]:
            with self.session.step():
                found = self.session.rows(verb, params)
                reached = {self.dialect.read_id(run_id): State(state) for run_id, state, _ in found}
                heralds = [self.dialect.read_id(run_id) for run_id, _, is_herald in found if is_herald]
                if heralds and self.dialect.name == "sqlite":
                    self.session.run("add_heralds", {"ids": self.listed(heralds)})
            return reached, heralds

        return conflicts.patiently(self, move)

    def _act(self, verb: str, ids: Iterable[UUID], **params: str) -> dict[UUID, State]:
        reached = self.session.rows(verb, {"ids": self.listed(ids), **params})
        return {self.dialect.read_id(run_id): State(state) for run_id, state in reached}

    def name_promise(self, run_id: UUID, name: str) -> bool:
        """Whether the promise bears the name now; an open one may bear it already."""
        self.session.run("free_name", {"name": name})
        return bool(self.session.rows("name_promise", {"id": run_id.hex, "name": name}))

    def _reopen_names(self, ids: list[UUID]) -> None:
        """Promises that are open again bear their names again, unless others do by now."""
        with contextlib.suppress(IntegrityError), self.session.transaction():
            self.session.run("reopen_names", {"ids": self.listed(ids)})

    def settle_promise(
        self, run_id: UUID, task: str, state: State, result: str | None, signature: str, reason: str
    ) -> dict[UUID, State]:
        """End a run that nobody executes, unless it has ended. The states reached, also by those that waited for it."""
        params = {
            "id": run_id.hex,
            "task": task,
            "state": state.value,
            "result": result,
            "signature": signature,
            "reason": reason,
        }
        with self.session.step():
            reached, heralds = self._move_only("settle_promise", params)
            if reached and self.dialect.name == "sqlite":
                self.session.run("close_promises", {"ids": self.listed([run_id])})
        return reached | self._tell(heralds)

    def pause(self, queue: str) -> None:
        """No worker claims from ``queue`` until it is resumed."""
        self.session.run("pause", {"queue": queue})

    def resume(self, queue: str) -> bool:
        """Whether ``queue`` was paused; it no longer is."""
        return bool(self.session.rows("resume", {"queue": queue}))

    # -- workers and their leases ----------------------------------------------------------------

    def register(self, worker: WorkerRecord) -> datetime:
        params = plain(worker) | {"queues": dumps(list(worker.queues))}
        [[seen_at]] = self.session.rows("register", params)
        return self.dialect.read_moment(seen_at)

    def beat(self, worker: str, stopping: bool = False) -> datetime | None:
        """Renew a lease: when, or None if it was marked lost."""
        renewed = self.session.rows("beat", {"id": worker, "stopping": stopping})
        return self.dialect.read_moment(renewed[0][0]) if renewed else None

    def mark_lost(self, worker: str, seen_at: datetime | str) -> bool:
        """Declare a lease lost, provided it is still as it was seen. Whether it is lost now."""
        seen = seen_at if isinstance(seen_at, str) else self.dialect.moment(seen_at)
        params = {"id": worker, "seen_at": seen}
        return bool(self.session.rows("mark_lost", params))

    def leave(self, worker: str) -> bool:
        """Remove a worker that holds nothing. Whether it held nothing."""
        return bool(self.session.rows("leave", {"id": worker}))

    def hand_over(self, worker: str) -> bool:
        """A worker leaves while what it holds goes on: its lease is lost at once. Whether it was in force."""
        return bool(self.session.rows("hand_over", {"id": worker}))

    def know_foremen(self, worker: str, foremen: Sequence[tuple[str, str]], place: RayPlace) -> bool:
        """
        The Ray, and the foremen (name, incarnation) there, that ``worker`` gives runs to from now on. Whether its
        lease is in force.
        """
        params = {"worker": worker, "foremen": dumps(list(foremen)), "ray": place.ray, "ray_address": place.address}
        return bool(self.session.rows("know_foremen", params))

    def tell_troubles(self, worker: str, troubles: Mapping[str, str]) -> bool:
        """What keeps ``worker`` ("") or single runs (their ids) from going on. Whether its lease is in force."""
        return bool(self.session.rows("tell_troubles", {"worker": worker, "troubles": dumps(dict(troubles))}))

    def orphans(
        self,
        worker: str | None = None,
        limit: int = 1_000,
        *,
        runner: str | None = None,
        after: Orphan | None = None,
        place: RayPlace | None = None,
    ) -> list[Orphan]:
        """
        What lost or vanished workers (or ``worker``, if it is one of them) still hold; with ``runner``, only what
        workers with that one held; if it is empty, only what went with its worker; from ``after`` on. With ``place``,
        only what they held on that Ray, or on one that was there before and that no living worker speaks to.
        """
        ray, address = place or (None, None)
        asked = {
            "worker": worker,
            "limit": limit,
            "runner": runner,
            "after_worker": None if after is None else after.worker,
            "after_id": None if after is None else after.id.hex,
            "ray": ray,
            "ray_address": address,
        }
        bad: list[tuple[Row, Exception]] = []
        found = bad_rows.one_by_one(
            self,
            self.session.rows("orphans", asked),
            lambda some: [Orphan(self.dialect.read_id(row[0]), *row[1:]) for row in some],
            bad,
        )
        for row, error in bad:
            bad_rows.put_away(self, row[0], row[8], error, "read")
        return found

    def recover(self, max_losses: Callable[[Orphan], int], worker: str | None = None, limit: int = 1_000) -> Settled:
        """
        Settle as LOST what lost workers held: ready again, or LOST for good past ``max_losses``.

        Fenced like every settlement of a worker, by token and owner: an execution that settled
        itself meanwhile, or was adopted, is left alone.
        """
        return self.recover_these(self.orphans(worker, limit), max_losses)

    def recover_these(self, orphans: Iterable[Orphan], max_losses: Callable[[Orphan], int]) -> Settled:
        """See recover()."""
        held: dict[str, list[Orphan]] = {}
        for orphan in orphans:
            held.setdefault(orphan.worker, []).append(orphan)
        recovered = Settled()
        for former, of_one in held.items():
            # A worker that held more than it can have had under way was not stopped by a suspect, which
            # it would have taken on with nothing waiting behind it.
            losses = [
                rows.loss(orphan, max_losses(orphan), alone=len(of_one) <= max(orphan.slots, 1)) for orphan in of_one
            ]
            recovered |= self.settle(losses, former, recovering=True)
        return recovered

    def adopt(self, executions: Iterable[tuple[UUID, int]], former: str, worker: str) -> set[int]:
        """Executions change hands: the token survives, the owner changes. The tokens taken over."""
        wanted = dumps([{"run_id": run_id.hex, "token": token} for run_id, token in executions])
        taken = self.session.rows("adopt", {"executions": wanted, "former": former, "worker": worker})
        return {row[0] for row in taken}

    def check_key(self, seal: Seal) -> None:
        """
        Raise WrongCluster if the database belongs to another cluster, WrongKey if this process signs with a key that
        its cluster does not know.
        """
        stored = clusters.join(self, seal)
        if stored == seal.fingerprint:
            return
        if stored not in seal.accepted_fingerprints:
            raise WrongKey(
                f"Cluster {seal.cluster!r} signs with key {stored}, this process with {seal.fingerprint}: it "
                "could verify nothing. Give it the cluster's SECRET_KEY, or put the former key into "
                "SECRET_KEY_FALLBACKS to rotate it."
            )
        self.session.rows("rotate_key", {"cluster": seal.cluster, "fingerprint": seal.fingerprint, "former": stored})

    # -- what an execution tells while it runs ---------------------------------------------------

    def save_progress(self, run_id: UUID, token: int, progress: str) -> bool:
        """Whether the execution still holds its run."""
        params = {"id": run_id.hex, "token": token, "progress": progress}
        return bool(self.session.rows("save_progress", params))

    def save_metadata(self, run_id: UUID, token: int, metadata: str) -> bool:
        """Whether the execution still holds its run."""
        params = {"id": run_id.hex, "token": token, "metadata": metadata}
        return bool(self.session.rows("save_metadata", params))

    # -- reading ---------------------------------------------------------------------------------

    def fetch(self, ids: Iterable[UUID], *, history: bool = True) -> list[RunRecord]:
        """The runs that exist among ``ids``, in that order: one statement, and one for their history."""
        ids = list(ids)
        records = [rows.run_record(self.dialect, row) for row in self.session.rows("fetch", {"ids": self.listed(ids)})]
        histories = self.history([record.id for record in records], read_outcome) if history else {}
        found = {record.id: replace(record, history=histories.get(record.id, ())) for record in records}
        return [found[run_id] for run_id in ids if run_id in found]

    def states(self, ids: Iterable[UUID]) -> dict[UUID, State]:
        """Where runs stand, of those that exist among ``ids``."""
        found = self.session.rows("states", {"ids": self.listed(ids)})
        return {self.dialect.read_id(run_id): read_state(state) for run_id, state in found}

    def ended(self, run_id: UUID) -> RunRecord | None:
        """A run, if it has ended. LookupError, if there is none. One statement, and one for its history."""
        found = self.session.rows("ended", {"id": run_id.hex})
        if not found:
            raise LookupError(f"There is no run {run_id}.")
        if found[0][0] is None:
            return None
        return replace(
            rows.run_record(self.dialect, found[0]), history=self.history([run_id], read_outcome).get(run_id, ())
        )

    def ready_queues(self) -> list[str]:
        """The queues that have ready runs, at the cost of one index step each."""
        return [row[0] for row in self.session.rows("ready_queues", {})]

    def history(
        self, ids: Iterable[UUID], read: Callable[[str], Outcome] = Outcome
    ) -> dict[UUID, tuple[AttemptRecord, ...]]:
        """The ended attempts of runs, oldest first. ``read`` makes an outcome of a text."""
        ids = list(ids)
        if not ids:
            return {}
        grouped: dict[UUID, list[AttemptRecord]] = {}
        for row in self.session.rows("history", {"ids": self.listed(ids)}):
            grouped.setdefault(self.dialect.read_id(row[0]), []).append(rows.attempt_record(self.dialect, row, read))
        return {run_id: tuple(attempts) for run_id, attempts in grouped.items()}

    def listed(self, ids: Iterable[UUID]) -> Any:
        return self.dialect.listing([run_id.hex for run_id in ids])


def _batches(runs: Sequence[NewRun]) -> Iterator[Sequence[NewRun]]:
    """New runs, as many at a time as are inserted by one statement."""
    for batch in batched(runs, ENQUEUE_BATCH):
        sizes = [len(run.arguments) for run in batch]
        if sum(sizes) <= ENQUEUE_BYTES:
            yield batch
            continue
        begin, weight = 0, 0
        for place, size in enumerate(sizes):
            if weight and weight + size > ENQUEUE_BYTES:
                yield batch[begin:place]
                begin, weight = place, 0
            weight += size
        yield batch[begin:]


def _waiting(reached: Mapping[UUID, State]) -> list[UUID]:
    return [run_id for run_id, state in reached.items() if state is State.WAITING]
