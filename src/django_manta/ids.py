"""
Identifiers of runs: UUIDv7 (RFC 9562).

Time-ordered, so that new rows go to one end of the primary key's index, and growing within a
process, so that runs enqueued together are claimed in the order they were enqueued.
"""

import os
import threading
import time
from uuid import UUID, SafeUUID

_lock = threading.Lock()
_last = 0


def new_run_id() -> UUID:
    """A UUIDv7 greater than every one this process has made before."""
    global _last
    # 48 bits of milliseconds and 12 bits of their fraction make one ever-growing number.
    ticks = time.time_ns() * 4096 // 1_000_000
    with _lock:
        _last = ticks = max(ticks, _last + 1)
    value = (ticks >> 12) << 80 | 0x7 << 76 | (ticks & 0xFFF) << 64
    value |= 0b10 << 62 | int.from_bytes(os.urandom(8)) >> 2
    return UUID(int=value)


def _forget_after_fork() -> None:
    # A lock held by another thread at the moment of a fork would never be released in the child.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


def parse_run_id(text: object) -> UUID | None:
    """The id that ``text`` spells, or None: a malformed id names no run."""
    if isinstance(text, UUID):
        return text
    if not isinstance(text, str):
        return None
    try:
        return UUID(text)
    except ValueError:
        return None


def read_id(packed: bytes) -> UUID:
    """``UUID(bytes=packed)`` of sixteen bytes that were a UUID's, without the checks: a third of the time."""
    made = UUID.__new__(UUID)
    object.__setattr__(made, "int", int.from_bytes(packed))
    object.__setattr__(made, "is_safe", SafeUUID.unknown)
    return made
