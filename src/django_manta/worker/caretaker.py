"""
The duties that keep the house: recover what lost workers held, expire, prune.

Promoting due runs is the loop's own business, since it must sleep until the next one. These duties
have a thread and a connection of their own, so that a long one delays no claim. Any worker recovers
and expires; pruning needs the leader, a term in the database that the others respect. An ex-leader
that wakes up late can do no harm: every duty is a bounded statement that looks before it acts.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from django.db import Error as DatabaseError

from django_manta.execution import announce
from django_manta.ledger import Ledger, Orphan, Settled, graph, house, own_session
from django_manta.states import ENDS, State
from django_manta.worker import losses, retention
from django_manta.worker.duty import Duty
from django_manta.worker.events import tell
from django_manta.worker.settling import ASIDE_SECONDS, LONGEST_ASIDE_SECONDS

logger = logging.getLogger("django_manta")

#: How often retention is looked after. The other duties are done when somebody sees that they are due.
PRUNE_SECONDS = 60.0

#: Who finds it overdue by more than this was stopped: everything is due at once then, and what has waited so long gives
#: way to claims and settlements for as long again.
LATE_SECONDS = 1.0

#: Rows per statement.
BATCH = 1_000


class Caretaker(Duty):
    """The duties of one worker."""

    def __init__(self, backend: Any, worker: str, runner: str, on_death: Callable[[], None]) -> None:
        super().__init__("manta-caretaker", on_death)
        self.backend = backend
        self.worker = worker
        self.runner = runner
        self._bell = threading.Condition()
        self._stop = threading.Event()
        self._recover = threading.Event()
        self._expire = threading.Event()
        self._tell = threading.Event()
        self._prune_at = time.monotonic() + 5.0
        self._was_late = False
        self._aside = PutAside()
        self._retention = retention.Retention(backend.database)

    def recover_soon(self) -> None:
        """Somebody was lost: see what they held."""
        self._recover.set()
        self._wake()

    def expire_soon(self) -> None:
        """Something did not start in time."""
        self._expire.set()
        self._wake()

    def tell_soon(self) -> None:
        """Somebody waits and was not told, or not counted: whoever should have done it could not."""
        self._tell.set()
        self._wake()

    def stop(self) -> None:
        self._stop.set()
        self._wake()

    def _wake(self) -> None:
        with self._bell:
            self._bell.notify()

    def work(self) -> None:
        # Here, not in __init__: on SQLite a connection belongs to the thread that made it.
        self._session = own_session(self.backend.database)
        while not self._stop.is_set():
            try:
                self._do_duties(Ledger(self._session))
            except DatabaseError as error:
                self._session.close()
                logger.warning("A duty of the caretaker failed, and is tried again: %s", str(error).strip())
            except Exception:
                # A duty that fails must not end the others.
                logger.exception("A duty of the caretaker failed.")
            with self._bell:
                if not any(each.is_set() for each in (self._stop, self._recover, self._expire, self._tell)):
                    self._bell.wait(max(0.0, self._prune_at - time.monotonic()))
        self._session.close()

    def _do_duties(self, ledger: Ledger) -> None:
        def urgent() -> None:
            self._do_what_is_urgent(ledger)

        def others() -> None:
            urgent()
            if self._tell.is_set():
                self._tell.clear()
                spread_the_word(self.backend, ledger, self._stop, between=urgent)

        others()
        now = time.monotonic()
        if now >= self._prune_at + LATE_SECONDS and not self._was_late:
            self._prune_at, self._was_late = now + LATE_SECONDS, True
        if now >= self._prune_at:
            self._was_late = False
            self._prune_at = now + PRUNE_SECONDS
            if house.lead(ledger, self.backend.config.cluster, self.worker) is not None:
                self._retention.go_on(ledger, {}, self._stop, between=others)
                house.forget_lost_workers(ledger)

    def _do_what_is_urgent(self, ledger: Ledger) -> None:
        """The duties that the others make way for, between two of their steps."""
        if self._recover.is_set():
            self._recover.clear()
            recover(self.backend, ledger, self._aside)
        if self._expire.is_set():
            self._expire.clear()
            expire(self.backend, ledger)


class PutAside:
    """Runs that the database refuses to recover: when each is tried again, later each time."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[float, float]] = {}

    def waits(self, token: int) -> bool:
        return token in self._due and time.monotonic() < self._due[token][0]

    def put(self, orphan: Orphan, words: str) -> None:
        _, before = self._due.get(orphan.token, (0.0, ASIDE_SECONDS / 2))
        delay = min(2 * before, LONGEST_ASIDE_SECONDS)
        self._due[orphan.token] = time.monotonic() + delay, delay
        logger.error(
            "The database refuses to recover run %s, which lost worker %s held: %s. It is tried again in %g s; the "
            "others go on.",
            orphan.id,
            orphan.worker,
            words,
            delay,
        )

    def keep(self, tokens: Collection[int]) -> None:
        """Forget all but these."""
        self._due = {token: due for token, due in self._due.items() if token in tokens}


