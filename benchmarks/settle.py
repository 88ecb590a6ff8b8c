"""Claim and settle through the ledger, against the same two writes as plain SQL with no attempt rows."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg

from benchmarks import scratch
from benchmarks.measure import Figure, Stopwatch, compared, in_turns
from benchmarks.tasks import SIGNATURE
from django_manta.ledger import Ledger, Settlement, Written, written
from django_manta.states import Outcome, State

TITLE = "Claim and settle against the same two writes as plain SQL"

BATCH = 100
WORKER = "bench-worker-1"
RESULT = '{"width":640,"height":480}'

#: The claim that one writes first: one queue, no paused queues, no expiry, no turns.
CLAIM = """
UPDATE manta_run AS run
SET
    state = 'RUNNING',
    worker = %(worker)s,
    token = nextval('manta_attempt_token_seq'),
    attempts = run.attempts + 1,
    started_at = COALESCE(run.started_at, statement_timestamp()),
    last_attempted_at = statement_timestamp()
FROM (
    SELECT id
    FROM manta_run
    WHERE state = 'READY' AND queue = %(queue)s
    ORDER BY priority DESC, deadline, id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS picked
WHERE run.id = picked.id
RETURNING run.id, run.token, run.task, run.arguments, run.signature
"""

SETTLE = """
UPDATE manta_run AS run
SET
    state = 'SUCCESSFUL',
    worker = '',
    token = NULL,
    finished_at = statement_timestamp(),
    result = ended.result,
    result_signature = ended.signature
FROM unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(results)s::text[], %(signatures)s::text[])
    AS ended (id, token, result, signature)
WHERE run.id = ended.id AND run.token = ended.token
"""


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = rows or (5_000 if quick else 20_000)
    with scratch.worker_session() as session, scratch.plain_connection() as connection:
        ledger = Ledger(session)

        def ours(watch: Stopwatch) -> None:
            scratch.fill(count, ["default"])
            with watch.running():
                done = drain(ledger)
            assert done == count, f"{done} of {count} runs were settled."

        def limit(watch: Stopwatch) -> None:
            scratch.fill(count, ["default"])
            with watch.running():
                done = drain_plainly(connection)
            assert done == count, f"{done} of {count} rows were settled."

        taken = in_turns(rounds, ours=ours, limit=limit)
    yield compared(f"{count:,} runs in batches of {BATCH}", count, taken["ours"], taken["limit"], at_least=0.7)


def drain(ledger: Ledger) -> int:
    done = 0
    while claims := ledger.claim(WORKER, ["default"], BATCH):
        settled = ledger.settle([success(claim.id, claim.token) for claim in claims], WORKER)
        done += len(settled.moved)
    return done


def success(run_id: UUID, token: int) -> Written:
    """As its executor writes it down."""
    return written(
        Settlement(
            run_id=run_id,
            token=token,
            outcome=Outcome.SUCCESSFUL,
            next_state=State.SUCCESSFUL,
            duration=0.001,
            result=RESULT,
            result_signature=SIGNATURE,
            executor="bench:1",
        )
    )


def drain_plainly(connection: psycopg.Connection[Any]) -> int:
    """As a careful person writes it: bound by the server, prepared, one transaction a statement."""
    done = 0
    wanted = {"worker": WORKER, "queue": "default", "limit": BATCH}
    while claims := connection.execute(CLAIM, wanted, prepare=True).fetchall():
        settled = connection.execute(
            SETTLE,
            {
                "ids": [claim[0] for claim in claims],
                "tokens": [claim[1] for claim in claims],
                "results": [RESULT] * len(claims),
                "signatures": [SIGNATURE] * len(claims),
            },
            prepare=True,
        )
        done += settled.rowcount
    return done
