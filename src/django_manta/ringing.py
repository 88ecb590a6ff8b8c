"""
Ringing the doorbell: after the commit, outside the caller's transaction, and not too often.

A ring within ``DEBOUNCE_SECONDS`` of the last one of this process is left out: a worker that heard
the last one looks once more when that time is over. A ring that fails never reaches the caller;
workers look by themselves once a second. Where autocommit is off nobody knows when it commits, and nothing is rung.
"""

import os
import threading
import time

from django.db import connections

from django_manta.ledger import DjangoSession, Ledger, house
from django_manta.workflow import own

#: Rings closer together than this are one.
DEBOUNCE_SECONDS = 0.02

#: What begins with this is a word of ours; others are names of queues.
OWN_WORDS = "manta:"

#: What is rung when executions are to be cancelled.
CANCEL = "manta:cancel"

#: What is rung by who wants to know whether it is heard.
TRIAL = "manta:trial"

#: Something may have become ready, and nobody can say in which queue.
UNKNOWN = "?"

#: When so many words were rung, those that are over are forgotten.
_REMEMBERED = 1_000

_last: dict[tuple[str, str, str], float] = {}
_lock = threading.Lock()


def _forget_after_fork() -> None:
    # A lock held by another thread at the moment of a fork would never be released in the child.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


def ring_after_commit(database: str, cluster: str, word: str) -> None:
    """Wake the workers of ``cluster`` when the present transaction, if any, has committed."""
    if connections[database].vendor == "postgresql":
        bell = database, cluster, word
        own.after_commit(database, bell, lambda bell: _ring(*bell), bell)


def _ring(database: str, cluster: str, word: str) -> None:
    key, now = (database, cluster, word), time.monotonic()
    with _lock:
        if now - _last.get(key, -1.0) < DEBOUNCE_SECONDS:
            return
        if len(_last) >= _REMEMBERED:
            for old in [each for each, rung in _last.items() if now - rung >= DEBOUNCE_SECONDS]:
                del _last[old]
        _last[key] = now
    house.ring(Ledger(DjangoSession(database)), house.channel_of(cluster), word)
