"""What the databases read: a claim must not cost more because a million runs wait."""

import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from django.db import connection

from django_manta.ids import new_run_id
from django_manta.ledger import Ledger, PostgresSession, graph, rows
from django_manta.ledger.session import statement
from tests.ledger.given import WELL, settlement, sql

BACKLOG = 1_000_000
QUEUES = [f"queue-{number}" for number in range(8)]
BATCH = 100
WANTED: dict[str, Any] = {"worker": "worker", "limit": BATCH, "budget": 2**24}
CLAIM = {**WANTED, "queues": QUEUES, "horizon": None, "not_tasks": [], "not_ids": []}
#: The same of one queue, for which PostgreSQL has a statement of its own.
LINE = {**WANTED, "queue": QUEUES[0], "horizon": None, "not_tasks": [], "not_ids": []}

#: And from behind marks, of which there is one in the middle of the queue.
BEHIND = {
    **WANTED,
    "queue": QUEUES[0],
    "parts": json.dumps(
        [
            {"below": None, "above": 1},
            {"priority": 1, "deadline": "2000-01-01", "id": "0" * 32},
            {"below": 1, "above": None},
        ]
    ),
}

NOBODY = new_run_id()
IDS = [new_run_id().hex for _ in range(BATCH)]

#: Statements that meet the table of runs, and what they are asked. Left out: fsck, which reads everything.
ASKED: dict[str, dict[str, Any]] = {
    "claim": CLAIM,
    "claim_line": LINE,
    "claim_behind": BEHIND,
    "promote": {"limit": 1_000, "ahead": 0.0},
    "next_due": {},
    "expire": {"limit": 1_000},
    "prunable": {
        "state": "FAILED",
        "age": 60.0,
        "after_time": "2001-01-01 00:00:00.000000",
        "after_id": NOBODY.hex,
        "limit": 1_000,
        "backends": ["default"],
    },
    "delete": {"ids": IDS},
    "cancel": {"ids": IDS, "reason": ""},
    "hold": {"ids": IDS, "reason": ""},
    "release": {"ids": IDS},
    "retry": {"ids": IDS},
    "fetch": {"ids": IDS},
    "history": {"ids": IDS},
    "leave": {"id": "worker"},
    "orphans": {
        "worker": None,
        "runner": "ray",
        "limit": 1_000,
        "after_worker": None,
        "after_id": None,
        "ray": "a",
        "ray_address": "b",
    },
    "stranded": {"limit": 1_000},
    "adopt": {"executions": json.dumps([{"run_id": IDS[0], "token": 1}]), "former": "a", "worker": "b"},
    "save_progress": {"id": NOBODY.hex, "token": 1, "progress": "{}"},
    "save_metadata": {"id": NOBODY.hex, "token": 1, "metadata": "{}"},
    "ready_queues": {},
    "look": {"queues": ["elsewhere"], "worker": "worker"},
    "settle": {"settlements": "[]", "worker": "worker", "recovering": False, "quietly": False},
    "settle_well": {"settlements": "[]", "worker": "worker", "recovering": False, "quietly": False},
    "tell_own": {"ids": IDS, "limit": 200},
    "arm_free": {"ids": IDS},
}


# -- PostgreSQL ----------------------------------------------------------------------------------


def session_settings(ledger: Ledger) -> list[str]:
    """What this connection says to the planner that others do not."""
    asked = "SELECT name FROM pg_settings WHERE source = 'session' AND category LIKE 'Query Tuning%%'"
    return [name for (name,) in sql(ledger, asked)]


