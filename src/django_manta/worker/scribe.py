"""
Settles large batches in a thread of its own, with a connection of its own.

Under load a loop that settles what has ended waits for that most of the time, and whoever executes waits for the loop.
Here it goes on: it claims, hears its children and hands out. Batches are settled one after the other, so that who waits
for several runs of a worker is not told of them by two who are in each other's way; the next one may be here already
while one is under way, for the loop may be in the middle of a claim when that is done.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence

from django_manta.ledger import DjangoSession, Ledger, PostgresSession, Settleable, Settled, own_session

#: A connection that nobody has needed for so long is given back to the database.
IDLE_SECONDS = 300.0


class Scribe(threading.Thread):
    """See above. ``on_done`` is called in this thread, when there is something to collect."""

    def __init__(self, database: str, on_done: Callable[[], None]) -> None:
        super().__init__(name="manta-scribe", daemon=True)
        self._database = database
        self._on_done = on_done
        self._orders: queue.SimpleQueue[tuple[Sequence[Settleable], str] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Settled | BaseException] = queue.SimpleQueue()
        #: It has a connection, or will have one in a moment.
        self._is_ready = False

    # -- for the loop ----------------------------------------------------------------------------

    def expect(self) -> None:
        """Many have been claimed, and will end: have a connection by then."""
        if not self._is_ready:
            self._order((), "")

    def begin(self, settlements: Sequence[Settleable], worker: str) -> None:
        """Settle these, when what was begun before is done. They are collected in that order."""
        self._order(settlements, worker)

    def _order(self, settlements: Sequence[Settleable], worker: str) -> None:
        self._is_ready = True
        if self.ident is None:
            self.start()
        self._orders.put((settlements, worker))

    def collect(self) -> Settled | None:
        """What became of the oldest batch, or None as long as it is under way. Raises what went wrong."""
        is_alive = self.is_alive()
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            if not is_alive:
                raise RuntimeError("The thread that settles has ended without a word.") from None
            return None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stop(self) -> None:
        """When what was begun is done."""
        self._orders.put(None)

    # -- the thread ------------------------------------------------------------------------------

    def run(self) -> None:
        while True:
            try:
                order = self._orders.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                self._is_ready = False
                self._hang_up()
                continue
            if order is None:
                break
            settlements, worker = order
            if settlements:
                self._settle(settlements, worker)
            else:
                # Whatever is wrong is wrong then as well, and told.
                with contextlib.suppress(Exception):
                    self._ledger().get_ready()
        self._hang_up()

    def _settle(self, settlements: Sequence[Settleable], worker: str) -> None:
        try:
            answer: Settled | BaseException = self._ledger().settle(settlements, worker)
        except BaseException as error:
            # The loop has to hear of it, whatever it is: it waits for an answer.
            self._hang_up()
            answer = error
        self._answers.put(answer)
        if isinstance(answer, BaseException):
            self._refuse_the_rest(answer)
        self._on_done()

    def _refuse_the_rest(self, error: BaseException) -> None:
        """What is here already goes back to the loop as well: it may find the database sooner than we do."""
        kept = []
        with contextlib.suppress(queue.Empty):
            while True:
                order = self._orders.get_nowait()
                if order is not None and order[0]:
                    self._answers.put(error)
                else:
                    kept.append(order)
        for order in kept:
            self._orders.put(order)

    _session: PostgresSession | DjangoSession | None = None

    def _ledger(self) -> Ledger:
        if self._session is None:
            self._session = own_session(self._database)
        return Ledger(self._session)

    def _hang_up(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.close()
            self._session = None
