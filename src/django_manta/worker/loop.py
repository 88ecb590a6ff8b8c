"""
The worker process: claim, dispatch, settle.

One thread runs the loop; it waits on its children, the doorbell and signals, all at once, and
sleeps exactly until the next thing is due. The heart and the caretaker have threads of their own.
A database that is away costs time: children go on, outcomes wait, and the loop tries again.
"""

import contextlib
import logging
import os
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any

from django.db import Error as DatabaseError
from django.db import close_old_connections
from django.tasks import task_backends

import django_manta
from django_manta.exceptions import BadTaskSignature, TaskCrashed, TaskNotFound, TaskTimeout
from django_manta.execution import announce, policy
from django_manta.execution.admission import admit, resolve
from django_manta.execution.runners.processes import Died, Flight, Pool, Recycle
from django_manta.ledger import Claimed, Ledger, Settlement, WorkerRecord, house, own_session
from django_manta.ledger.session import STATEMENT_TIMEOUT_SECONDS
from django_manta.ringing import DEBOUNCE_SECONDS
from django_manta.states import CRASHES_TO_QUARANTINE, ENDS, Outcome, State
from django_manta.worker import doorbell
from django_manta.worker.caretaker import Caretaker
from django_manta.worker.dispatch import Dispatcher, Tier
from django_manta.worker.events import tell
from django_manta.worker.heart import Heart
from django_manta.worker.settling import Settler

logger = logging.getLogger("django_manta")

#: An idle worker looks at the database this often, in one cheap statement.
LOOK_SECONDS = 1.0

#: The most that is claimed at once.
CLAIM_LIMIT = 200

#: While the database is away it is tried this often.
RETRY_SECONDS = 0.25

