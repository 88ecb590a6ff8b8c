"""
The worker process: claim, dispatch, settle.

One thread runs the loop; it waits on its runner, the doorbell and signals, all at once, and
sleeps exactly until the next thing is due. The heart and the caretaker have threads of their own.
A database that is away costs time: executions go on, outcomes wait, and the loop tries again.
"""

import contextlib
import gc
import logging
import os
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import Error as DatabaseError
from django.db import close_old_connections
from django.tasks import DEFAULT_TASK_QUEUE_NAME, task_backends

import django_manta
from django_manta.conf import RUNNERS
from django_manta.execution import announce
from django_manta.execution.admission import backend_of, resolve
from django_manta.execution.runners.flights import Died, Flight
from django_manta.ledger import (
    Claimed,
    Ledger,
    Settleable,
    Settled,
    Settlement,
    WorkerRecord,
    Written,
    house,
    own_session,
)
from django_manta.ledger.claiming import Along, Wanted
from django_manta.ledger.marks import REST_TIMES, Marks
from django_manta.ledger.session import STATEMENT_TIMEOUT_SECONDS
from django_manta.ringing import CANCEL, DEBOUNCE_SECONDS, UNKNOWN
from django_manta.states import Outcome, State
from django_manta.worker import doorbell, events
from django_manta.worker.caretaker import Caretaker
from django_manta.worker.dispatch import CLAIM_LIMIT, Appetite
from django_manta.worker.events import facts_of, tell
from django_manta.worker.given import WorkerOptions
from django_manta.worker.heart import Heart
from django_manta.worker.hosting import Runner
from django_manta.worker.local import Processes
from django_manta.worker.obituaries import obituary
from django_manta.worker.scribe import Scribe
from django_manta.worker.settling import LOCKED_SECONDS, Settler
from django_manta.worker.watch import Watch

logger = logging.getLogger("django_manta")

#: An idle worker looks at the database this often, in one cheap statement.
LOOK_SECONDS = 1.0

#: While there is more to do than it can hold, a look that only the bell has asked for is put off no longer than this:
#: in the first moments of a backlog it would take longer than a claim.
PUT_OFF_SECONDS = 0.1

#: While the database is away it is tried this often.
RETRY_SECONDS = 0.25

#: So many statements, each with a time limit of its own, may leave at once: a settlement, what it tells, some claims.
STATEMENTS_AT_ONCE = 6

#: What is being stopped has so long after being told, before its process is killed; and the worker so
#: long after that to settle it, before it leaves the rest to whoever finds its lease lost.
KILL_SECONDS = 1.5
LEAVE_SECONDS = 0.3


