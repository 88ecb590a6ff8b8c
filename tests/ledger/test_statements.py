"""What things cost: how many statements, and what they lock."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction
from django.tasks import default_task_backend
from django.test.utils import CaptureQueriesContext

from django_manta.ledger import DjangoSession, Ledger, book
from django_manta.states import Outcome, State
from tests.app.tasks import add
from tests.ledger.given import claimed, enqueue, new_run, settlement, sql, worker_record

FRAME = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK")


@contextmanager
def statements(ledger: Ledger) -> Iterator[list[str]]:
    """
    What goes to the database: on Django's connection all of it, without what only frames a
    transaction; on a connection of the ledger's own, the names of the files.
    """
    said: list[str] = []
    if isinstance(ledger.session, DjangoSession) and ledger.session._connection is None:
        with CaptureQueriesContext(connection) as captured:
            yield said
        said += [query["sql"] for query in captured if not query["sql"].startswith(FRAME)]
        return
    session: Any = ledger.session
    rows, run = session.rows, session.run

    def noting(speak: Callable[..., Any]) -> Callable[..., Any]:
        def spoken(name: str, params: Any) -> Any:
            said.append(name)
            return speak(name, params)

        return spoken

    session.rows, session.run = noting(rows), noting(run)
    try:
        yield said
    finally:
        session.rows, session.run = rows, run


# -- enqueue -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 100])
def test_an_enqueue_is_one_statement(ledger: Ledger, count: int) -> None:
    asked = [new_run() for _ in range(count)]
    with statements(ledger) as said:
        ledger.enqueue(asked)
    assert len(said) == 1


def test_an_enqueue_is_one_statement_for_each_two_thousand(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert book.ENQUEUE_BATCH == 2_000
    monkeypatch.setattr(book, "ENQUEUE_BATCH", 20)
    asked = [new_run() for _ in range(50)]
    with statements(ledger) as said:
        ledger.enqueue(asked)
    assert len(said) == 3


@pytest.mark.django_db
def test_to_enqueue_a_task_is_exactly_one_insert() -> None:
    with CaptureQueriesContext(connection) as captured:
        add.enqueue(1, 2)
    [query] = captured
    assert "INSERT INTO manta_run" in query["sql"]


@pytest.mark.django_db
def test_to_map_a_task_is_exactly_one_insert() -> None:
    with CaptureQueriesContext(connection) as captured:
        default_task_backend.enqueue_many([(add, (number, 1), {}) for number in range(500)])
    [query] = captured
    assert "INSERT INTO manta_run" in query["sql"]


@pytest.mark.postgres
def test_an_enqueue_locks_nothing_but_what_it_inserts(ledger: Ledger, other_ledger: Ledger) -> None:
    existing = enqueue(ledger, 5)
    existing += [claim.id for claim in claimed(ledger, 5, queue="other")]
    ledger.register(worker_record())
    mine = """
        SELECT DISTINCT locked.locktype, locked.mode, COALESCE(relation.relname, '')
        FROM pg_locks AS locked
        LEFT JOIN pg_class AS relation ON relation.oid = locked.relation
        WHERE locked.pid = pg_backend_pid() AND COALESCE(relation.relname, '') NOT LIKE 'pg\\_%%'
    """
    with other_ledger.session.transaction(), ledger.session.transaction():
        # Every run, worker and queue is held by somebody else: an enqueue that waits for one of them never ends.
        for table in ("manta_run", "manta_worker", "manta_queue", "manta_cluster", "manta_attempt"):
            sql(other_ledger, f"SELECT 1 FROM {table} FOR UPDATE")
        sql(ledger, "SET LOCAL lock_timeout = '2s'")
        new = enqueue(ledger, 3)
        locks = set(sql(ledger, mine))
        sql(ledger, "SET LOCAL lock_timeout = 0")
    relations = {(mode, relation) for kind, mode, relation in locks if kind == "relation"}
    assert ("RowExclusiveLock", "manta_run") in relations
    assert {mode for mode, _ in relations} == {"RowExclusiveLock"}
    assert all(relation.startswith("manta_run") for _, relation in relations)
    # Beside the relation only its own transaction: no row and no page of the table is locked.
    assert {kind for kind, _, _ in locks} - {"relation"} <= {"virtualxid", "transactionid"}
    assert len(ledger.fetch([*existing, *new])) == 13


@pytest.mark.postgres
def test_a_task_is_enqueued_while_every_run_is_held(committed: None, other_ledger: Ledger) -> None:
    enqueue(other_ledger, 5)
    with other_ledger.session.transaction():
        sql(other_ledger, "SELECT 1 FROM manta_run FOR UPDATE")
        with transaction.atomic():
            sql(Ledger(), "SET LOCAL lock_timeout = '2s'")
            add.enqueue(1, 2)
    assert sql(other_ledger, "SELECT count(*) FROM manta_run") == [(6,)]


# -- claim ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "queues"), [(1, 1), (100, 1), (100, 8), (5, 8)])
def test_a_claim_is_one_statement(ledger: Ledger, count: int, queues: int) -> None:
    names = [f"queue-{number}" for number in range(queues)]
    for name in names:
        enqueue(ledger, 20, queue=name)
    with statements(ledger) as said:
        ledger.claim("worker", names, count)
    assert len(said) == 1


def test_a_claim_of_nothing_is_one_statement(ledger: Ledger) -> None:
    with statements(ledger) as said:
        assert ledger.claim("worker", ["a", "b"], 100) == []
    assert len(said) == 1


def test_the_history_of_all_retried_runs_costs_one_statement_more(ledger: Ledger) -> None:
    claims = claimed(ledger, 30)
    ledger.settle([settlement(claim, Outcome.FAILED, State.READY) for claim in claims])
    with statements(ledger) as said:
        assert len(ledger.claim("worker", ["default"], 30)) == 30
    assert len(said) == 2


# -- settle --------------------------------------------------------------------------------------


def test_settling_many_costs_as_many_statements_as_settling_one(ledger: Ledger) -> None:
    counts = {}
    for number in (1, 200):
        batch = [settlement(claim) for claim in claimed(ledger, number)]
        with statements(ledger) as said:
            assert len(ledger.settle(batch, "worker").moved) == number
        counts[number] = len(said)
    assert counts == dict.fromkeys((1, 200), 1 if ledger.dialect.name == "postgres" else 2)


def test_what_is_no_longer_mine_costs_one_look(ledger: Ledger) -> None:
    counts = {}
    for number in (1, 200):
        batch = [settlement(claim) for claim in claimed(ledger, number)]
        ledger.settle(batch, "worker")
        with statements(ledger) as said:
            assert len(ledger.settle(batch, "worker").not_mine) == number
        counts[number] = len(said)
    assert counts == dict.fromkeys((1, 200), 2 if ledger.dialect.name == "postgres" else 3)


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "retry"])
def test_a_verb_is_one_statement_for_any_number_of_runs(ledger: Ledger, verb: str) -> None:
    ids = enqueue(ledger, 50)
    with statements(ledger) as said:
        getattr(ledger, verb)(ids)
    # SQLite changes one table a statement.
    assert len(said) == (2 if verb == "hold" and ledger.dialect.name == "sqlite" else 1)


# -- results -------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_result_costs_two_statements_at_most() -> None:
    enqueued = add.enqueue(1, 2)
    with CaptureQueriesContext(connection) as captured:
        result = add.get_result(enqueued.id)
    assert len(captured) <= 2
    with CaptureQueriesContext(connection) as captured:
        result.refresh()
    assert len(captured) <= 2


def test_many_runs_are_fetched_with_two_statements(ledger: Ledger) -> None:
    ids = enqueue(ledger, 100)
    with statements(ledger) as said:
        assert len(ledger.fetch(ids)) == 100
    assert len(said) == 2
