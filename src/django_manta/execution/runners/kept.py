"""
What ended in this process lately: the worker has settled it, is about to, or died before it could.

When the worker is gone, whoever executed it settles it in the worker's name, fenced by its lease like all it does:
otherwise it would be done once more. Most of it the worker had settled itself, and its token is no more.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from typing import Any

from django.db import Error as DatabaseError
from django.tasks import task_backends

from django_manta.execution.executor import Execution
from django_manta.execution.runners import wire
from django_manta.ledger import Claimed, Ledger, Written, own_session

logger = logging.getLogger("django_manta")

#: How many of the last outcomes are kept, how large they may be, and all of those together that are not small. As many
#: as a slate has room for, which the worker may not have heard of, and some that it has not settled.
OUTCOMES = 2_048
CHARACTERS = 64 * 1024
MOST_CHARACTERS = 16 * 1024 * 1024
SMALL_CHARACTERS = 2 * 1024

#: When the worker is gone, a row that somebody holds (perhaps the worker's last statement) is tried so often, and again
#: after so long.
BUSY_TRIES, BUSY_SECONDS = 50, 0.02

#: A row larger than this does not pass through the worker, which has others to see to meanwhile.
LARGE_CHARACTERS = 1024 * 1024


class Kept:
    """The last outcomes of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._characters = 0
        # Not the claims themselves: their arguments may be large.
        self._rows: deque[tuple[str, str, Written]] = deque()
        #: As most are: of these a deque can see to it by itself that there are not too many.
        self._small: deque[tuple[str, str, Written]] = deque(maxlen=OUTCOMES)

    def add(self, claim: Claimed, row: Written) -> None:
        size = len(row.text)
        if size <= SMALL_CHARACTERS:
            self._small.append((claim.backend, claim.worker, row))
        elif size <= CHARACTERS:
            with self._lock:
                self._rows.append((claim.backend, claim.worker, row))
                self._characters += size
                while len(self._rows) > OUTCOMES or self._characters > MOST_CHARACTERS:
                    self._characters -= len(self._rows.popleft()[2].text)

    def settle(self) -> None:
        """The worker is gone. What fails here is left to whoever finds its lease lost."""
        held: dict[tuple[str, str], list[Written]] = {}
        with self._lock:
            rows = [*self._small.copy(), *self._rows]
        for backend, worker, row in rows:
            held.setdefault((backend, worker), []).append(row)
        with contextlib.suppress(Exception):
            for (backend, worker), settlements in held.items():
                _settle(backend, settlements, worker, tries=BUSY_TRIES)


def ended(claim: Claimed, execution: Execution, kept: Kept) -> tuple[Any, ...]:
    """What a frame tells of how an execution ended. What is large is settled here, and does not travel."""
    if execution.settlement is None:
        return wire.gone(claim.token)
    row = wire.write(execution.settlement)
    settled = execution.settled or bool(settled_here(claim, row, claim.worker))
    if not settled:
        kept.add(claim, row)
    return wire.ended(row, settled=settled)


def is_large(row: Written) -> bool:
    """Whether it is settled by the process that executed it."""
    return len(row.text) > LARGE_CHARACTERS


def settled_here(
    claim: Claimed, row: Written, worker: str | None, most_characters: int = LARGE_CHARACTERS
) -> bool | None:
    """
    Settle a large outcome from here, in the worker's name or by its token alone. Whether the run has moved; None if
    the database could not be asked.
    """
    if len(row.text) <= most_characters:
        return False
    try:
        return _settle(claim.backend, [row], worker) > 0
    except DatabaseError:
        logger.warning("Could not settle run %s from its own process; the worker will.", claim.id, exc_info=True)
        return None


def _settle(backend: str, rows: list[Written], worker: str | None, *, tries: int = 1) -> int:
    database: str = task_backends[backend].database  # type: ignore[attr-defined]
    session = own_session(database)
    moved = 0
    try:
        for number in range(tries):
            if number:
                time.sleep(BUSY_SECONDS)
            settled = Ledger(session).settle(rows, worker)
            moved += len(settled.moved)
            rows = [row for row in rows if row.token in settled.busy]
            if not rows:
                break
        return moved
    finally:
        session.close()
