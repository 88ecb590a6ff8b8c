"""
How much a foreman reads of what its chunks have to say, so that its memory is bounded.

Outcomes wait at the foreman until the ledger has them. When they are more than ``KEPT_BYTES`` no connection is read any
more: an outcome then waits in the process that executed its run. Large outcomes are read one after the other, so that
one of them, and not one for each node, is in memory half read. Workers say what they have settled by another way
(``Foreman.speak``), so there is always room again.

Outcomes of workers that do not listen, most of which are dead, are counted separately, with a limit of the same size:
they may stay for long, and must not keep the foreman from reading the outcomes of living workers.
"""

import asyncio
import time
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_manta.execution.runners.ray.connection import Connection

#: With this many bytes of outcomes that are not settled yet nothing more is read.
KEPT_BYTES = 64 * 1024 * 1024

#: A line of more bytes is large.
LARGE_BYTES = 64 * 1024

#: A large line of which nothing came for this long lets the next one pass.
STALL_SECONDS = 10.0


class Intake:
    """Which of a foreman's connections may be read."""

    def __init__(self) -> None:
        #: The bytes of the outcomes that are kept until they are settled, of workers that listen.
        self.kept = 0
        #: The same for workers that do not listen.
        self.abandoned = 0
        #: The connection whose large line is being read, and when something of it came last.
        self._reading: Connection | None = None
        self._read_at = 0.0
        #: The connections that are not read for now, in the order in which they will be.
        self._waiting: dict[Connection, int] = {}
        #: Numbers each time that one of them has to wait.
        self._waits = count(1)
        #: Those of which nothing came when it was their turn.
        self._stalled: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        return self.kept >= KEPT_BYTES

    def _may_read(self, connection: "Connection") -> bool:
        if self.kept < KEPT_BYTES and self.abandoned < KEPT_BYTES:
            return True
        return (self.abandoned if connection.is_abandoned else self.kept) < KEPT_BYTES

    @property
    def holds_back(self) -> bool:
        """Some connection has more to say, and is not read for now."""
        return bool(self._waiting)

    @property
    def waits(self) -> set[int]:
        """The numbers of the waits that are not over. A connection that has to wait again has another number."""
        return set(self._waiting.values())

    def is_waiting(self, connection: "Connection") -> bool:
        """Whether what a connection has said was not read yet for our sake, not for its own."""
        if connection in self._stalled:
            return False
        if connection is self._reading:
            return time.monotonic() - self._read_at < STALL_SECONDS
        return connection in self._waiting

    def keep(self, size: int, *, is_listened_for: bool) -> None:
        if is_listened_for:
            self.kept += size
        else:
            self.abandoned += size

    def release(self, size: int, *, is_listened_for: bool) -> None:
        self.keep(-size, is_listened_for=is_listened_for)
        self._go_on()

    def count(self, kept: int, abandoned: int) -> None:
        """Which workers listen has changed, or which worker a run belongs to."""
        self.kept, self.abandoned = kept, abandoned
        self._go_on()

    def has_read(self, connection: "Connection") -> None:
        """Something of a connection was read: may it go on?"""
        self._stalled.discard(connection)
        if connection is self._reading:
            self._read_at = time.monotonic()
            if connection.unread > LARGE_BYTES:
                return
            self._reading = None
        if connection.unread > LARGE_BYTES or not self._may_read(connection):
            self._wait(connection)
        self._go_on()

    def forget(self, connection: "Connection") -> None:
        """Nothing more will come of it."""
        self._waiting.pop(connection, None)
        self._stalled.discard(connection)
        if self._reading is connection:
            self._reading = None
        self._go_on()

    def _wait(self, connection: "Connection") -> None:
        self._waiting.setdefault(connection, next(self._waits))
        connection.hold(True)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STALL_SECONDS, self._pass_the_stalled)

    def _go_on(self) -> None:
        for connection in list(self._waiting):
            if not self._may_read(connection):
                continue
            if connection.unread > LARGE_BYTES:
                if self._reading is not None:
                    continue
                self._reading, self._read_at = connection, time.monotonic()
            del self._waiting[connection]
            connection.hold(False)

    def _pass_the_stalled(self) -> None:
        self._timer = None
        stalled = self._reading
        if stalled is not None and time.monotonic() - self._read_at >= STALL_SECONDS:
            self._stalled.add(stalled)
            if any(connection.unread > LARGE_BYTES for connection in self._waiting):
                self._reading = None
                self._wait(stalled)
                self._go_on()
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STALL_SECONDS, self._pass_the_stalled)
