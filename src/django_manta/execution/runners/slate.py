"""
What a child tells its worker, in memory that both hold.

    child ──writes──▶ │ frame │ frame │ …            ──reads──▶ worker
          ◀──────────────── how soon to be woken ──────────────

What is written here is there when the child is dead, like what it had sent, and costs it no call of the kernel and the
worker no waking up. The worker says how soon it wants to hear of something: a child that has nothing to do wakes a
worker that naps, and one that has more to do lets it; a worker that sleeps is woken at once.

One process writes and one reads. Each counts its own bytes from the beginning of time, in a place of its own that only
it writes to; the place in the slate is what is left of that number when it is divided by the size. A frame carries a
checksum: a processor may let others see what was written last first, and who finds a frame that is not all there
looks again later. Its place is part of the checksum, so that neither nothing nor a frame of the last round, which stood
in the same place, can be taken for it.
"""

import marshal
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from django_manta.execution.runners.wire import KINDS, Kind

#: How much fits, beside what the two count.
CAPACITY = 256 * 1024

#: More than this is written in pieces, so that the first can be read while the next is waiting for room.
PIECE_BYTES = CAPACITY // 4

#: A kind, a length and a checksum.
_HEADER = struct.Struct("=BII")
_HEADER_BYTES = _HEADER.size

#: The checksum of a frame begins with its place and its kind, turned round: never with what a slate is full of before
#: it is written to.
_SEED_BITS = 0xFFFF_FFFF

#: Each number has a line of the processor's cache to itself: two who write to the same one wait for each other.
_LINE = 64
_PLACES = 3 * _LINE
_WRITTEN, _READ, _LEVEL = 0, _LINE // 8, 2 * _LINE // 8
_RETURNED = 1

#: A frame that is still not all there when it was looked at so often never will be.
MOST_DOUBTS = 1_000

#: How soon the worker wants to be woken.
AWAKE, NAPPING, ASLEEP = 0, 1, 2

#: Not the kind of a message: more of it follows.
_MORE = 0


def new_slate() -> int:
    """The descriptor of one that nobody has written to."""
    descriptor = new_file("slate")
    os.ftruncate(descriptor, _PLACES + CAPACITY)
    return descriptor


def new_file(name: str) -> int:
    """The descriptor of a file without a place, in memory where that can be had."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"manta-{name}")
    descriptor, path = tempfile.mkstemp(prefix=f"manta-{name}-")
    Path(path).unlink()
    return descriptor


class Slate:
    """One end of a slate. Takes the descriptor over."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _PLACES + CAPACITY)
        os.close(descriptor)
        whole = memoryview(self._memory)
        # Eight bytes that are written in one piece.
        self._numbers = whole[:_PLACES].cast("Q")
        self._bytes = whole[_PLACES:]
        self._written = self._numbers[_WRITTEN]
        self._read = self._numbers[_READ]
        self._pieces: list[bytes] = []
        self._doubts = 0

    # -- the child -------------------------------------------------------------------------------

    def write(self, kind: Kind, body: Any, wait: Callable[[], None]) -> None:
        """Write a frame. As long as there is no room for it, ``wait`` is called, again and again."""
        packed = marshal.dumps(body)
        if len(packed) > PIECE_BYTES:
            whole = memoryview(packed)
            last = (len(packed) - 1) // PIECE_BYTES * PIECE_BYTES
            for start in range(0, last, PIECE_BYTES):
                self._write(_MORE, bytes(whole[start : start + PIECE_BYTES]), wait)
            packed = bytes(whole[last:])
        self._write(kind, packed, wait)

    def _write(self, kind: int, packed: bytes, wait: Callable[[], None]) -> None:
        checksum = crc32(packed, (~self._written ^ kind) & _SEED_BITS)
        framed = _HEADER.pack(kind, len(packed), checksum) + packed
        end = self._written + len(framed)
        while end - self._numbers[_READ] > CAPACITY:
            wait()
        place = self._written % CAPACITY
        to_the_edge = CAPACITY - place
        if len(framed) <= to_the_edge:
            self._bytes[place : place + len(framed)] = framed
        else:
            self._bytes[place:] = framed[:to_the_edge]
            self._bytes[: len(framed) - to_the_edge] = framed[to_the_edge:]
        # Not before all of it is there.
        self._numbers[_WRITTEN] = self._written = end

    def must_wake(self, level: int) -> bool:
        """Whether the worker wants to be woken, now that something of this ``level`` was written. Only once."""
        if self._numbers[_LEVEL] < level:
            return False
        self._numbers[_LEVEL] = AWAKE
        return True

    def tell_returned(self, token: int) -> None:
        """The task of this execution has returned. A number, because a large end that follows takes its time."""
        self._numbers[_RETURNED] = token

    # -- the worker ------------------------------------------------------------------------------

    @property
    def returned(self) -> int:
        """The last execution with a time limit whose task has returned."""
        return self._numbers[_RETURNED]

    @property
    def has_news(self) -> bool:
        return self._numbers[_WRITTEN] != self._read

    @property
    def level(self) -> int:
        return self._numbers[_LEVEL]

    @level.setter
    def level(self, level: int) -> None:
        self._numbers[_LEVEL] = level

    def read(self) -> Iterator[tuple[Kind, Any]]:
        """What was written since. KeyError, ValueError, EOFError or TypeError if it makes no sense."""
        # All at once, so that its room can be used again before what it says is done.
        pieces, load = self._pieces, marshal.loads
        for kind, packed in self._frames():
            if kind == _MORE:
                pieces.append(packed)
                continue
            if pieces:
                packed = b"".join((*pieces, packed))
                pieces.clear()
            yield KINDS[kind], load(packed)

    def _frames(self) -> list[tuple[int, bytes]]:
        data = self._news()
        found, start, size, unpack, read = [], 0, len(data), _HEADER.unpack_from, self._read
        while start < size:
            body = start + _HEADER_BYTES
            if size < body:
                self._doubt()
                break
            kind, length, checksum = unpack(data, start)
            end = body + length
            packed = data[body:end]
            if end > size or crc32(packed, (~(read + start) ^ kind) & _SEED_BITS) != checksum:
                self._doubt()
                break
            found.append((kind, packed))
            start = end
        if start:
            self._doubts = 0
            self._numbers[_READ] = self._read = self._read + start
        return found

    def _news(self) -> bytes:
        """A copy of all that was written since."""
        length = self._numbers[_WRITTEN] - self._read
        place = self._read % CAPACITY
        found = bytes(self._bytes[place : place + length])
        return found if len(found) == length else found + bytes(self._bytes[: length - len(found)])

    def _doubt(self) -> None:
        self._doubts += 1
        if self._doubts > MOST_DOUBTS:
            raise ValueError(f"What stands on the slate at {self._read} is not what was written there.")

    def disown(self) -> None:
        """In a process that was forked: what is written to it raises ValueError. Its descriptor may be another's."""
        self._numbers.release()
        self._bytes.release()

    def close(self) -> None:
        self.disown()
        self._memory.close()
