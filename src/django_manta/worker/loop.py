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
import socket
import time
from typing import Any

from django.db import Error as DatabaseError
from django.tasks import task_backends

import django_manta
from django_manta.ledger import (
    Claimed,
    Ledger,
    Settlement,
    WorkerRecord,
    conflicts,
    house,
    own_session,
    tokens,
)
from django_manta.ledger.marks import REST_TIMES
from django_manta.ringing import CANCEL, DEBOUNCE_SECONDS, TRIAL, UNKNOWN
from django_manta.states import Outcome, State
from django_manta.task import load_tasks
from django_manta.worker import doorbell
from django_manta.worker.caretaker import Caretaker
from django_manta.worker.claimer import Claimer
from django_manta.worker.contact import RETRY_SECONDS, Contact
from django_manta.worker.dispatch import CLAIM_LIMIT
from django_manta.worker.ear import Ear
from django_manta.worker.given import WorkerOptions
from django_manta.worker.hands import Hands
from django_manta.worker.heart import Heart
from django_manta.worker.hosting import Runner
from django_manta.worker.local import Processes
from django_manta.worker.lookout import Lookout, Pauses
from django_manta.worker.prospects import Prospects
from django_manta.worker.queues import Queues
from django_manta.worker.scribe import Scribe
from django_manta.worker.settling import LOCKED_SECONDS, Settler
from django_manta.worker.stopping import Stopping
from django_manta.worker.wakeups import Wakeups
from django_manta.worker.watch import Watch
from django_manta.worker.watchdog import Watchdog

logger = logging.getLogger("django_manta")


