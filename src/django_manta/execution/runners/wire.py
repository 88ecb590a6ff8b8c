"""
Frames between a worker and its children.

A frame is a kind, a length and a body. Bodies are pickled: both ends are this same code, started by
one another, over a socket that nobody else holds.
"""

import pickle
import struct
from collections.abc import Iterator
from dataclasses import fields
from enum import IntEnum
from operator import attrgetter
from typing import Any
from uuid import UUID

from django_manta.ledger import Claimed

_HEADER = struct.Struct("!BI")


class Kind(IntEnum):
    # To a child.
    RUN = 1  # orders, to be executed one after the other
    TAKE_BACK = 2  # give back what has not started
    INTERRUPT = 3  # raise inside the execution that a token names
    STOP = 4  # leave when nothing is left to do
    # From a child.
    HELLO = 10  # ready for orders
    STARTED = 11  # an execution begins, with its time limit
    ENDED = 12  # an execution ended, with its settlement
    GIVEN_BACK = 13  # tokens that will not be started here


#: A claim as a plain tuple: pickling a dataclass with a UUID in it costs more than all the rest of a frame.
_CLAIM_FIELDS = [each.name for each in fields(Claimed) if each.name != "id"]
_claim_values = attrgetter(*_CLAIM_FIELDS)


def pack_claim(claim: Claimed) -> tuple[bytes, tuple[Any, ...]]:
    return claim.id.bytes, _claim_values(claim)


def unpack_claim(packed: tuple[bytes, tuple[Any, ...]]) -> Claimed:
    run_id, values = packed
    return Claimed(id=UUID(bytes=run_id), **dict(zip(_CLAIM_FIELDS, values, strict=True)))


def frame(kind: Kind, body: Any = None) -> bytes:
    packed = pickle.dumps(body, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(kind, len(packed)) + packed


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
                kind, length = _HEADER.unpack_from(buffer, start)
                end = start + _HEADER.size + length
                if len(buffer) < end:
                    break
                body = pickle.loads(memoryview(buffer)[start + _HEADER.size : end])
                start = end
                yield Kind(kind), body
        finally:
            del buffer[:start]