class Worker:
    """One worker, from its first claim to its last settlement."""

    def __init__(self, given: WorkerOptions) -> None:
        self.given = given
        backend: Any = task_backends[given.backend]
        self.backend = backend
        self.selector = selectors.DefaultSelector()
        self.id = ""
        self.executed = 0
        self.stop_requested = 0
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._leave_at: float | None = None
        self._lost = False
        self._in_flight: dict[int, Flight] = {}
        self._session = own_session(self.backend.database)
        self._ledger = Ledger(self._session)
        self._away_since: float | None = None
        self._retry_at = 0.0
        self._must_reconcile = False
        self._reconcile_at = self._reconcile_until = float("inf")
        self._hungry = True
        self._marks = Marks()
        self._look_at = 0.0
        self._due_at: float | None = None
        self._look_again_at: float | None = None
        self._watch = Watch()
        #: Where the backend declares no queues, any name is one: those that were heard of.
        self._heard_of: set[str] = {DEFAULT_TASK_QUEUE_NAME}
        self._queues: list[str] = []
        self._choose_queues()
        self.runner = self._make_runner()

    # -- life ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop. The exit code."""
        self._ledger.check_key(self.backend.seal)
        self._listen_to_signals()
        self.bell = doorbell.install(self.backend.database, self.backend.config.cluster)
        self._watch_bell()
        self._begin()
        self.runner.start()
        # What is here now stays until the end: it need not be looked through each time there is garbage to be found.
        gc.collect()
        gc.freeze()
        try:
            while not self._is_done():
                self._step()
            return 0
        finally:
            self._end()

    def _make_runner(self) -> Runner:
        given = self.given
        if given.runner == "ray":
            from django_manta.worker.afar import OnRay

            return OnRay(self, self.selector, self.backend, os.environ["DJANGO_SETTINGS_MODULE"])
        if given.runner == "ray_job":
            from django_manta.worker.jobs import RayJobs

            return RayJobs(self, self.selector, self.backend, os.environ["DJANGO_SETTINGS_MODULE"])
        return Processes(self, self.selector, given.processes, given.async_slots, given.recycle, given.reserve)

    def _begin(self) -> None:
        """Take on an identity: a lease, a heart, a caretaker."""
        host, pid = socket.gethostname(), os.getpid()
        self.id = f"{self.given.name or host}-{pid}-{secrets.token_hex(4)}"
        # A file has but one writer: a second one would only wait for the first.
        is_shared = self._ledger.dialect.name == "postgres"
        self.settler = Settler(self.id, Scribe(self.backend.database, self.wake) if is_shared else None)
        self._lost = False
        self._ledger.register(
            WorkerRecord(
                id=self.id,
                name=self.given.name or host,
                host=host,
                pid=pid,
                version=django_manta.__version__,
                cluster=self.backend.config.cluster,
                queues=tuple(self._queues),
                runner=self.given.runner,
                lease_seconds=self.given.lease_seconds,
                slots=self.runner.slots,
            )
        )
        self.caretaker = Caretaker(self.backend, self.id, self.given.runner)
        self.heart = Heart(
            self.backend.database,
            self.id,
            self.given.lease_seconds,
            on_lost=self._hear_that_we_are_lost,
            on_orphans=self.caretaker.recover_soon,
        )
        self.heart.start()
        self.caretaker.start()
        self.caretaker.recover_soon()
        # Who begins has often much to do at once.
        self.settler.expect(CLAIM_LIMIT)
        logger.info(
            "Worker %s: %s, queues %s, doorbell: %s.",
            self.id,
            self.runner.words,
            ", ".join(self._queues) if self.backend.queues or self.given.queues else "of any name",
            self.bell.name,
        )

    def _end(self) -> None:
        gc.unfreeze()
        self._settle_the_rest()
        self.runner.close()
        self.heart.stop()
        self.caretaker.stop()
        self.heart.join(2)
        self.caretaker.join(2)
        try:
            if self._must_reconcile and self._away_since is None and not self._lost:
                # Of a claim whose answer was lost nothing has started.
                self._reconcile()
                self._must_ring = True
            if self._must_ring:
                # What was given back at the end is for others.
                self._hungry = True
                self._ring(time.monotonic())
            if not self._ledger.leave(self.id) and self.runner.outlives_worker:
                # What it had goes on: whoever finds it need not wait for the lease.
                self._ledger.hand_over(self.id)
        except DatabaseError:
            logger.warning("Could not sign off; the lease of %s will be found lost.", self.id)
        self.bell.close()
        self._session.close()
        logger.info("Worker %s stopped after %s runs.", self.id, self.executed)

    def _settle_the_rest(self) -> None:
        """What is under way, and what came meanwhile: while the database is there, nobody has to find it later."""
        self.settler.close(2)
        with contextlib.suppress(DatabaseError):
            self._conclude(self.settler.collect(time.monotonic()))
            while self._away_since is None and not self._lost:
                moved = self.settler.flush(self._ledger, time.monotonic())
                if not moved:
                    break
                self._conclude(moved)

    def _choose_queues(self) -> None:
        """The queues to claim from: those asked for, or all, that chose our runner."""
        chosen = self.given.queues or sorted(self.backend.queues or self._heard_of)
        options = self.backend.config.queue_options
        self._queues = [
            queue
            for queue in chosen
            if queue not in self.given.exclude_queues
            and options.get(queue, {}).get("runner", RUNNERS[0]) == self.given.runner
        ]

    def _hear_of(self, names: Sequence[str]) -> None:
        if not self.given.queues and not self.backend.queues and not self._heard_of.issuperset(names):
            self._heard_of.update(names)
            self._choose_queues()

    # -- signals ---------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        self._woken, wake = socket.socketpair()
        self._wake = wake
        for end in (self._woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self.selector.register(self._woken, selectors.EVENT_READ, self._drain_wakeups)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask_to_stop)

    def _drain_wakeups(self) -> None:
        try:
            while self._woken.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _ask_to_stop(self, number: int, frame: Any) -> None:
        self.stop_requested += 1

    def wake(self) -> None:
        """From another thread: look now."""
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"\0")

    def _hear_that_we_are_lost(self) -> None:
        self._lost = True
        self.wake()

    # -- the loop --------------------------------------------------------------------------------

    def _step(self) -> None:
        for key, _ in self._arrived(self.runner.rest(self._patience())):
            key.data()
        if self._lost:
            self._begin_again()
        now = time.monotonic()
        if self.stop_requested:
            self._stop(now)
        self._hear_the_bell(now)
        due_at = self.runner.tend(now)
        # What is here already does not wait for the database.
        self.runner.dispatch()
        if now >= self._retry_at:
            try:
                self._talk_to_database(now)
            except DatabaseError as error:
                self._database_is_away(error)
            else:
                self._database_is_back()
        self._give_back(self.runner.overdue(now))
        self._runner_due_at = due_at

    def _arrived(self, patience: float) -> list[tuple[selectors.SelectorKey, int]]:
        arrived = self.selector.select(patience)
        if not arrived and patience:
            # Who was stopped, or had no processor, finds its time over although something came meanwhile: it hears
            # the bell before it asks the database whether it rang.
            arrived = self.selector.select(0)
        return arrived

    _runner_due_at: float | None = None
    #: When the runner next has something to say to the database.
    _talk_at: float | None = None

    def _talk_to_database(self, now: float) -> None:
        if self._must_reconcile or now >= self._reconcile_at:
            self._reconcile()
            if now >= self._reconcile_at:
                again = now < self._reconcile_until
                self._reconcile_at = now + STATEMENT_TIMEOUT_SECONDS if again else float("inf")
        self._talk_at = self.runner.talk(self._ledger, now)
        self._conclude(self.settler.collect(now))
        settle_at = self.settler.next_time()
        must_settle = settle_at is not None and (settle_at <= now or self._may_idle())
        if must_settle and (not self._more or self.settler.has_many):
            # Nothing is known to be ready before others hear of these, and perhaps what waited for them. Or they are
            # many, which are settled while we claim.
            self._settle(now, claiming=self._hungry and not self.stop_requested and not self.settler.is_full)
            must_settle = False
        if self._hungry and not self.stop_requested and not self.settler.is_full:
            self._claim(now)
        if self._must_ring:
            self._ring(now)
        if must_settle:
            # After the claim: meanwhile the executors have something to do.
            self._settle(now)
        self._look_if_due(now)

    def _may_idle(self) -> bool:
        """Nothing runs that could give the waiting outcomes company."""
        return not self.runner.is_busy

    def _patience(self) -> float:
        """How long nothing will be due."""
        now = time.monotonic()
        times: list[float | None] = [self._runner_due_at, self._ask_bell_at]
        if self.stop_requested:
            times.append(self._leave_at or self._kill_at or self._stop_at or now)
        if now < self._retry_at:
            times.append(self._retry_at)
        elif self._must_ring:
            return 0.0
        else:
            times += [self.settler.next_time(), self._look_at, self._due_at, self._look_again_at, self._talk_at]
            if self._hungry and not self.stop_requested and not self.settler.is_full:
                if self.runner.appetite(self._queues, now):
                    return 0.0
                times.append(self.runner.next_appetite(now))
        if self.runner.waits:
            times.append(now + 0.05)
        return max(0.0, min(time for time in times if time is not None) - now)

    # -- the doorbell ----------------------------------------------------------------------------

    _bell_fd: int | None = None
    #: When to ask the doorbell next: at once when its descriptor moves.
    _ask_bell_at = 0.0

    def _watch_bell(self) -> None:
        """Wait on the doorbell's descriptor, which changes when it reconnects."""
        descriptor = self.bell.fileno()
        if descriptor == self._bell_fd:
            return
        if self._bell_fd is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self.selector.unregister(self._bell_fd)
        self._bell_fd = descriptor
        if descriptor is not None:
            self.selector.register(descriptor, selectors.EVENT_READ, self._bell_moved)

    def _bell_moved(self) -> None:
        self._ask_bell_at = 0.0

    def _hear_the_bell(self, now: float) -> None:
        if self._look_again_at is not None and now >= self._look_again_at:
            self._look_again_at = None
            self._hungry = True
            self._look_soon(now, at_once=self._look_again_at_once)
            self._look_again_at_once = False
        if now < self._ask_bell_at:
            return
        try:
            rung = self.bell.rang()
        except DatabaseError:
            rung = []
        # After it was asked: a bell that just lost its connection wants to be asked again soon.
        patience = self.bell.patience()
        self._ask_bell_at = float("inf") if patience is None else now + patience
        self._watch_bell()
        if not rung:
            return
        self._hear_of([word for word in rung if word not in (CANCEL, UNKNOWN)])
        self._hungry = self._more = True
        self._look_again_at = now + DEBOUNCE_SECONDS
        # A queue's name may stand for a run that is due later, a cancel for one of ours, and no name for either: look.
        at_once = CANCEL in rung or UNKNOWN in rung
        self._look_again_at_once = self._look_again_at_once or at_once
        self._look_soon(now, at_once=at_once)

    # -- looking ---------------------------------------------------------------------------------

    #: Until then at the latest a look may be put off.
    _look_by = 0.0
    #: What was rung since the last ring, and left out for that, may be a cancel.
    _look_again_at_once = False
    _ask_names_at = 0.0
    _was_late = False

    def _look_soon(self, now: float, *, at_once: bool) -> None:
        self._look_at = min(self._look_at, now)
        self._look_by = min(self._look_by, now if at_once else now + PUT_OFF_SECONDS)

    def _look_if_due(self, now: float) -> None:
        is_due = self._due_at is not None and now >= self._due_at
        if self._look_at and now >= self._look_at + LOOK_SECONDS and not self._was_late:
            # Whoever has missed a look was stopped: it can wait a moment longer.
            self._look_by, self._was_late = now + PUT_OFF_SECONDS, True
        if now >= self._look_at and not is_due and self._more and now < self._look_by:
            # There is enough to do, and only the bell has asked for this look, or it is late anyway: a moment later is
            # soon enough.
            self._look_at = min(self._look_by, now + DEBOUNCE_SECONDS)
        elif now >= self._look_at or is_due:
            self._was_late = False
            self._look(now)

    def _look(self, now: float) -> None:
        """One statement tells all that may have changed: what is due, ready, to be cancelled, who is gone."""
        if not self.backend.queues and not self.given.queues and now >= self._ask_names_at:
            began = time.monotonic()
            self._hear_of(self._ledger.ready_queues())
            # Behind much that was done while a transaction stayed open this takes long. The bell tells names as well.
            ended = time.monotonic()
            self._ask_names_at = ended + REST_TIMES * (ended - began)
        # Who is hungry anyway need not look for something that is ready, which may be behind much that was.
        dear = self._marks.look_at is not None and self._marks.are_dear(self._queues)
        seen = house.look(self._ledger, self.id, [] if self._hungry or dear else self._queues)
        self._look_at = self._look_by = now + LOOK_SECONDS
        self._due_at = None
        if seen.next_due is not None and not self.stop_requested:
            if seen.next_due <= 0:
                # If somebody holds the row, it is looked at again soon, not at once.
                promoted = self._ledger.promote()
                self._hungry = self._more = True
                self._look_at = self._look_by = now if promoted else now + LOCKED_SECONDS
            else:
                self._due_at = now + seen.next_due
        if seen.ready:
            self._hungry = self._more = True
        if seen.expired:
            self.caretaker.expire_soon()
        if seen.untold:
            self.caretaker.tell_soon()
        for token in seen.cancelling:
            self._cancel(token)
        for lease in self._watch.look(seen.leases, time.monotonic()):
            if self._ledger.mark_lost(lease.worker, lease.seen_at):
                logger.warning("Worker %s is lost: its lease was not renewed for %g s.", lease.worker, lease.seconds)
                self.caretaker.recover_soon()
        watched_at = self._watch.next_time()
        if watched_at is not None:
            self._look_at = self._look_by = min(self._look_at, max(watched_at, now + 0.02))

    def _cancel(self, token: int) -> None:
        flight = self._in_flight.get(token)
        if flight is not None:
            self._give_back(self.runner.cancel(flight))

    # -- claiming --------------------------------------------------------------------------------

    def _claim(self, now: float) -> None:
        claims: list[Claimed] = []
        asked = False
        try:
            asked = self._fetch(now, claims)
        finally:
            # What one statement brought is ours, whatever became of the next.
            if asked or claims:
                self._take_on(claims)

    def _fetch(self, now: float, claims: list[Claimed]) -> bool:
        """
        Claim what there is room for. Whether the ledger was asked at all. Until ``claims`` are taken on, it may know of
        them and we do not.
        """
        wanted = self.runner.appetite(self._queues, now)
        if not wanted:
            return False
        asked = False
        self._hungry = False
        self._passed_over = not _is_all(wanted, self._queues)
        for want in wanted:
            ask = self._ask(want, len(claims))
            if ask is None:
                self._passed_over = True
                continue
            asked = True
            found = self._ledger.claim(*ask[:3], horizon=ask.horizon, not_tasks=ask.not_tasks, marks=self._marks)
            claims += found
            self._note(ask, found)
        self._plan()
        return asked

    def _ask(self, want: Appetite, claimed: int) -> Wanted | None:
        """What to ask the ledger for, after so many were claimed; None if nothing."""
        limit = min(want.limit, CLAIM_LIMIT)
        if self.given.max_runs is not None:
            limit = min(limit, self.given.max_runs - self.executed - len(self._in_flight) - claimed)
        if limit < 1 or not want.queues:
            return None
        # Each time another queue is the first to be served: where there is room for one run only, it is its turn.
        self._turn += 1
        first = self._turn % len(want.queues)
        return Wanted(self.id, [*want.queues[first:], *want.queues[:first]], limit, want.horizon, want.not_tasks)

    def _note(self, ask: Wanted, found: Sequence[Claimed]) -> None:
        if len(found) >= ask.limit:
            self._hungry = True
        elif self._marks.look_at is not None:
            # Something may be there all the same, where it takes long to look.
            due_at = self._marks.look_at
            self._look_again_at = due_at if self._look_again_at is None else min(self._look_again_at, due_at)

    def _plan(self) -> None:
        """After a claim: what may be left."""
        self.settler.busy = self._hungry
        self._more = self._hungry or self._passed_over

    #: How many claims there have been.
    _turn = 0
    #: As far as we know, something is ready: the last claim did not bring all there was, or the bell has rung since.
    _more = True

    #: Something became ready by our doing, and perhaps in queues that are not ours.
    _must_ring = False
    _others_concerned = False
    #: The last claim was not for all that is ready in our queues.
    _passed_over = False

    def _ring(self, now: float) -> None:
        """
        Wake who has room for what became ready; unless we have just claimed all of it, as each step of a chain: a ring
        costs as much as a claim, and wakes ourselves as well.
        """
        self._must_ring = False
        others, self._others_concerned = self._others_concerned, False
        if self._hungry or self._passed_over or others:
            # Whoever has room for it shall not wait for the next look.
            house.ring(self._ledger, house.channel_of(self.backend.config.cluster), UNKNOWN)
        elif self._look_again_at is None:
            # A row that somebody held was passed over.
            self._look_again_at = now + DEBOUNCE_SECONDS

    def _take_on(self, claims: list[Claimed]) -> None:
        now = time.monotonic()
        flights = [Flight(claim, *self._traits(claim), now) for claim in claims]
        for flight in flights:
            self._in_flight[flight.claim.token] = flight
        self.runner.take_on(flights)
        if events.are_told():
            for claim in claims:
                tell("claimed", **facts_of(claim, self.id))
        self.runner.dispatch()
        self.settler.expect(len(claims))

    def _traits(self, claim: Claimed) -> tuple[float | None, bool]:
        """The timeout of a run, and whether it is a coroutine. The executor finds what is wrong with it."""
        try:
            config = backend_of(claim.backend).config
            resolved = resolve(config, claim.task, claim.queue, claim.priority, claim.backend, claim.overrides)
        except Exception:
            # A row that was altered, before its signature was looked at: the executor refuses it.
            return None, False
        return resolved.options.timeout, resolved.is_coroutine

    def _reconcile(self) -> None:
        """
        Give back what the ledger says is ours and we know nothing of.

        A claim whose answer never arrived may have been committed: its runs would wait for ever.
        """
        executions = [
            execution
            for execution in house.owned(self._ledger, self.id)
            if execution[1] not in self._in_flight and execution[1] not in self.settler
        ]
        unknown = [
            Settlement(run_id=run_id, token=token, outcome=Outcome.RETURNED, next_state=State.READY)
            for run_id, token in self.runner.unknown(executions)
        ]
        busy = False
        if unknown:
            logger.warning("Giving back %s runs of a claim whose answer was lost.", len(unknown))
            busy = bool(self._ledger.settle(unknown, self.id).busy)
        self._must_reconcile = busy

    # -- what the runner tells (see hosting.Host) ------------------------------------------------

    @property
    def in_hand(self) -> int:
        return len(self._in_flight)

    def started(self, flight: Flight) -> None:
        if events.are_told():
            tell("started", **facts_of(flight.claim, self.id))

    def ended(self, flight: Flight, settlement: Written | None, settled: bool) -> None:
        claim = flight.claim
        self.executed += 1
        self._hungry = True
        if settlement is None:
            # It found that the run was no longer its own.
            self._forget(claim.token)
            return
        # As the executor measured it: here many ends may be read at once.
        self.runner.note(claim.task, settlement.duration)
        if settled:
            self._forget(claim.token)
            self._announce(claim, settlement, settlement.next_state)
        else:
            self.settler.add(claim, settlement, time.monotonic())

    def returned(self, flights: list[Flight]) -> None:
        """An executor gave back what it had not started."""
        unwanted = [flight for flight in flights if flight.unwanted or self.stop_requested]
        self._give_back(unwanted)
        if len(unwanted) < len(flights):
            wanted = [flight for flight in flights if flight not in unwanted]
            self.runner.take_back(wanted, time.monotonic())

    def _give_back(self, flights: Sequence[Flight]) -> None:
        now = time.monotonic()
        for flight in flights:
            self.settler.add(
                flight.claim,
                Settlement(
                    run_id=flight.claim.id,
                    token=flight.claim.token,
                    outcome=Outcome.RETURNED,
                    next_state=State.READY,
                ),
                now,
            )

    def died(self, died: Died) -> None:
        if died.started or (died.code not in (0, None) and not died.killed):
            logger.warning("Process %s died. %s", died.executor or died.pid, died.evidence)
        now = time.monotonic()
        for flight in died.started:
            self.executed += 1
            self.settler.add(flight.claim, obituary(flight, died), now)
        self._hungry = True
        self.returned(died.unstarted)

    def settle(self, flight: Flight, settlement: Settleable) -> None:
        """Nobody executes it any more, or ever did."""
        self._hungry = True
        self.settler.add(flight.claim, settlement, time.monotonic())

    def forgotten(self, flight: Flight) -> None:
        self._in_flight.pop(flight.claim.token, None)

    def adopted(self, flights: Iterable[Flight]) -> None:
        """Executions of a lost worker, which are ours from now on."""
        for flight in flights:
            self._in_flight[flight.claim.token] = flight
            tell("adopted", level=logging.WARNING, **facts_of(flight.claim, self.id))

    def _forget(self, token: int) -> None:
        self._in_flight.pop(token, None)
        self.runner.settled([token])

    # -- settling --------------------------------------------------------------------------------

    def _settle(self, now: float, *, claiming: bool = False) -> None:
        """Settle what is due; and if ``claiming``, perhaps claim what became ready by it: see settler.claims."""
        self._conclude(self._flush(now, claiming))

    def _conclude(self, moved: list[tuple[Claimed, Settleable, State | None]]) -> None:
        """The ledger has said what became of these: forget them, and tell who wants to know."""
        if not moved and not self.settler.ready and not self.settler.ended:
            return
        given_back = False
        settled, unmoved = [], []
        is_heard = events.are_told() or announce.is_heard()
        for claim, settlement, state in moved:
            self._in_flight.pop(claim.token, None)
            if state is State.SUCCESSFUL and settlement.told and not is_heard:
                # As most end: nobody wants to know more of it.
                settled.append(claim.token)
            elif state is None:
                unmoved.append(claim)
                tell("not ours any more", level=logging.WARNING, **facts_of(claim, self.id))
            else:
                settled.append(claim.token)
                if state is State.READY:
                    given_back = True
                    self._others_concerned = self._others_concerned or claim.queue not in self._queues
                self._announce(claim, settlement, state)
        self.runner.settled(settled)
        if unmoved and self.runner.outlives_worker:
            # If the run has moved on, nobody needs the outcome. If only our lease is lost, whoever adopts it does.
            standing = {(run.id, run.token) for run in self._ledger.fetch([each.id for each in unmoved], history=False)}
            unmoved = [claim for claim in unmoved if (claim.id, claim.token) not in standing]
        self.runner.settled([claim.token for claim in unmoved])
        if moved and self.given.max_runs is not None:
            # As long as they were not settled, they were counted as if they might have to be executed again.
            self._hungry = True
        if self.settler.ready:
            self._hear_of(list(self.settler.ready))
            self._others_concerned = self._others_concerned or not self.settler.ready <= set(self._queues)
            self.settler.ready.clear()
            given_back = True
        if given_back:
            self._hungry = self._must_ring = True
        if self.settler.ended:
            announce.ended(self.backend, self.settler.ended, self._ledger)
            self.settler.ended = []
        # Receivers may have used Django's connections here, which nobody else tends.
        close_old_connections()

    def _flush(self, now: float, claiming: bool) -> list[tuple[Claimed, Settleable, State | None]]:
        if not claiming or self.given.max_runs is not None or self._marks.are_dear(self._queues):
            # How many may be claimed at the end of --max-runs is known only when these are settled. And where it takes
            # long to find something, nobody should wait for that who waits for the end of a run.
            return self.settler.flush(self._ledger, now)
        along: Along | None = None
        passed_over = False

        def settle(settlements: list[Settleable]) -> Settled | None:
            nonlocal along, passed_over
            wanted = self.runner.appetite(self._queues, now)
            asks = [ask for want in wanted if (ask := self._ask(want, 0)) is not None]
            along = Along.of(asks, self._marks)
            passed_over = len(asks) < len(wanted) or not _is_all(wanted, self._queues)
            if along is None:
                return None
            return self._ledger.settle_and_claim(settlements, self.id, along, self._marks)

        try:
            moved = self.settler.flush(self._ledger, now, settle)
        finally:
            if along is not None and along.is_open:
                # What was claimed is not ours, as far as we know.
                self._hungry = self._more = self._must_reconcile = True
        if along is not None and along.claims is not None and self.settler.claims is not None:
            self._hungry, self._passed_over = False, passed_over
            for ask, found in zip(along.wanted, along.claims, strict=True):
                self._note(ask, found)
            self._plan()
            # Before it is told who ended: the executors are waiting for this.
            self._take_on(self.settler.claims)
        return moved

    def _announce(self, claim: Claimed, settlement: Settleable, state: State) -> None:
        level = events.level_of(settlement.outcome, state)
        if events.are_told(level):
            facts = facts_of(claim, self.id) | {
                "outcome": settlement.outcome.value,
                "state": state.value,
                "seconds": round(settlement.duration, 6),
            }
            tell(events.name_of(settlement.outcome, state), level=level, **facts)
        try:
            announce.settled(self.backend, claim, settlement, state, self._ledger)
        except DatabaseError as error:
            # It is settled all the same, and its neighbours are still to be announced.
            logger.warning("Could not tell that run %s ended: %s", claim.id, str(error).strip())

    # -- the database ----------------------------------------------------------------------------

    def _database_is_away(self, error: Exception) -> None:
        self._session.close()
        self._watch.forget()
        self._must_reconcile = True
        # Whatever could not be settled, and will perhaps not be the next time, keeps nobody from claiming.
        self._more = True
        self._retry_at = time.monotonic() + RETRY_SECONDS
        # Where only the connection broke, the server may go on with what it was sent, and commit a claim, until its
        # time limits: look once more when the first is over, and until all of them are.
        self._reconcile_at = time.monotonic() + STATEMENT_TIMEOUT_SECONDS + RETRY_SECONDS
        self._reconcile_until = time.monotonic() + STATEMENTS_AT_ONCE * STATEMENT_TIMEOUT_SECONDS
        if self._away_since is None:
            self._away_since = time.monotonic()
            logger.warning("The database is away: %s", str(error).strip())

    def _database_is_back(self) -> None:
        if self._away_since is not None:
            logger.info("The database is back after %.1f s.", time.monotonic() - self._away_since)
            self._away_since = None
            self._hungry = True

    def _begin_again(self) -> None:
        """Our lease was marked lost: nothing we hold is ours. Stop it, settle nothing, start anew."""
        logger.error("Worker %s was declared lost; beginning again under a new identity.", self.id)
        self.heart.stop()
        self.caretaker.stop()
        with contextlib.suppress(Exception):
            # What was settled before is settled, and still to be told.
            self._conclude(self.settler.collect(time.monotonic()))
        self.settler.clear()
        self.settler.close(0)
        self._in_flight.clear()
        self._watch.forget()
        self.runner.drop()
        while True:
            try:
                self._begin()
                break
            except DatabaseError as error:
                self._database_is_away(error)
                if self.stop_requested:
                    # There is nothing left that would have to be settled.
                    return
                time.sleep(RETRY_SECONDS)
        self._hungry = True
        self._must_reconcile = False

    # -- stopping --------------------------------------------------------------------------------

    def _stop(self, now: float) -> None:
        if self._stop_at is None:
            logger.info("Stopping: no more claims; %s runs in hand.", len(self._in_flight))
            self._stop_at = now + self.given.stop_timeout
            self.heart.stopping = True
            self._give_back(self.runner.stop())
        if self._kill_at is None and (now >= self._stop_at or self.stop_requested > 1):
            self._kill_at = now if self.stop_requested > 1 else now + KILL_SECONDS
            self.runner.interrupt(self._kill_at)
        if self._kill_at is not None and self.stop_requested > 1:
            self._kill_at = min(self._kill_at, now)
        if self._kill_at is not None and now >= self._kill_at and self._leave_at is None:
            self._leave_at = now + LEAVE_SECONDS
            self.runner.kill()

    def _is_done(self) -> bool:
        left = self.stop_requested and self.runner.outlives_worker
        idle = (left or not self._in_flight) and not len(self.settler)
        if self.stop_requested:
            if not idle and self._leave_at is not None and time.monotonic() >= self._leave_at:
                logger.warning("Leaving %s runs to whoever finds this lease lost.", len(self._in_flight))
                return True
            return idle
        if self.given.max_runs is not None and self.executed >= self.given.max_runs and idle:
            return True
        return self.given.burst and idle and not self._hungry and self.runner.is_ready and self._nothing_ready()

    def _nothing_ready(self) -> bool:
        try:
            seen = house.look(self._ledger, self.id, self._queues)
        except DatabaseError:
            return False
        if seen.ready or (seen.next_due is not None and seen.next_due <= 0):
            self._hungry = True
            self._look_at = self._look_by = 0.0
            return False
        return True


def _is_all(wanted: Sequence[Appetite], queues: Sequence[str]) -> bool:
    """Whether a claim would leave nothing of these queues that is ready, if it is not filled."""
    plain = [want for want in wanted if want.horizon is None and not want.not_tasks]
    return set(queues) <= {queue for want in plain for queue in want.queues}
