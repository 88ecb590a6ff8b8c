"""
Statements with large values, sent in libpq's blocking mode.

psycopg puts its connections into non-blocking mode. There, whenever the socket takes only a part of what is to be sent,
libpq moves the rest to the front of its buffer. A socket takes some 200 KiB at a time, so the time for a large
statement grows with the square of its size. In blocking mode libpq moves nothing.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: Below this size the mode makes no difference.
LARGE_BYTES = 1024 * 1024


def are_large(values: Iterable[Any]) -> bool:
    """Whether one of these texts or byte strings is worth blocking mode."""
    for value in values:  # noqa: SIM110 (for each statement, and a generator takes twice as long)
        if (type(value) is str or type(value) is bytes) and len(value) >= LARGE_BYTES:
            return True
    return False


@contextmanager
def blocking(link: Any) -> Iterator[None]:
    """
    ``link`` is psycopg's PGconn. Sending blocks the calling thread, without the interpreter's lock.
    """
    import psycopg

    link.nonblocking = 0
    try:
        yield
    finally:
        # Refused where the connection was lost: then it is not used any more.
        with suppress(psycopg.Error):
            link.nonblocking = 1
