"""
The ledger: every SQL statement that moves a run.

Each statement is a file of its own, under ``postgres/``, ``sqlite/`` or, where both take the same
words, ``shared/``; ``session.py`` runs them, ``records.py`` is what they take and give, and
``book.py`` is the small typed interface over them. Nothing else in the project writes the state of
a run. The ledger knows payloads and states; it knows no task, no worker and no executor, and it
imports no model, so that it can be used before the apps are ready.
"""

from django_manta.ledger.book import Ledger, Pruned
from django_manta.ledger.records import (
    AttemptRecord,
    Claimed,
    Enqueued,
    Finding,
    NewRun,
    Orphan,
    RayPlace,
    RunRecord,
    Settleable,
    Settled,
    Settlement,
    Value,
    WorkerRecord,
    Written,
)
from django_manta.ledger.rows import written
from django_manta.ledger.session import DjangoSession, PostgresSession, Session, own_session

__all__ = [
    "AttemptRecord",
    "Claimed",
    "DjangoSession",
    "Enqueued",
    "Finding",
    "Ledger",
    "NewRun",
    "Orphan",
    "PostgresSession",
    "Pruned",
    "RayPlace",
    "RunRecord",
    "Session",
    "Settleable",
    "Settled",
    "Settlement",
    "Value",
    "WorkerRecord",
    "Written",
    "own_session",
    "written",
]
