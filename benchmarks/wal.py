"""What a run writes on its way: bytes of write-ahead log, and statements. For information."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.db import connection

from benchmarks import scratch
from benchmarks.enqueue import enqueue
from benchmarks.measure import Figure
from benchmarks.settle import BATCH, WORKER, success
from benchmarks.tasks import arguments, resize
from django_manta.ledger import Claimed, Ledger, PostgresSession
from django_manta.ledger.session import Row

TITLE = "What one run writes (no targets)"


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = 2_000 if quick else 10_000
    statements = Statements()
    # All pages written from here on are new since the checkpoint: the log holds no copies of whole pages.
    scratch.empty()
    with connection.execute_wrapper(statements.through_django):
        yield written("enqueue(), one by one", count, statements, lambda: enqueue(count))
    scratch.empty()
    calls = [arguments(number) for number in range(count)]
    with connection.execute_wrapper(statements.through_django):
        yield written(f"enqueue_many({count:,})", count, statements, lambda: resize.enqueue_many(calls))
    with scratch.worker_session() as session:
        ledger = Ledger(Counted(session, statements))
        claims: list[list[Claimed]] = []
        yield written(f"claim by {BATCH}", count, statements, lambda: claims.extend(claimed(ledger)))
        yield written(f"settle by {BATCH}", count, statements, lambda: settle(ledger, claims))


class Statements:
    """How many statements were sent. BEGIN and COMMIT are not counted."""

    def __init__(self) -> None:
        self.count = 0

    def through_django(self, execute: Callable[..., Any], *args: Any) -> Any:
        self.count += 1
        return execute(*args)


class Counted(PostgresSession):
    """A session that tells how many statements went through another."""

    def __init__(self, session: PostgresSession, statements: Statements) -> None:
        super().__init__(session.alias)
        self._connection = session.connection
        self.statements = statements

    def rows(self, name: str, params: Mapping[str, Any]) -> list[Row]:
        self.statements.count += 1
        return super().rows(name, params)


def written(what: str, count: int, statements: Statements, work: Callable[[], Any]) -> Figure:
    wal, sent = wal_position(), statements.count
    work()
    sent = statements.count - sent
    return Figure(what=what, ours=f"{(wal_position() - wal) / count:,.0f} bytes", limit=f"{sent / count:g} st./run")


def wal_position() -> int:
    with scratch.worker_session() as session:  # not through the connection whose statements are counted
        [[position]] = session.connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchall()
    return int(position)


def claimed(ledger: Ledger) -> Iterator[list[Claimed]]:
    while batch := ledger.claim(WORKER, ["default"], BATCH):
        yield batch


def settle(ledger: Ledger, batches: list[list[Claimed]]) -> None:
    for batch in batches:
        ledger.settle([success(claim.id, claim.token) for claim in batch], WORKER)
