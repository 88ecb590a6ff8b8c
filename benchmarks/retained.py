"""
Finished runs and their attempts, as many as one likes, made by the server itself.

Each is a copy of one that a worker has executed and settled: as wide as a real one in every column. What differs is
what differs among real ones: the id (a UUIDv7 of its moment), the argument, the moments, the token.
"""

from dataclasses import dataclass

from django.db import connection

from benchmarks import scratch, working
from django_manta.models import Attempt, Run

#: Made by one statement.
PORTION = 250_000

#: What differs; every other column is copied.
_RUN = {
    "id": "made.id",
    "arguments": "replace(run.arguments, '00000000', lpad(made.number::text, 8, '0'))",
    "deadline": "made.moment + (run.deadline - run.finished_at)",
    "enqueued_at": "made.moment + (run.enqueued_at - run.finished_at)",
    "started_at": "made.moment + (run.started_at - run.finished_at)",
    "last_attempted_at": "made.moment + (run.last_attempted_at - run.finished_at)",
    "finished_at": "made.moment",
}
_ATTEMPT = {
    "token": "made.number",
    "run_id": "made.id",
    "started_at": "made.moment + (attempt.started_at - attempt.finished_at)",
    "finished_at": "made.moment",
}

_MADE = """
WITH moments AS (
    SELECT
        number,
        to_timestamp(%(newest)s) - (%(count)s - number) * make_interval(secs => %(apart)s) AS moment
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS number
),
made AS MATERIALIZED (
    SELECT
        number,
        moment,
        (lpad(to_hex((EXTRACT(EPOCH FROM moment) * 1000)::bigint), 12, '0')
            || '7' || lpad(to_hex(number %% 4096), 3, '0') || '8' || substr(md5(number::text), 1, 15))::uuid AS id
    FROM moments
),
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes."""

    runs: int
    run_indexes: int
    attempts: int
    attempt_indexes: int

    @property
    def total(self) -> int:
        return self.runs + self.run_indexes + self.attempts + self.attempt_indexes


def fill(count: int, *, newest: float, apart: float) -> None:
    """
    ``count`` copies of the one run that is there, and of its attempt; vacuumed and analysed.

    The newest ended at ``newest``, each other ``apart`` seconds before the next. Tokens go on behind theirs.
    """
    [[kept]] = working.ask(
        "SELECT count(*) FROM manta_attempt JOIN manta_run ON run_id = id WHERE state = 'SUCCESSFUL'"
    )
    assert kept == 1, f"One finished run is copied, not {kept}."
    # Out of the way of the copies, whose tokens begin at 1; and never removed by a retention.
    working.ask("UPDATE manta_attempt SET token = -1 RETURNING token")
    statement = _statement()
    with connection.cursor() as cursor:
        for first in range(1, count + 1, PORTION):
            last = min(first + PORTION - 1, count)
            cursor.execute(statement, {"count": count, "first": first, "last": last, "newest": newest, "apart": apart})
        cursor.execute("SELECT setval('manta_attempt_token_seq', %s)", [count + 1])
        cursor.execute("DELETE FROM manta_run WHERE id = (SELECT run_id FROM manta_attempt WHERE token = -1)")
        cursor.execute("DELETE FROM manta_attempt WHERE token = -1")
    scratch.execute("VACUUM (ANALYZE) manta_run, manta_attempt")
    scratch.execute("CHECKPOINT")


def _statement() -> str:
    runs = {field.column: _RUN.get(field.column, f"run.{field.column}") for field in Run._meta.concrete_fields}
    attempts = {
        field.column: _ATTEMPT.get(field.column, f"attempt.{field.column}") for field in Attempt._meta.concrete_fields
    }
    return (
        f"{_MADE} runs AS (INSERT INTO manta_run ({', '.join(runs)}) SELECT {', '.join(runs.values())}"
        " FROM made, (SELECT * FROM manta_run WHERE id = (SELECT run_id FROM manta_attempt WHERE token = -1)) AS run)"
        f" INSERT INTO manta_attempt ({', '.join(attempts)}) SELECT {', '.join(attempts.values())}"
        " FROM made, (SELECT * FROM manta_attempt WHERE token = -1) AS attempt"
    )


def sizes() -> Sizes:
    [found] = working.ask(
        "SELECT pg_table_size('manta_run'), pg_indexes_size('manta_run'),"
        " pg_table_size('manta_attempt'), pg_indexes_size('manta_attempt')"
    )
    return Sizes(*found)