@pytest.fixture
def backlog(db: None) -> Iterator[Ledger]:
    """A million ready runs in eight queues, of which the planner has no statistics yet."""
    session = PostgresSession()
    ledger = Ledger(session)
    try:
        sql(ledger, "SET statement_timeout = 0")
        # As on Django's connection, where no plan is pinned and nothing is forbidden to the planner.
        for name in session_settings(ledger):
            sql(ledger, f"RESET {name}")
        sql(ledger, "TRUNCATE manta_run, manta_attempt")
        sql(ledger, "ALTER TABLE manta_run SET UNLOGGED")  # twice as fast to fill
        sql(ledger, "ALTER TABLE manta_run SET (autovacuum_enabled = off)")
        sql(ledger, "DELETE FROM pg_statistic WHERE starelid = 'manta_run'::regclass")
        fill(ledger, BACKLOG)
        yield ledger
    finally:
        sql(ledger, "TRUNCATE manta_run, manta_attempt")
        sql(ledger, "ALTER TABLE manta_run RESET (autovacuum_enabled)")
        sql(ledger, "ALTER TABLE manta_run SET LOGGED")
        session.close()


def fill(ledger: Ledger, count: int) -> None:
    sql(
        ledger,
        "INSERT INTO manta_run (id, task, backend, queue, priority, state, arguments, metadata, deadline)"
        " SELECT lpad(to_hex(number), 32, '0')::uuid, 'tests.app.tasks.add', 'default',"
        " 'queue-' || number %% %s, number %% 3, 'READY', '[[1,2],{}]', '{}',"
        " now() + number * interval '1 second' FROM generate_series(1, %s) AS number",
        [len(QUEUES), count],
    )


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def scans(ledger: Ledger, name: str, params: dict[str, Any], *, generic: bool, run: bool) -> list[dict[str, Any]]:
    """How a statement would (or, with ``run``, did) read the table of runs."""
    explain = "EXPLAIN (ANALYZE, FORMAT JSON) " if run else "EXPLAIN (FORMAT JSON) "
    from psycopg import ClientCursor

    session: Any = ledger.session
    with session.connection.transaction(force_rollback=True):
        if generic:
            # What PostgreSQL may turn to once a prepared statement has been executed a few times.
            session.connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            session.connection.execute(f"PREPARE manta_explained AS {numbered(name, params)}", prepare=False)
            asked = ", ".join(f"%({key})s" for key in params)
            execute = f"EXECUTE manta_explained ({asked})" if asked else "EXECUTE manta_explained"
            cursor = ClientCursor(session.connection).execute(explain + execute, params)
            [[[plan]]] = cursor.fetchall()
            session.connection.execute("DEALLOCATE manta_explained")
        else:
            [[[plan]]] = session.connection.execute(
                explain + statement("postgres", name), params, prepare=False
            ).fetchall()
    return runs_scanned(plan["Plan"])


def runs_scanned(plan: dict[str, Any]) -> list[dict[str, Any]]:
    found = [node for node in nodes(plan) if node.get("Relation Name") == "manta_run"]
    return [node for node in found if node["Node Type"].endswith("Scan")]


def numbered(name: str, params: dict[str, Any]) -> str:
    """A statement as it is prepared: with numbers for its parameters."""
    numbers = {key: place for place, key in enumerate(params, start=1)}
    return re.sub(r"%\((\w+)\)s", lambda found: f"${numbers[found[1]]}", statement("postgres", name))


def rows_read(scan: dict[str, Any]) -> float:
    removed = scan.get("Rows Removed by Filter", 0) + scan.get("Rows Removed by Index Recheck", 0)
    return (scan["Actual Rows"] + removed) * scan["Actual Loops"]


def read_by_settlement(ledger: Ledger, name: str, *, generic: bool) -> list[dict[str, Any]]:
    session: Any = ledger.session
    with session.connection.transaction(force_rollback=True):
        claims = ledger.claim("worker", QUEUES, BATCH)
        assert len(claims) == BATCH
        batch = rows.settlement_rows([settlement(claim, **WELL) for claim in claims])
        asked = {"settlements": batch, "worker": "worker", "recovering": False, "quietly": False}
        return scans(ledger, name, asked, generic=generic, run=True)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.django_db