#: What is being stopped has so long after being told, before its process is killed.
KILL_SECONDS = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a worker is started with."""

    backend: str = "default"
    queues: tuple[str, ...] = ()
    exclude_queues: tuple[str, ...] = ()
    runner: str = "processes"
    processes: int = 2
    reserve: tuple[Tier, ...] = ()
    burst: bool = False
    max_runs: int | None = None
    stop_timeout: float = 30.0
    lease_seconds: float = 30.0
    async_slots: int = 50
    recycle: Recycle = field(default_factory=Recycle)
    name: str = ""


class Worker:
    """One worker, from its first claim to its last settlement."""

    def __init__(self, given: WorkerOptions) -> None:
        self.given = given
        backend: Any = task_backends[given.backend]
        self.backend = backend
        self.selector = selectors.DefaultSelector()
        self.pool = Pool(
            self.selector,
            given.processes,
            given.async_slots,
            given.recycle,
            on_started=self._started,
            on_ended=self._ended,
            on_returned=self._returned,
            on_died=self._died,
        )
        self.dispatcher = Dispatcher(self.pool, list(given.reserve), given.async_slots)
        self.id = ""
        self.executed = 0
        self.stop_requested = 0
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._lost = False
        self._in_flight: dict[int, Flight] = {}
        self._session = own_session(self.backend.database)
        self._ledger = Ledger(self._session)
        self._away_since: float | None = None
        self._retry_at = 0.0
        self._must_reconcile = False
        self._reconcile_at = float("inf")
        self._hungry = True
        self._look_at = 0.0
        self._due_at: float | None = None
        self._look_again_at: float | None = None
        self._cancel_look = False

    # -- life ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop. The exit code."""
        self._ledger.check_key(self.backend.seal)
        self._listen_to_signals()
        self.bell = doorbell.install(self.backend.database, self.backend.config.cluster)
        self._watch_bell()
        self._begin()
        self.pool.start()
        try:
            while not self._is_done():
                self._step()
            return 0
        finally:
            self._end()

    def _begin(self) -> None:
        """Take on an identity: a lease, a heart, a caretaker."""
        host, pid = socket.gethostname(), os.getpid()
        self.id = f"{self.given.name or host}-{pid}-{secrets.token_hex(4)}"
        self.settler = Settler(self.id)
        self._lost = False
        self._ledger.register(
            WorkerRecord(
                id=self.id,
                name=self.given.name or host,
                host=host,
                pid=pid,
                version=django_manta.__version__,
                cluster=self.backend.config.cluster,
                queues=tuple(self.queues),
                runner=self.given.runner,
            )
        )
        self.caretaker = Caretaker(self.backend, self.id, self.given.runner)
        self.heart = Heart(
            self.backend.database,
            self.id,
            self.given.lease_seconds,
            on_lost=self._hear_that_we_are_lost,
            on_others_lost=lambda lost: self.caretaker.recover_soon(),
        )
        self.heart.start()
        self.caretaker.start()
        self.caretaker.recover_soon()
        logger.info(
            "Worker %s: %s processes, queues %s, doorbell: %s.",
            self.id,
            self.given.processes,
            ", ".join(self.queues),
            self.bell.name,
        )

    def _end(self) -> None:
        self.pool.close()
        self.heart.stop()
        self.caretaker.stop()
        self.heart.join(2)
        self.caretaker.join(2)
        try:
            self._ledger.leave(self.id)
        except DatabaseError:
            logger.warning("Could not sign off; the lease of %s will be found lost.", self.id)
        self.bell.close()
        self._session.close()
        logger.info("Worker %s stopped after %s runs.", self.id, self.executed)

    @property
    def queues(self) -> list[str]:
        wanted = self.given.queues or sorted(self.backend.queues) or ["default"]
        return [queue for queue in wanted if queue not in self.given.exclude_queues]

    # -- signals ---------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        self._woken, wake = socket.socketpair()
        self._wake = wake
        for end in (self._woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self.selector.register(self._woken, selectors.EVENT_READ, self._drain_wakeups)
        for number in (signal.SIGTERM, signal.SIGINT):
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
        for key, _ in self.selector.select(self._patience()):
            key.data()
        if self._lost:
            self._begin_again()
        now = time.monotonic()
        if self.stop_requested:
            self._stop(now)
        self._hear_the_bell(now)
        pool_due = self.pool.tend(now)
        dispatch_due = self.dispatcher.tend(now)
        if now >= self._retry_at:
            try:
                self._talk_to_database(now)
            except DatabaseError as error:
                self._database_is_away(error)
            else:
                self._database_is_back()
        self.dispatcher.dispatch()
        self._next_timers = (pool_due, dispatch_due)

    _next_timers: tuple[float | None, ...] = ()

    def _talk_to_database(self, now: float) -> None:
        if self._must_reconcile or now >= self._reconcile_at:
            self._reconcile()
            if now >= self._reconcile_at:
                self._reconcile_at = float("inf")
        settle_at = self.settler.next_time()
        if settle_at is not None and (settle_at <= now or self._may_idle()):
            self._settle(now)
        if self.stop_requested:
            return
        if now >= self._look_at or (self._due_at is not None and now >= self._due_at):
            self._look(now)
        if self._hungry:
            self._claim()

    def _may_idle(self) -> bool:
        """Nothing runs that could give the waiting outcomes company."""
        return not any(child.held for child in self.pool.children.values())

    def _patience(self) -> float:
        """How long nothing will be due."""
        now = time.monotonic()
        times: list[float | None] = [*self._next_timers, self._stop_at, self._kill_at]
        if now < self._retry_at:
            times.append(self._retry_at)
        else:
            times += [self.settler.next_time(), self._look_at, self._due_at, self._look_again_at]
            if self._hungry and not self.stop_requested and self.dispatcher.room():
                return 0.0
        times.append(self._ask_bell_at)
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
            self._look_at = min(self._look_at, now)
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
        self._hungry = True
        self._look_again_at = now + DEBOUNCE_SECONDS
        # A queue's name may stand for a run that is due later, and a cancel for one of ours: look.
        self._look_at = now

    # -- looking ---------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """One statement tells all that may have changed: what is due, ready, to be cancelled."""
        seen = house.look(self._ledger, self.id, self.queues)
        self._look_at = now + LOOK_SECONDS
        self._due_at = None
        if seen.next_due is not None:
            if seen.next_due <= 0:
                self._ledger.promote()
                self._hungry = True
                self._look_at = now
            else:
                self._due_at = now + seen.next_due
        if seen.ready:
            self._hungry = True
        if seen.expired:
            self.caretaker.expire_soon()
        for token in seen.cancelling:
            self._cancel(token)

    def _cancel(self, token: int) -> None:
        flight = self._in_flight.get(token)
        if flight is None:
            return
        for child in self.pool.children.values():
            if token in child.held:
                if flight.started_at is not None:
                    self.pool.interrupt(child, flight, Outcome.CANCELLED, "It was cancelled.")
                else:
                    self.pool.take_back(child)
                return
        if flight in self.dispatcher.backlog:
            self.dispatcher.backlog.remove(flight)
            self._give_back([flight])

    # -- claiming --------------------------------------------------------------------------------

    def _claim(self) -> None:
        room = self.dispatcher.room()
        if not room:
            return
        self._hungry = False
        for horizon, wanted in room.items():
            limit = min(wanted, CLAIM_LIMIT)
            if self.given.max_runs is not None:
                limit = min(limit, self.given.max_runs - self.executed - len(self._in_flight))
            if limit < 1:
                continue
            self._must_reconcile = True
            claims = self._ledger.claim(self.id, self.queues, limit, horizon=horizon)
            self._must_reconcile = False
            for claim in claims:
                self._take_on(claim)
            if len(claims) >= limit:
                self._hungry = True
        self.dispatcher.dispatch()

    def _take_on(self, claim: Claimed) -> None:
        flight = Flight(claim, *self._traits(claim))
        self._in_flight[claim.token] = flight
        self.dispatcher.backlog.append(flight)
        tell("claimed", **_facts(claim, self.id))

    def _traits(self, claim: Claimed) -> tuple[float | None, bool]:
        """The timeout of a run, and whether it is a coroutine. The executor finds what is wrong with it."""
        try:
            task, effective = resolve(
                self.backend.config, claim.task, claim.queue, claim.priority, claim.backend, claim.overrides
            )
        except TaskNotFound:
            return None, False
        return effective.timeout, iscoroutinefunction(task.func)

    def _reconcile(self) -> None:
        """
        Give back what the ledger says is ours and we know nothing of.

        A claim whose answer never arrived may have been committed: its runs would wait for ever.
        """
        unknown = [
            Settlement(run_id=run_id, token=token, outcome=Outcome.RETURNED, next_state=State.READY)
            for run_id, token in house.owned(self._ledger, self.id)
            if token not in self._in_flight and token not in self.settler
        ]
        busy = False
        if unknown:
            logger.warning("Giving back %s runs of a claim whose answer was lost.", len(unknown))
            busy = bool(self._ledger.settle(unknown, self.id).busy)
        self._must_reconcile = busy

    # -- what the children tell ------------------------------------------------------------------

    def _started(self, flight: Flight) -> None:
        tell("started", **_facts(flight.claim, self.id))

    def _ended(self, flight: Flight, settlement: Settlement | None, settled: bool) -> None:
        claim = flight.claim
        now = time.monotonic()
        self.executed += 1
        if flight.started_at is not None:
            self.dispatcher.durations.note(claim.task, now - flight.started_at)
        self._hungry = True
        if settlement is None:
            # It found that the run was no longer its own.
            del self._in_flight[claim.token]
        elif settled:
            del self._in_flight[claim.token]
            self._announce(claim, settlement, settlement.next_state)
        else:
            self.settler.add(claim, settlement, now)

    def _returned(self, flights: list[Flight]) -> None:
        """A child gave back what it had not started."""
        if self.stop_requested:
            self._give_back(flights)
        else:
            self.dispatcher.backlog.extendleft(reversed(flights))

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

    def _died(self, died: Died) -> None:
        if died.started or (died.code not in (0, None) and not died.killed):
            logger.warning("Child %s died. %s", died.pid, died.evidence)
        now = time.monotonic()
        for flight in died.started:
            self.executed += 1
            self.settler.add(flight.claim, self._obituary(flight, died, now), now)
        self._hungry = True
        self._returned(died.unstarted)

    def _obituary(self, flight: Flight, died: Died, now: float) -> Settlement:
        """How an execution is settled whose process died under it."""
        claim = flight.claim
        duration = now - (flight.started_at or now)
        facts: dict[str, Any] = {
            "run_id": claim.id,
            "token": claim.token,
            "duration": duration,
            "executor": f"{socket.gethostname()}:{died.pid}",
            "output": died.output,
            "peak_memory": died.peak_memory,
            "error_message": died.evidence,
        }
        if died.killed and flight.doomed is not None and flight.kill_at is not None and now >= flight.kill_at:
            return _condemned(flight, facts)
        if died.killed or died.code is None or len(died.started) > 1:
            # It died for another's sake, or nobody can say whose fault it was: uncharged, and alone next time.
            return Settlement(
                outcome=Outcome.INTERRUPTED,
                next_state=State.READY,
                reason="Its process died while it held other runs.",
                suspect=not died.killed,
                **facts,
            )
        crashes = claim.crashes + 1
        quarantined = crashes >= CRASHES_TO_QUARANTINE
        return Settlement(
            outcome=Outcome.CRASHED,
            next_state=State.QUARANTINED if quarantined else State.READY,
            reason=f"It killed {crashes} processes. {died.evidence}" if quarantined else died.evidence,
            error_class=f"{TaskCrashed.__module__}.{TaskCrashed.__qualname__}",
            suspect=False,
            **facts,
        )

    # -- settling --------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        for claim, settlement, state in self.settler.flush(self._ledger, now):
            self._in_flight.pop(claim.token, None)
            if state is None:
                tell("not ours any more", level=logging.WARNING, **_facts(claim, self.id))
            else:
                self._announce(claim, settlement, state)
        # Receivers may have used Django's connections here, which nobody else tends.
        close_old_connections()

    def _announce(self, claim: Claimed, settlement: Settlement, state: State) -> None:
        facts = _facts(claim, self.id) | {
            "outcome": settlement.outcome.value,
            "state": state.value,
            "seconds": round(settlement.duration, 6),
        }
        tell(_EVENTS.get(settlement.outcome, "settled"), level=_level(settlement.outcome, state), **facts)
        try:
            announce.settled(self.backend, claim, settlement, state, self._ledger)
        except DatabaseError as error:
            # It is settled all the same, and its neighbours are still to be announced.
            logger.warning("Could not tell that run %s ended: %s", claim.id, str(error).strip())

    # -- the database ----------------------------------------------------------------------------

    def _database_is_away(self, error: Exception) -> None:
        self._session.close()
        self._must_reconcile = True
        self._retry_at = time.monotonic() + RETRY_SECONDS
        # Where only the connection broke, the server may go on with a claim, and commit it, until its
        # time limit: look once more when that is over.
        self._reconcile_at = time.monotonic() + STATEMENT_TIMEOUT_SECONDS + RETRY_SECONDS
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
        self.settler.clear()
        self.dispatcher.backlog.clear()
        self._in_flight.clear()
        for child in list(self.pool.children.values()):
            child.held.clear()
            self.pool._kill(child)
        while True:
            try:
                self._begin()
                break
            except DatabaseError as error:
                self._database_is_away(error)
                time.sleep(RETRY_SECONDS)
        self._hungry = True
        self._must_reconcile = False

    # -- stopping --------------------------------------------------------------------------------

    def _stop(self, now: float) -> None:
        if self._stop_at is None:
            logger.info("Stopping: no more claims; %s runs in hand.", len(self._in_flight))
            self._stop_at = now + self.given.stop_timeout
            self.heart.stopping = True
            self.pool.stop()
            self._give_back(list(self.dispatcher.backlog))
            self.dispatcher.backlog.clear()
        if self.stop_requested > 1:
            self._stop_at = min(self._stop_at, now)
        if now >= self._stop_at and self._kill_at is None:
            self._kill_at = now + KILL_SECONDS
            self._interrupt_all()
        if self._kill_at is not None and now >= self._kill_at:
            self.pool.kill()
            self._kill_at = now + KILL_SECONDS
        if self._kill_at is not None and self.stop_requested > 1:
            self.pool.kill()

    def _interrupt_all(self) -> None:
        for child in self.pool.children.values():
            for flight in list(child.held.values()):
                if flight.started_at is not None:
                    flight.doomed = None
                    self.pool.interrupt(child, flight, Outcome.INTERRUPTED, "The worker was stopped.")

    def _is_done(self) -> bool:
        idle = not self._in_flight and not len(self.settler)
        if self.stop_requested:
            return idle or (self._kill_at is not None and self._away_since is not None)
        if self.given.max_runs is not None and self.executed >= self.given.max_runs and idle:
            return True
        return self.given.burst and idle and not self._hungry and self._pool_is_ready() and self._nothing_ready()

    def _pool_is_ready(self) -> bool:
        return bool(self.pool.sync_children())

    def _nothing_ready(self) -> bool:
        try:
            seen = house.look(self._ledger, self.id, self.queues)
        except DatabaseError:
            return False
        if seen.ready or (seen.next_due is not None and seen.next_due <= 0):
            self._hungry = True
            self._look_at = 0.0
            return False
        return True


_EVENTS = {
    Outcome.RETURNED: "returned",
    Outcome.CRASHED: "crashed",
    Outcome.INTERRUPTED: "interrupted",
}


def _level(outcome: Outcome, state: State) -> int:
    if state in ENDS and state is not State.SUCCESSFUL:
        return logging.WARNING
    return logging.WARNING if outcome is Outcome.CRASHED else logging.INFO


def _facts(claim: Claimed, worker: str) -> dict[str, Any]:
    return {
        "run": claim.id,
        "task": claim.task,
        "queue": claim.queue,
        "attempt": claim.attempts,
        "worker": worker,
    }


def _condemned(flight: Flight, facts: dict[str, Any]) -> Settlement:
    """It would not stop when it was told, and its process was killed for it."""
    assert flight.doomed is not None
    outcome, reason = flight.doomed
    claim = flight.claim
    if outcome is Outcome.CANCELLED:
        return Settlement(outcome=outcome, next_state=State.CANCELLED, reason=reason, **facts)
    if outcome is Outcome.INTERRUPTED:
        return Settlement(outcome=outcome, next_state=State.READY, reason=reason, **facts)
    return _timed_out(claim, reason, facts)


def _timed_out(claim: Claimed, reason: str, facts: dict[str, Any]) -> Settlement:
    error = TaskTimeout(reason)
    facts |= {
        "error_class": f"{TaskTimeout.__module__}.{TaskTimeout.__qualname__}",
        "error_message": f"{reason} It did not stop when it was told to, and its process was killed.",
    }
    try:
        admitted = admit(claim)
    except (TaskNotFound, BadTaskSignature):
        verdict = policy.Verdict(State.FAILED, reason=reason)
    else:
        verdict = policy.after_failure(error, claim.failures + 1, admitted.options, admitted.result)
    return Settlement(
        outcome=Outcome.TIMED_OUT,
        next_state=verdict.state,
        delay=verdict.delay,
        reason=verdict.reason,
        **facts,
    )
