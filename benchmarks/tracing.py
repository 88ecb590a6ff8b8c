"""
How many statements a worker sends, counted where they leave it: by libpq's own trace of the protocol.

The server cannot tell: pg_stat_statements is not everywhere, and pg_stat_database counts transactions,
of which one may hold several statements, and those of everybody. A count in our own code would miss
what goes past it. The trace misses nothing, BEGIN and COMMIT included; it costs some microseconds a
row, so nothing is timed while it runs.
"""

import functools
import os
import re
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import Trace

#: A simple query, or one execution of a prepared one. The other messages only prepare, bind and describe.
_SENT = re.compile(rb"^F\t\d+\t(?:Query|Execute)\t", re.MULTILINE)

_numbers = count()


def install(directory: Path) -> None:
    """From now on every connection of this process, and of those forked from it, writes a trace there."""
    connect = psycopg.Connection.connect

    @functools.wraps(connect)
    def traced(*args: Any, **kwargs: Any) -> Any:
        connection = connect(*args, **kwargs)
        # The thread tells whose connection it is: the loop's, the heart's, the caretaker's.
        name = f"{os.getpid()}-{threading.current_thread().name}-{next(_numbers)}.trace"
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        # libpq writes line by line: what is in the file is all that was sent so far.
        connection.pgconn.trace(descriptor)
        connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        return connection

    psycopg.Connection.connect = psycopg.connect = traced  # type: ignore[method-assign]


def sent(directory: Path) -> Counter[str]:
    """Statements so far, by the name of the thread that made the connection."""
    counted: Counter[str] = Counter()
    for file in directory.glob("*.trace"):
        thread = file.stem.partition("-")[2].rpartition("-")[0]
        counted[thread] += len(_SENT.findall(file.read_bytes()))
    return counted
