"""
Frames between a worker and its children.

A frame is a kind, a length and a body. Both ends are this same code, started by one another, over a
socket that nobody else holds; so the bodies are in Python's own format for plain values, marshal, which is
quick; with a pickle inside for the few orders that have a history, or bring values along.
"""

import marshal
import pickle
import resource
import struct
import time
from collections.abc import Iterator, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django_manta.ids import read_id
from django_manta.ledger import Claimed, Settleable, Written, written
from django_manta.ledger.rows import make_claimed
from django_manta.states import WAITING_OUTCOMES, Outcome, State

_HEADER = struct.Struct("!BI")


class Kind(IntEnum):
    # To a child.
    RUN = 1  # orders, to be executed one after the other
    TAKE_BACK = 2  # give back what has not started
    INTERRUPT = 3  # raise inside the execution that a token names
    STOP = 4  # leave when nothing is left to do
    # From a child.
    HELLO = 10  # ready for orders
    STARTED = 11  # an execution begins
    ENDED = 12  # an execution ended, with its settlement
    GIVEN_BACK = 13  # tokens that will not be started here
    NEXT = 14  # an execution ended, and the next begins
    RETURNED = 15  # the task of an execution has returned; its end follows


KINDS = {int(kind): kind for kind in Kind}


def frame(kind: Kind, body: Any = None) -> bytes:
    packed = marshal.dumps(body)
    return _HEADER.pack(kind, len(packed)) + packed


def orders(claims: Sequence[Claimed]) -> bytes:
    """The frame that hands runs to a child. As bare tuples: a class costs more than all it holds."""
    more = {
        # Who was called again has a history.
        claim.token: (claim.history, dict(claim.values), claim.laters)
        for claim in claims
        if claim.history or claim.values
    }
    ids = [claim.id.int.to_bytes(16) for claim in claims]
    plain = [claim[1:_HISTORY] for claim in claims]
    # The second version is the last one that looks for nothing that occurs twice.
    packed = marshal.dumps((ids, plain, pickle.dumps(more) if more else b""), 2)
    return _HEADER.pack(Kind.RUN, len(packed)) + packed


def read_orders(packed: bytes) -> list[Claimed]:
    ids, plain, pickled = marshal.loads(packed)
    if not pickled:
        return [make_claimed((read_id(run_id), *values, *_NO_MORE)) for run_id, values in zip(ids, plain, strict=True)]
    more = pickle.loads(pickled)
    return [
        make_claimed((read_id(run_id), *values, *more.get(values[0], _NO_MORE)))
        for run_id, values in zip(ids, plain, strict=True)
    ]


#: The fields before this one are plain; there follow the history and the values, and how often it was called again.
_HISTORY = Claimed._fields.index("history")
assert Claimed._fields[_HISTORY:] == ("history", "values", "laters")
_NO_MORE: tuple[Any, ...] = ((), MappingProxyType({}), 0)


#: How an execution ended, on its way to the worker: its token, whether the run's row says so already, and the most
#: memory that the process has ever needed, in bytes. Unless it was no longer wanted there follow the fields of Written
#: from ``outcome`` to ``is_well``; and if it waits from now on, for what.
type End = tuple[Any, ...]


def read_end(run_id: UUID, end: End) -> Written | None:
    """What the worker settles; None if it was no longer wanted. ValueError or KeyError if it makes no sense."""
    if len(end) == _PLAIN:
        token, _, _, outcome, next_state, duration, told, text, is_well = end
        return Written(run_id, token, OUTCOMES[outcome], STATES[next_state], duration, told, text, is_well)
    if len(end) == _GONE:
        return None
    token, _, _, outcome, next_state, duration, told, text, is_well, delegate, after, at_once = end
    return Written(
        run_id,
        token,
        OUTCOMES[outcome],
        STATES[next_state],
        duration,
        told,
        text,
        is_well,
        delegate,
        tuple(map(UUID, after)),
        at_once,
    )


#: How much most Ends hold, and those of what was no longer wanted.
_PLAIN, _GONE = 9, 3


OUTCOMES = {outcome.value: outcome for outcome in Outcome}
STATES = {state.value: state for state in State}


#: To ask the kernel costs as much as a short execution: so often is enough to see a process grow.
_PEAK_SECONDS = 0.1
_peak, _peak_at = 0, 0.0


def _peak_memory(*, now: bool) -> int:
    global _peak, _peak_at
    moment = time.monotonic()
    if now or moment - _peak_at >= _PEAK_SECONDS:
        _peak, _peak_at = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, moment
    return _peak


def gone(token: int) -> End:
    """The End of an execution that found its run to be no longer its own."""
    return token, False, _peak_memory(now=True)


def write(settlement: Settleable) -> Written:
    """A settlement as its executor writes it down; with how much memory the process has needed, unless all is well."""
    if isinstance(settlement, Written):
        return settlement
    if settlement.outcome is not Outcome.SUCCESSFUL:
        settlement.peak_memory = _peak_memory(now=True)
    return written(settlement)


def ended(row: Written, *, settled: bool) -> End:
    """The End of an outcome, as it travels. What is settled already need not travel whole."""
    told = (
        row.token,
        settled,
        _peak_memory(now=False),
        # Not .value, which takes ten times as long.
        row.outcome._value_,
        row.next_state._value_,
        row.duration,
        row.told,
        "" if settled else row.text,
        row.is_well,
    )
    if row.outcome in WAITING_OUTCOMES:
        return (*told, row.delegate, tuple(on.hex for on in row.after), row.at_once)
    return told


class Inbox:
    """Puts frames together from whatever pieces the socket delivers."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, Any]]:
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _HEADER.size:
                number, length = _HEADER.unpack_from(buffer, start)
                end = start + _HEADER.size + length
                if len(buffer) < end:
                    break
                kind = KINDS[number]
                body = memoryview(buffer)[start + _HEADER.size : end]
                start = end
                # Orders are read by whoever executes them.
                yield kind, bytes(body) if kind is Kind.RUN else marshal.loads(body)
        finally:
            # The loop variable is a view of the buffer, which cannot shrink under it.
            body = None  # type: ignore[assignment]
            del buffer[:start]