def recover(backend: Any, ledger: Ledger, aside: PutAside | None = None) -> int:
    """Settle what lost workers held, batch after batch. How many runs. What is on Ray is not lost with its worker."""
    aside = PutAside() if aside is None else aside
    count, last = 0, None
    seen: set[int] = set()
    while found := ledger.orphans(limit=BATCH, runner="", after=last):
        # What somebody holds, or is left to others, is looked at again later: it must not hide what is behind it.
        last = found[-1]
        seen.update(orphan.token for orphan in found)
        orphans = {orphan.token: orphan for orphan in found if not aside.waits(orphan.token)}
        settled = losses.recover(ledger, list(orphans.values()), patiently=True)
        count += len(settled.moved)
        for token, words in settled.refused.items():
            aside.put(orphans[token], words)
        recovered(backend, ledger, orphans, settled)
    aside.keep(seen)
    return count


def recover_worker(backend: Any, ledger: Ledger, worker: str) -> list[State]:
    """Settle some of what one lost worker held, wherever that was: nobody will ever know. Where that led."""
    orphans = {orphan.token: orphan for orphan in ledger.orphans(worker, BATCH)}
    settled = losses.recover(ledger, list(orphans.values()))
    recovered(backend, ledger, orphans, settled)
    return list(settled.moved.values())


def recovered(
    backend: Any, ledger: Ledger, orphans: Mapping[int, Orphan], settled: Settled, *, lost: bool = True
) -> None:
    """Tell what became of runs whose worker was lost."""
    ended = []
    for token, state in settled.moved.items():
        orphan = orphans[token]
        tell(
            "lost" if lost else "returned",
            level=logging.WARNING,
            run=orphan.id,
            task=orphan.task,
            queue=orphan.queue,
            attempt=orphan.attempts,
            worker=orphan.worker,
            state=state.value,
        )
        if state in ENDS:
            ended.append(orphan.id)
    announce.ended(backend, [*ended, *settled.ended], ledger)
    if settled.ready or State.READY in settled.moved.values():
        house.ring(ledger, house.channel_of(backend.config.cluster), "?")


def expire(backend: Any, ledger: Ledger) -> None:
    """End what did not start in time. Whoever waited just for its end may be ready now."""
    ended = ledger.expire(BATCH)
    if ended:
        announce.ended(backend, ended, ledger)
        house.ring(ledger, house.channel_of(backend.config.cluster), "?")


def _no_others() -> None:
    pass


def spread_the_word(
    backend: Any,
    ledger: Ledger,
    stop: threading.Event | None = None,
    *,
    between: Callable[[], None] = _no_others,
) -> int:
    """
    Arm what nobody armed, tell whom nobody told, transaction after transaction. How many runs moved. ``between`` two
    steps others have their turn.
    """
    moved, page, progress = 0, 0, False
    while stop is None or not stop.is_set():
        passed = graph.tell_leftovers(ledger, page=page)
        passed |= graph.arm_leftovers(ledger, older_than=1.0, page=page)
        moved += len(passed.states)
        if passed.queues:
            house.ring(ledger, house.channel_of(backend.config.cluster), "?")
        announce.ended(backend, passed.ended, ledger)
        progress = progress or passed.done > 0
        if passed.more:
            # Whatever somebody holds here, what is behind it may be free.
            page += 1
        elif progress:
            page, progress = 0, False
        else:
            # Nothing is left, or somebody holds it: then it is for the next look.
            break
        between()
    return moved
