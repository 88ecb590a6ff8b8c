"""Results of many megabytes are stored in a time that grows with their size, and no faster."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from django.db import connection

from django_manta.ledger import DjangoSession, Ledger, PostgresSession, Settlement, written
from django_manta.states import Outcome, State
from tests.ledger.given import enqueue, worker_record

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@contextmanager
def modes_of(link: Any) -> Iterator[set[bool]]:
    """Whether libpq's connection was seen in non-blocking mode, and in blocking mode, meanwhile."""
    seen: set[bool] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            seen.add(bool(link.nonblocking))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def test_a_large_result_is_sent_in_blocking_mode() -> None:
    with closing(PostgresSession()) as session:
        connection.ensure_connection()
        for ledger, link in (
            (Ledger(session), session.connection.pgconn),
            (Ledger(DjangoSession()), connection.connection.pgconn),
        ):
            worker = f"worker of {type(ledger.session).__name__}"
            ledger.register(worker_record(worker))
            [run_id] = enqueue(ledger)
            [claim] = ledger.claim(worker, ["default"], 1)
            ended = written(
                Settlement(
                    run_id=run_id,
                    token=claim.token,
                    outcome=Outcome.SUCCESSFUL,
                    next_state=State.SUCCESSFUL,
                    result='"' + "x" * 2**25 + '"',
                    result_signature="signed",
                    executor="it",
                )
            )
            with modes_of(link) as seen:
                assert ledger.settle([ended], worker).moved
            # libpq moves what a non-blocking socket has not taken, again and again.
            assert False in seen
            # psycopg waits itself in all else that it does.
            assert link.nonblocking
            [run] = ledger.fetch([run_id])
            assert len(run.result or "") == 2**25 + 2
