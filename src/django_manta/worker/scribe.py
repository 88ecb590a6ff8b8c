"""
Settles large batches in a thread of its own, with a connection of its own.

Under load a loop that settles what has ended waits for that most of the time, and whoever executes waits for the loop.
Here it goes on: it claims, hears its children and hands out. One batch is under way at a time, so that who waits for
several runs of a worker is not told of them by two who are in each other's way.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence

from django.db import Error as DatabaseError

from django_manta.ledger import Ledger, Settleable, Settled, own_session

#: A connection that nobody has needed for so long is given back to the database.
IDLE_SECONDS = 300.0


class Scribe(threading.Thread):
    """See above. ``on_done`` is called in this thread, when there is something to collect."""

    def __init__(self, database: str, on_done: Callable[[], None]) -> None:
        super().__init__(name="manta-scribe", daemon=True)
        self._database = database
        self._on_done = on_done
        self._orders: queue.SimpleQueue[tuple[Sequence[Settleable], str] | None] = queue.SimpleQueue()
        self._answer: Settled | BaseException | None = None
        #: It has a connection, or will have one in a moment.
        self._is_ready = False

    # -- for the loop ----------------------------------------------------------------------------

    def expect(self) -> None:
        """Many have been claimed, and will end: have a connection by then."""
        if not self._is_ready:
            self._order((), "")

    def begin(self, settlements: Sequence[Settleable], worker: str) -> None:
        """Settle these. Nothing else is begun before it is collected."""
        self._order(settlements, worker)

    def _order(self, settlements: Sequence[Settleable], worker: str) -> None:
        self._is_ready = True
        if self.ident is None:
            self.start()
        self._orders.put((settlements, worker))

    def collect(self) -> Settled | None:
        """What became of the batch, or None as long as it is under way. Raises what went wrong."""
        answer, self._answer = self._answer, None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stop(self) -> None:
        """When the batch that is under way is done."""
        self._orders.put(None)

    # -- the thread ------------------------------------------------------------------------------

    def run(self) -> None:
        session = own_session(self._database)
        ledger = Ledger(session)
        while True:
            try:
                order = self._orders.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                self._is_ready = False
                session.close()
                continue
            if order is None:
                break
            settlements, worker = order
            if not settlements:
                with contextlib.suppress(DatabaseError):
                    ledger.get_ready()
                continue
            try:
                self._answer = ledger.settle(settlements, worker)
            except DatabaseError as error:
                session.close()
                self._answer = error
            except BaseException as error:
                # The loop has to hear of it: it waits for an answer.
                self._answer = error
            self._on_done()
        session.close()