class Worker:
    """One worker, from its first claim to its last settlement."""

    def __init__(self, given: WorkerOptions) -> None:
        self.given = given
        backend: Any = task_backends[given.backend]
        self.backend = backend
        self.selector = selectors.DefaultSelector()
        self._lost = False
        #: A thread died that it cannot do without.
        self._is_crippled = False
        #: A step of the loop raised what nobody expected: the worker stops.
        self._failed = False
        self._session = own_session(self.backend.database)
        self._ledger = Ledger(self._session)
        self.queues = Queues(given, backend)
        self.prospects = Prospects()
        self.lookout = Lookout()
        #: Between looks for what is ready and locked, and for those who wait and could not be told because they are.
        self._until_free, self._until_told = Pauses(), Pauses()
        self.contact = Contact()
        self.stopping = Stopping(given.stop_timeout)
        self._watch = Watch()
        self.hands = Hands(backend, self._ledger, self.queues, self.prospects, self.stopping, given.max_runs)
        self.runner = self.hands.runner = self._make_runner()
        self.claimer = Claimer(
            self._ledger, self.hands, self.runner, self.queues, self.prospects, self.lookout, self.contact
        )

    # -- life ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Work until told to stop. The exit code."""
        self._ledger.check_key(self.backend.seal)
        self.wakeups = Wakeups(self.selector)
        self.wakeups.listen_to_signals(self._ask_to_stop)
        self.watchdog = Watchdog(self.stopping, self.wakeups, self.contact, self._hear_of_a_death)
        if self._ledger.dialect.name == "postgres":
            self.watchdog.start()
        self.ear = Ear(doorbell.install(self.backend.database, self.backend.config.cluster), self.selector)
        self._begin()
        self.runner.start()
        # Not when the first of their runs is claimed: that may take long, and nothing else would be done meanwhile.
        load_tasks()
        # What is here now stays until the end: it need not be looked through each time there is garbage to be found.
        gc.collect()
        gc.freeze()
        try:
            while not self._is_done():
                try:
                    self._step()
                except Exception:
                    if self._failed:
                        raise
                    logger.critical(
                        "The loop of worker %s failed: it stops. What has ended is settled, what has not started is "
                        "given back, what runs has its --stop-timeout.",
                        self.id,
                        exc_info=True,
                    )
                    self._failed = self.contact.must_reconcile = True
                    self.stopping.requests += 1
        except Exception:
            logger.critical("The loop of worker %s failed again: it ends now.", self.id, exc_info=True)
            self._failed = True
        finally:
            self._end()
        return int(self._failed or self._is_crippled)

    def _make_runner(self) -> Runner:
        given = self.given
        if given.runner == "ray":
            from django_manta.worker.afar import OnRay

            return OnRay(self.hands, self.selector, self.backend, os.environ["DJANGO_SETTINGS_MODULE"])
        if given.runner == "ray_job":
            from django_manta.worker.jobs import RayJobs

            return RayJobs(self.hands, self.selector, self.backend, os.environ["DJANGO_SETTINGS_MODULE"])
        return Processes(self.hands, self.selector, given.processes, given.async_slots, given.recycle, given.reserve)

    def _begin(self) -> None:
        """Take on an identity: a lease, a heart, a caretaker."""
        host, pid = socket.gethostname(), os.getpid()
        self.id = f"{self.given.name or host}-{pid}-{secrets.token_hex(4)}"
        # A file has but one writer: a second one would only wait for the first.
        is_shared = self._ledger.dialect.name == "postgres"
        self.settler = Settler(self.id, Scribe(self.backend.database, self.wakeups.wake) if is_shared else None)
        self.hands.begin(self.id, self.settler)
        self._lost = False
        self._ledger.register(
            WorkerRecord(
                id=self.id,
                name=self.given.name or host,
                host=host,
                pid=pid,
                version=django_manta.__version__,
                cluster=self.backend.config.cluster,
                queues=tuple(self.queues.names),
                runner=self.given.runner,
                lease_seconds=self.given.lease_seconds,
                slots=self.runner.slots,
            )
        )
        self._look_after_tokens()
        self.caretaker = Caretaker(self.backend, self.id, self.given.runner, self._hear_of_a_death)
        self.heart = Heart(
            self.backend.database,
            self.id,
            self.given.lease_seconds,
            on_lost=self._hear_that_we_are_lost,
            on_orphans=self.caretaker.recover_soon,
            on_death=self._hear_of_a_death,
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
            self.queues,
            self.ear.bell.name,
        )

    def _end(self) -> None:
        gc.unfreeze()
        try:
            if self._failed and not self._lost:
                self.hands.give_back(self.runner.stop())
            self._settle_the_rest()
        except Exception:
            logger.critical("Worker %s could not settle all that it has in hand.", self.id, exc_info=True)
        self.runner.close()
        self.heart.stop()
        self.caretaker.stop()
        self.heart.join(2)
        self.caretaker.join(2)
        try:
            if self.contact.must_reconcile and not self.contact.is_away and not self._lost:
                # Of a claim whose answer was lost nothing has started.
                self._reconcile()
                self.prospects.must_ring = True
            if self.prospects.must_ring:
                # What was given back at the end is for others.
                self.prospects.hungry = True
                self.claimer.ring(self.backend.config.cluster, time.monotonic())
            if not self._ledger.leave(self.id) and (self.runner.outlives_worker or self._failed):
                # What it had goes on, or has ended with it: whoever finds it need not wait for the lease.
                self._ledger.hand_over(self.id)
        except DatabaseError:
            logger.warning("Could not sign off; the lease of %s will be found lost.", self.id)
        self.ear.bell.close()
        self._session.close()
        self.watchdog.stop()
        logger.info("Worker %s stopped after %s runs.", self.id, self.hands.executed)

    def _settle_the_rest(self) -> None:
        """What is under way, and what came meanwhile: while the database is there, nobody has to find it later."""
        self.settler.close(2)
        with contextlib.suppress(DatabaseError):
            self.hands.conclude(self.settler.collect(time.monotonic()))
            while not self.contact.is_away and not self._lost:
                moved = self.settler.flush(self._ledger, time.monotonic())
                if not moved:
                    break
                self.hands.conclude(moved)

    # -- signals, and other threads --------------------------------------------------------------

    def _ask_to_stop(self, number: int, frame: Any) -> None:
        self.stopping.requests += 1

    def _hear_that_we_are_lost(self) -> None:
        self._lost = True
        self.wakeups.wake()

    def _hear_of_a_death(self) -> None:
        """Stop at once: our lease may run out, and what lost workers hold may wait for us."""
        self._is_crippled = True
        self.stopping.requests += 2
        self.wakeups.wake()

    # -- the loop --------------------------------------------------------------------------------

    def _step(self) -> None:
        for key, _ in self._arrived(self.runner.rest(self._patience())):
            key.data()
        if self._lost:
            self._begin_again()
        now = time.monotonic()
        if self.stopping.requests:
            self._stop(now)
        self._hear_the_bell(now)
        due_at = self.runner.tend(now)
        # What is here already does not wait for the database.
        self.runner.dispatch()
        if now >= self.contact.retry_at:
            try:
                self._talk_to_database(now)
            except DatabaseError as error:
                self._database_is_away(error)
            else:
                if self.contact.answered():
                    self.prospects.hungry = True
        self.hands.give_back(self.runner.overdue(now))
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
        if self.contact.reconciles(now):
            self.contact.reconciled(now, is_complete=self._reconcile())
        self._talk_at = self.runner.talk(self._ledger, now)
        self.hands.conclude(self.settler.collect(now))
        settle_at = self.settler.next_time()
        must_settle = settle_at is not None and (settle_at <= now or self._may_idle())
        if must_settle and (not self.prospects.more or self.settler.has_many):
            # Nothing is known to be ready before others hear of these, and perhaps what waited for them. Or they are
            # many, which are settled while we claim.
            self._settle(now, claiming=self._may_claim())
            must_settle = False
        if self._may_claim():
            try:
                self._claim(now)
            except DatabaseError as error:
                if must_settle and conflicts.is_answer(error):
                    # It is not away: what cannot be claimed keeps nothing from being settled.
                    self._settle(now)
                raise
        if self.prospects.must_ring:
            self.claimer.ring(self.backend.config.cluster, now)
        if must_settle:
            # After the claim: meanwhile the executors have something to do.
            self._settle(now)
        if self.settler.untold:
            self.settler.untold = False
            self.lookout.again_unless_planned(now + DEBOUNCE_SECONDS)
        self._look_if_due(now)

    def _may_claim(self) -> bool:
        is_full = self.settler.is_full or self.settler.is_full_of_refused or self.hands.room < 1
        return self.prospects.hungry and not self.stopping.requests and not is_full

    def _may_idle(self) -> bool:
        """Nothing runs that could give the waiting outcomes company."""
        return not self.runner.is_busy

    def _patience(self) -> float:
        """How long nothing will be due."""
        now = time.monotonic()
        times: list[float | None] = [self._runner_due_at, self.ear.ask_at]
        if self.stopping.requests:
            times.append(self.stopping.next_time(now))
        if now < self.contact.retry_at:
            times.append(self.contact.retry_at)
        elif self.prospects.must_ring:
            return 0.0
        else:
            times += [self.settler.next_time(), *self.lookout.times(), self._talk_at]
            if self._may_claim():
                if self.runner.appetite(self.queues.names, now):
                    return 0.0
                times.append(self.runner.next_appetite(now))
        if self.runner.waits:
            times.append(now + 0.05)
        return max(0.0, min(time for time in times if time is not None) - now)

    # -- the doorbell, and looking ---------------------------------------------------------------

    def _hear_the_bell(self, now: float) -> None:
        if self.lookout.goes_again(now):
            self.prospects.hungry = True
        rung = [word for word in self.ear.hear(now) if word != TRIAL]
        if not rung:
            return
        self.queues.hear(rung)
        self.prospects.better()
        # A queue's name may stand for a run that is due later, a cancel for one of ours, and no name for either: look.
        self.lookout.heard(now, at_once=CANCEL in rung or UNKNOWN in rung)

    _ask_names_at = 0.0

    def _look_if_due(self, now: float) -> None:
        if self.lookout.is_due(now, busy=self.prospects.more):
            self._look(now)

    def _look(self, now: float) -> None:
        """One statement tells all that may have changed: what is due, ready, to be cancelled, who is gone."""
        if self.queues.are_open and now >= self._ask_names_at:
            began = time.monotonic()
            self.queues.has_ready(self._ledger.ready_queues())
            # Behind much that was done while a transaction stayed open this takes long. The bell tells names as well.
            ended = time.monotonic()
            self._ask_names_at = ended + REST_TIMES * (ended - began)
        # Who is hungry anyway need not look for something that is ready, which may be behind much that was.
        is_found_anyway = self.prospects.hungry or self.claimer.looks_itself
        seen = house.look(self._ledger, self.id, [] if is_found_anyway else self.queues.names)
        self.lookout.looked(now)
        if seen.next_due is not None and not self.stopping.requests:
            if seen.next_due <= 0:
                # If somebody holds the row, it is looked at again soon, not at once.
                promoted = self._ledger.promote()
                self.prospects.better()
                self.lookout.no_later_than(now if promoted else now + LOCKED_SECONDS)
            else:
                self.lookout.falls_due(now + seen.next_due)
        self.prospects.seen = seen.ready
        if seen.ready:
            self.prospects.better()
        if seen.untold:
            # The caretaker tries to tell them, and they may be locked.
            self.lookout.again_unless_planned(now + self._until_told.next())
        else:
            self._until_told.over()
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
            self.lookout.no_later_than(max(watched_at, now + 0.02))

    def _cancel(self, token: int) -> None:
        flight = self.hands.get(token)
        if flight is not None:
            self.hands.give_back(self.runner.cancel(flight))

    # -- claiming --------------------------------------------------------------------------------

    def _claim(self, now: float) -> None:
        claims: list[Claimed] = []
        asked = False
        try:
            asked = self.claimer.fetch(claims, now)
        finally:
            # What one statement brought is ours, whatever became of the next.
            if asked or claims:
                self.hands.take_on(claims)
        if claims:
            self._until_free.over()
        elif asked and self.prospects.seen and not self.prospects.passed_over:
            # A run is ready, and its row was locked: by a process that counts what waits for it, or by anybody.
            self.lookout.again_unless_planned(now + self._until_free.next())
        if asked:
            self.prospects.seen = False

    def _reconcile(self) -> bool:
        """
        Give back what the ledger says is ours and we know nothing of. Whether all of it was.

        A claim whose answer never arrived may have been committed: its runs would wait for ever.
        """
        # What answers now may be another server, to which the sequence was not replicated.
        self._look_after_tokens()
        executions = [execution for execution in house.owned(self._ledger, self.id) if execution[1] not in self.hands]
        unknown = [
            Settlement(run_id=run_id, token=token, outcome=Outcome.RETURNED, next_state=State.READY)
            for run_id, token in self.runner.unknown(executions)
        ]
        if not unknown:
            return True
        logger.warning("Giving back %s runs of a claim whose answer was lost.", len(unknown))
        settled = self._ledger.settle(unknown, self.id)
        for run_id, token in executions:
            if words := settled.refused.get(token):
                logger.error("The database refuses to give back run %s: %s", run_id, words)
        return not settled.busy

    def _look_after_tokens(self) -> None:
        """Of a restored or promoted database the sequence may be behind its table: no claim could be settled."""
        try:
            if (missing := tokens.behind(self._ledger)) and tokens.advance(self._ledger):
                logger.warning("The sequence of tokens was %s behind those that were given: it goes on there.", missing)
        except DatabaseError as error:
            if not conflicts.is_answer(error):
                raise
            # Not allowed to, perhaps. What collides gets a token of its own when it is settled.
            logger.warning("Could not see to the sequence of tokens: %s", str(error).strip())

    # -- settling --------------------------------------------------------------------------------

    def _settle(self, now: float, *, claiming: bool = False) -> None:
        """Settle what is due; and if ``claiming``, perhaps claim what became ready by it."""
        if claiming:
            moved, claims = self.claimer.settle_and_claim(now)
            if claims is not None:
                # Before it is told who ended: the executors are waiting for this.
                self.hands.take_on(claims)
        else:
            moved = self.settler.flush(self._ledger, now)
        self.hands.conclude(moved)

    # -- the database ----------------------------------------------------------------------------

    def _database_is_away(self, error: DatabaseError) -> None:
        self._session.close()
        self._watch.forget()
        # Whatever could not be settled, and will perhaps not be the next time, keeps nobody from claiming.
        self.prospects.more = True
        self.contact.went_away(error)

    def _begin_again(self) -> None:
        """Our lease was marked lost: nothing we hold is ours. Stop it, settle nothing, start anew."""
        logger.error("Worker %s was declared lost; beginning again under a new identity.", self.id)
        self.heart.stop()
        self.caretaker.stop()
        with contextlib.suppress(Exception):
            # What was settled before is settled, and still to be told.
            self.hands.conclude(self.settler.collect(time.monotonic()))
        self.hands.drop()
        self._watch.forget()
        self.runner.drop()
        while True:
            try:
                # Meanwhile the database may have been given to another cluster, or key.
                self._ledger.check_key(self.backend.seal)
                self._begin()
                break
            except DatabaseError as error:
                self._database_is_away(error)
                if self.stopping.requests:
                    # There is nothing left that would have to be settled.
                    return
                time.sleep(RETRY_SECONDS)
        self.prospects.hungry = True
        self.contact.must_reconcile = False

    # -- stopping --------------------------------------------------------------------------------

    def _stop(self, now: float) -> None:
        if self.stopping.begins(now):
            logger.info("Stopping: no more claims; %s runs in hand.", len(self.hands))
            self.heart.stopping = True
            self.hands.give_back(self.runner.stop())
        self.stopping.go_on(now, self.runner)

    def _is_done(self) -> bool:
        left = self.stopping.requests and self.runner.outlives_worker
        # What the database refuses is not waited for: whoever recovers it has to see.
        aside = self.settler.put_aside
        idle = (left or len(self.hands) <= aside) and len(self.settler) <= aside
        if self.stopping.requests:
            if not idle and self.stopping.leaves(time.monotonic()):
                logger.warning("Leaving %s runs to whoever finds this lease lost.", len(self.hands))
                return True
            return idle
        if self.hands.are_done and idle:
            return True
        return (
            self.given.burst and idle and not self.prospects.hungry and self.runner.is_ready and self._nothing_ready()
        )

    def _nothing_ready(self) -> bool:
        try:
            seen = house.look(self._ledger, self.id, self.queues.names)
        except DatabaseError:
            return False
        if seen.ready or (seen.next_due is not None and seen.next_due <= 0):
            self.prospects.hungry = True
            self.lookout.must()
            return False
        return True
