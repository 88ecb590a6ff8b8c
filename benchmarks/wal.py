"""
What a run writes on its way: bytes of write-ahead log, and statements.

A run that waits for nobody must not pay for those that do: what it writes is held against what it wrote before
there were workflows. Repeat that with ``git worktree add /tmp/before 5f61dc9`` and this measurement there.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection

from benchmarks import scratch
from benchmarks.enqueue import enqueue
from benchmarks.measure import Figure
from benchmarks.settle import BATCH, WORKER, success
from benchmarks.tasks import arguments, resize
from django_manta.ledger import Claimed, Ledger, PostgresSession
from django_manta.ledger.session import Row

TITLE = "What one run writes, and what it wrote before there were workflows"

#: Bytes and statements a run at 5f61dc9, with PostgreSQL 18.4.
BEFORE = {"enqueue_many": (482, 0.0006), "claim": (599, 0.0101), "settle": (943, 0.01)}


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = 2_000 if quick else 10_000
    statements = Statements()
    # All pages written from here on are new since the checkpoint: the log holds no copies of whole pages.
    scratch.empty()
    with connection.execute_wrapper(statements.through_django):
        yield written(count, statements, lambda: enqueue(count)).figure("enqueue(), one by one")
    scratch.empty()
    calls = [arguments(number) for number in range(count)]
    with connection.execute_wrapper(statements.through_django):
        enqueued = written(count, statements, lambda: resize.enqueue_many(calls))
    with scratch.worker_session() as session:
        ledger = Ledger(Counted(session, statements))
        claims: list[list[Claimed]] = []
        claimed = written(count, statements, lambda: claims.extend(claim_all(ledger)))
        settled = written(count, statements, lambda: settle(ledger, claims))
    yield enqueued.figure(f"enqueue_many({count:,})")
    yield claimed.figure(f"claim by {BATCH}")
    yield settled.figure(f"settle by {BATCH}")
    bytes_before = sum(bytes_ for bytes_, _ in BEFORE.values())
    statements_before = sum(sent for _, sent in BEFORE.values())
    whole = Written(
        enqueued.bytes + claimed.bytes + settled.bytes, enqueued.statements + claimed.statements + settled.statements
    )
    yield Figure(
        what="enqueue_many, claim and settle: bytes",
        ours=f"{whole.bytes:,.0f} bytes",
        limit=f"{bytes_before:,} bytes before",
        ratios=[whole.bytes / bytes_before],
        at_most=1.05,
    )
    if not quick:
        yield Figure(
            what="the same: statements",
            ours=f"{whole.statements:.4f} st./run",
            limit=f"{statements_before:.4f} st./run before",
            ratios=[whole.statements / statements_before],
            at_most=1,
        )


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

    def run(self, name: str, params: Mapping[str, Any]) -> None:
        self.statements.count += 1
        super().run(name, params)


@dataclass(frozen=True, slots=True)
class Written:
    """Of one run."""

    bytes: float
    statements: float

    def figure(self, what: str) -> Figure:
        return Figure(what=what, ours=f"{self.bytes:,.0f} bytes", limit=f"{self.statements:g} st./run")


def written(count: int, statements: Statements, work: Callable[[], Any]) -> Written:
    wal, sent = wal_position(), statements.count
    work()
    return Written((wal_position() - wal) / count, (statements.count - sent) / count)


def wal_position() -> int:
    with scratch.worker_session() as session:  # not through the connection whose statements are counted
        [[position]] = session.connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchall()
    return int(position)


def claim_all(ledger: Ledger) -> Iterator[list[Claimed]]:
    while batch := ledger.claim(WORKER, ["default"], BATCH):
        yield batch


def settle(ledger: Ledger, batches: list[list[Claimed]]) -> None:
    for batch in batches:
        ledger.settle([success(claim.id, claim.token) for claim in batch], WORKER)