def test_nothing_costs_more_because_a_million_runs_wait(backlog: Ledger, subtests: pytest.Subtests) -> None:
    """One test, so that the million is made once, whoever else tests at the same time."""
    for statistics, generic in product(["none", "fresh"], [False, True]):
        if statistics == "fresh" and not generic:
            sql(backlog, "ANALYZE manta_run")
        case = {"statistics": statistics, "generic": generic}
        for name, queues in (("claim", len(QUEUES)), ("claim_line", 1), ("claim_behind", 1)):
            with subtests.test("a claim reads no more than batch × queues", statement=name, **case):
                found = scans(backlog, name, ASKED[name], generic=generic, run=True)
                assert {scan["Node Type"] for scan in found} <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
                assert sum(map(rows_read, found)) <= 2 * BATCH * queues
        for name in ("settle", "settle_well"):
            with subtests.test("a settlement reads what it settles", statement=name, **case):
                found = read_by_settlement(backlog, name, generic=generic)
                assert "Seq Scan" not in {scan["Node Type"] for scan in found}
                assert sum(map(rows_read, found)) <= 4 * BATCH
        for name, asked in ASKED.items():
            with subtests.test("nothing reads the table from end to end", statement=name, **case):
                found = scans(backlog, name, asked, generic=generic, run=False)
                assert "Seq Scan" not in {scan["Node Type"] for scan in found}


#: Left out: what people ask for (a worker does so when what had delegated is cancelled), and what is asked for once a
#: minute. By then vacuum has seen what has changed, and the plan is made anew.
ASKED_SELDOM = {"cancel", "hold", "release", "retry", "prunable"}


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True, available_apps=["django_manta"])
def test_a_plan_older_than_the_backlog_reads_no_more_because_of_it(subtests: pytest.Subtests) -> None:
    """A worker may plan for tables that are empty, and of which vacuum has learned that they always will be."""
    session: Any = PostgresSession()
    ledger = Ledger(session)
    names = ASKED.keys() - ASKED_SELDOM
    from psycopg import ClientCursor

    def read(name: str, asked: dict[str, Any]) -> float:
        given = f"({', '.join(f'%({key})s' for key in asked)})" if asked else ""
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE older_{name} {given}"
        with session.connection.transaction(force_rollback=True):
            [[[found]]] = ClientCursor(session.connection).execute(explain, asked).fetchall()
        return sum(map(rows_read, runs_scanned(found["Plan"])))

    try:
        assert {"enable_seqscan", "plan_cache_mode"} <= set(session_settings(ledger))
        tables = "manta_run, manta_attempt, manta_dependency, manta_gate, manta_herald"
        sql(ledger, f"TRUNCATE {tables}")
        sql(ledger, "ALTER TABLE manta_run SET (autovacuum_enabled = off)")
        sql(ledger, f"VACUUM ANALYZE {tables}")
        for name in names:
            session.connection.execute(f"PREPARE older_{name} AS {numbered(name, ASKED[name])}", prepare=False)
            read(name, ASKED[name])
        fill(ledger, 20_000)
        claims = ledger.claim("worker", QUEUES, BATCH)
        batch = rows.settlement_rows([settlement(claim, **WELL) for claim in claims])
        held = json.dumps([{"run_id": claim.id.hex, "token": claim.token} for claim in claims])
        # What finds something reads on from there.
        finding: dict[str, dict[str, Any]] = {
            "settle": ASKED["settle"] | {"settlements": batch},
            "settle_well": ASKED["settle_well"] | {"settlements": batch},
            "adopt": {"executions": held, "former": "worker", "worker": "b"},
            "look": {"queues": [*QUEUES, "elsewhere"], "worker": "worker"},
            "fetch": {"ids": [claim.id.hex for claim in claims]},
        }
        for name, asked in [*((name, ASKED[name]) for name in names), *finding.items()]:
            with subtests.test(statement=name, asked=str(asked)[:60]):
                assert read(name, asked) <= 2 * BATCH * len(QUEUES)
    finally:
        sql(ledger, "TRUNCATE manta_run, manta_attempt")
        sql(ledger, "ALTER TABLE manta_run RESET (autovacuum_enabled)")
        session.close()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True, available_apps=["django_manta"])
def test_no_statement_of_a_worker_is_compiled(subtests: pytest.Subtests) -> None:
    """To compile one takes a quarter of a second. `make test-debian` asks a server that does so by default."""
    from psycopg import ClientCursor

    session: Any = PostgresSession()
    ledger = Ledger(session)
    try:
        assert sql(ledger, "SHOW jit") == [("off",)]
        fill(ledger, 1_000)
        for name, asked in ASKED.items():
            with subtests.test(statement=name), session.connection.transaction(force_rollback=True):
                session.connection.execute(f"PREPARE compiled_{name} AS {numbered(name, asked)}", prepare=False)
                given = f"({', '.join(f'%({key})s' for key in asked)})" if asked else ""
                explain = f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE compiled_{name} {given}"
                [[[found]]] = ClientCursor(session.connection).execute(explain, asked).fetchall()
                assert "JIT" not in found, found["JIT"]
    finally:
        sql(ledger, "TRUNCATE manta_run, manta_attempt")
        session.close()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True, available_apps=["django_manta"])
def test_retention_reads_no_more_because_another_alias_keeps_its_runs_for_ever() -> None:
    """They stand before all that is to go, and the index does not know whose they are."""
    session: Any = PostgresSession()
    ledger = Ledger(session)
    try:
        fill(ledger, 20_000)
        ended = "state = 'FAILED', finished_at = enqueued_at - '1 day'::interval"
        sql(ledger, f"UPDATE manta_run SET backend = 'keeps', {ended}")
        sql(ledger, "VACUUM ANALYZE manta_run")
        asked = ASKED["prunable"] | {"limit": BATCH}
        for generic in (False, True):
            found = scans(ledger, "prunable", asked, generic=generic, run=True)
            assert {scan["Index Name"] for scan in found if scan["Actual Loops"]} == {"manta_run_finished"}
            assert sum(map(rows_read, found)) <= BATCH
    finally:
        sql(ledger, "TRUNCATE manta_run, manta_attempt")
        session.close()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_nothing_is_compiled_where_an_application_releases_dependents() -> None:
    """On its own connection, where reading whole tables is forbidden for as long as that takes, too."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW jit")
        usual = cursor.fetchall()
        with graph._briefly(Ledger()):
            cursor.execute("SELECT current_setting('enable_seqscan'), current_setting('jit')")
            assert cursor.fetchall() == [("off", "off")]
        cursor.execute("SHOW jit")
        assert cursor.fetchall() == usual


# -- SQLite --------------------------------------------------------------------------------------

ON_POSTGRES_ONLY = {"arm_free", "claim_line", "claim_behind", "settle_well", "tell_own"}


@pytest.mark.sqlite
@pytest.mark.django_db
@pytest.mark.parametrize(
    "name",
    [*(name for name in ASKED if name not in ON_POSTGRES_ONLY), "settle_attempts", "delete_attempts"],
)
def test_no_statement_reads_the_table_from_end_to_end(name: str) -> None:
    asked = {"settle_attempts": ASKED["settle"], "delete_attempts": ASKED["delete"]}.get(name, ASKED.get(name, {}))
    params = {key: json.dumps(value) if isinstance(value, list) else value for key, value in asked.items()}
    text = statement("sqlite", name)
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN QUERY PLAN " + text, params)
        steps = [step for *_, step in cursor.fetchall()]
    tables = {"manta_run", "manta_attempt", *re.findall(r"manta_(?:run|attempt) AS (\w+)", text)}
    for step in steps:
        # Walking an index is walking a table, unless the index is one of the few rows in a state. A SEARCH that names
        # no index finds the highest or the lowest key, which is at one end.
        whole = re.fullmatch(
            r"SCAN (\w+)(?: USING (?:COVERING )?INDEX sqlite_autoindex_\w+)?"
            r"|SEARCH (\w+) USING (?:COVERING )?INDEX sqlite_autoindex_\w+",
            step,
        )
        assert not whole or (whole[1] or whole[2]) not in tables, steps
