"""What an application says often is prepared on its own connection, if it may be."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, InterfaceError, OperationalError, ProgrammingError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_manta.ledger import Ledger, NewRun, fsck, graph, house, often
from django_manta.ledger.often import AFTER, INSIDE, label_of
from django_manta.ledger.session import statement
from django_manta.states import Role, When
from tests.ledger.given import new_run, sql, state_of

pytestmark = pytest.mark.postgres


@pytest.fixture(autouse=True)
def new_connection(committed: None) -> Iterator[None]:
    """One that has said nothing yet, and that nobody gets afterwards."""
    connection.close()
    yield
    connection.close()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def enqueue(ledger: Ledger, **changes: Any) -> UUID:
    run: NewRun = new_run(**changes)
    ledger.enqueue([run])
    return run.id


def prepared() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements ORDER BY name")
        return [name for (name,) in cursor.fetchall()]


ENQUEUE = label_of("enqueue_plain", statement("postgres", "enqueue_plain"))


def prepare(ledger: Ledger) -> None:
    for _ in range(AFTER + 2):
        enqueue(ledger)
    assert prepared() == [ENQUEUE]


def test_after_a_few_an_enqueue_is_prepared(ledger: Ledger) -> None:
    for _ in range(AFTER):
        enqueue(ledger)
    assert prepared() == []
    ids = [enqueue(ledger) for _ in range(3)]
    assert prepared() == [ENQUEUE]
    assert [state_of(ledger, run_id).value for run_id in ids] == ["READY"] * 3


def test_what_is_prepared_says_the_same(ledger: Ledger) -> None:
    plain = ledger.enqueue([new_run(priority=7)])[0]
    prepare(ledger)
    again = ledger.enqueue([new_run(priority=7)])[0]
    assert (again.state, again.run_after, again.expires_at) == (plain.state, plain.run_after, plain.expires_at)
    assert again.deadline - again.enqueued_at == plain.deadline - plain.enqueued_at
    assert again.enqueued_at.tzinfo is plain.enqueued_at.tzinfo
    rows = {run.id: run for run in ledger.fetch([plain.id, again.id])}
    kept = ("task", "backend", "queue", "priority", "arguments", "overrides", "metadata", "workflow", "state")
    for name in kept:
        assert getattr(rows[plain.id], name) == getattr(rows[again.id], name), name


def test_what_looks_like_sql_stays_what_it_is(ledger: Ledger) -> None:
    prepare(ledger)
    nasty = "it's 100 %(id)s; $1 \\' \" --"
    run_id = enqueue(ledger, queue="q'; DROP", task=nasty)
    [run] = ledger.fetch([run_id])
    assert (run.queue, run.task) == ("q'; DROP", nasty)


def test_statements_are_logged_and_counted_as_ever(ledger: Ledger) -> None:
    prepare(ledger)
    with CaptureQueriesContext(connection) as captured:
        enqueue(ledger)
    [query] = captured.captured_queries
    assert query["sql"].startswith(f"EXECUTE {ENQUEUE} (")


def test_the_question_whether_it_may_is_not_counted(ledger: Ledger) -> None:
    with CaptureQueriesContext(connection) as captured:
        for _ in range(AFTER + 2):
            enqueue(ledger)
    assert len(captured) == AFTER + 2


def test_wrappers_of_a_project_see_them(ledger: Ledger) -> None:
    prepare(ledger)
    seen: list[str] = []

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        enqueue(ledger)
    assert len(seen) == 1


def test_behind_a_pooler_nothing_is(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_manta.ledger.often.is_pooled", lambda driver: True)
    for _ in range(AFTER + 3):
        enqueue(ledger)
    assert prepared() == []


@pytest.mark.parametrize(
    "chosen", [{"prepare_threshold": None}, {"prepare_threshold": 5}, {"server_side_binding": True}]
)
def test_who_has_chosen_for_himself_keeps_what_he_chose(
    ledger: Ledger, chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", connection.settings_dict["OPTIONS"] | chosen)
    for _ in range(AFTER + 3):
        assert state_of(ledger, enqueue(ledger)).value == "READY"
    assert ENQUEUE not in prepared()


def test_what_cannot_be_prepared_is_said_in_full(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a project finds its tables only by what its own cursors say first."""
    with connection.cursor() as cursor:
        cursor.execute(f"PREPARE {ENQUEUE} AS SELECT 1")
    for _ in range(AFTER + 3):
        assert state_of(ledger, enqueue(ledger)).value == "READY"


def test_a_connection_that_was_ended_says_so_as_django_does(ledger: Ledger, other_ledger: Ledger) -> None:
    for _ in range(AFTER):
        enqueue(ledger)
    [[pid]] = sql(ledger, "SELECT pg_backend_pid()")
    sql(other_ledger, "SELECT pg_terminate_backend(%s, 5000)", [pid])
    with pytest.raises((OperationalError, InterfaceError)):
        enqueue(ledger)
    connection.close()
    prepare(ledger)


def wait_for_each_other(ledger: Ledger, count: int) -> list[UUID]:
    """A chain, enqueued one by one."""
    ids = [enqueue(ledger)]
    for _ in range(count - 1):
        run = new_run()
        edges = [graph.Edge(run.id, ids[-1], Role.AFTER)]
        made = graph.enqueue_waiting(ledger, run, When.ALL_SUCCESSFUL, edges, own=True)
        assert made is not None
        assert made[1], "it is armed"
        ids.append(run.id)
    return ids


def assert_waits(ledger: Ledger, ids: list[UUID]) -> None:
    assert [state_of(ledger, run_id).value for run_id in ids] == ["READY", *["WAITING"] * (len(ids) - 1)]
    assert fsck.check(ledger) == []


#: Of those that wait.
AFTER_INSIDE = INSIDE["enqueue_waiting"]
WAITING = f"{label_of('enqueue_waiting', statement('postgres', 'enqueue_waiting'))}_here"


def test_in_a_transaction_it_is_prepared_after_some_more(ledger: Ledger) -> None:
    with transaction.atomic():
        for _ in range(INSIDE["enqueue_plain"]):
            enqueue(ledger)
        assert prepared() == []
        kept = enqueue(ledger)
        assert prepared() == [f"{ENQUEUE}_here"]
    assert state_of(ledger, kept).value == "READY"


def test_what_waits_is_prepared_in_its_transaction(ledger: Ledger) -> None:
    with transaction.atomic():
        ids = wait_for_each_other(ledger, AFTER_INSIDE + 12)
        assert prepared() == [WAITING]
    assert_waits(ledger, ids)


def test_in_each_transaction_it_is_prepared_anew(ledger: Ledger) -> None:
    for _ in range(3):
        with transaction.atomic():
            ids = wait_for_each_other(ledger, AFTER_INSIDE + 3)
        assert_waits(ledger, ids)
        assert prepared() == [WAITING]


def test_in_a_long_one_it_is_prepared_again_and_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(often, "RENEWED_AFTER", 10)
    moments = set()
    with transaction.atomic():
        for _ in range(4):
            wait_for_each_other(ledger, 11)
            moments |= {row[0] for row in sql(ledger, "SELECT prepare_time FROM pg_prepared_statements")}
    # Of one transaction, so by the clock of its statements.
    assert len(moments) == 4


@pytest.mark.parametrize("forget", ["DISCARD ALL", "DEALLOCATE ALL"])
def test_who_discards_all_between_transactions_loses_nothing(ledger: Ledger, forget: str) -> None:
    for _ in range(2):
        with transaction.atomic():
            ids = wait_for_each_other(ledger, AFTER_INSIDE + 3)
        with connection.cursor() as cursor:
            cursor.execute(forget)
        with transaction.atomic():
            more = wait_for_each_other(ledger, 3)
        assert_waits(ledger, ids)
        assert_waits(ledger, more)


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_undone_in_a_transaction_is_gone_and_what_follows_is_there(ledger: Ledger, whole: bool) -> None:
    gone: list[UUID] = []
    with transaction.atomic() if not whole else nullcontext():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            gone = wait_for_each_other(ledger, AFTER_INSIDE + 3)
            raise ZeroDivisionError
        ids = wait_for_each_other(ledger, AFTER_INSIDE + 3) if not whole else []
    with transaction.atomic():
        more = wait_for_each_other(ledger, AFTER_INSIDE + 3)
    assert ledger.fetch(gone) == []
    assert_waits(ledger, more)
    if ids:
        assert_waits(ledger, ids)


def test_what_cannot_be_prepared_in_a_transaction_costs_nobody_his_work(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(often, "_words", lambda label, text: (f"PREPARE {label} AS TABLE nowhere", "EXECUTE nonsense"))
    with transaction.atomic():
        ids = wait_for_each_other(ledger, AFTER_INSIDE + 12)
    assert_waits(ledger, ids)


def test_a_failure_in_a_transaction_is_told_as_it_was(ledger: Ledger) -> None:
    """Whoever makes the server forget in the middle of his own transaction: nothing could be repeated there."""
    with pytest.raises(ProgrammingError, match="does not exist"), transaction.atomic():
        wait_for_each_other(ledger, AFTER_INSIDE + 3)
        with connection.cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")
        wait_for_each_other(ledger, 2)
    with transaction.atomic():
        ids = wait_for_each_other(ledger, AFTER_INSIDE + 3)
    assert_waits(ledger, ids)
    assert prepared() == []


def test_after_a_discard_a_transaction_says_in_full_what_was_prepared_outside(ledger: Ledger) -> None:
    prepare(ledger)
    discard()
    with transaction.atomic():
        kept = enqueue(ledger)
    assert state_of(ledger, kept).value == "READY"


def test_where_the_path_to_the_tables_changes_it_follows(ledger: Ledger) -> None:
    """One schema for each tenant, as some have it."""
    prepare(ledger)
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        cursor.execute("CREATE TABLE tenant.manta_run (LIKE manta_run INCLUDING ALL)")
        try:
            cursor.execute("SET search_path = tenant, public")
            run_id = enqueue(ledger)
            cursor.execute("SELECT id FROM tenant.manta_run")
            assert cursor.fetchall() == [(run_id,)]
        finally:
            cursor.execute("DROP SCHEMA tenant CASCADE")


def test_where_a_column_becomes_another_it_is_said_in_full(ledger: Ledger) -> None:
    prepare(ledger)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE manta_run ALTER COLUMN deadline TYPE timestamptz(3)")
        try:
            for _ in range(3):
                assert state_of(ledger, enqueue(ledger)).value == "READY"
        finally:
            cursor.execute("ALTER TABLE manta_run ALTER COLUMN deadline TYPE timestamptz")


def test_a_ring_is_prepared_as_well(ledger: Ledger) -> None:
    for _ in range(AFTER + 2):
        house.ring(ledger, "bell", "word")
    assert prepared() == [label_of("ring", statement("postgres", "ring"))]


def test_another_connection_begins_anew(ledger: Ledger) -> None:
    prepare(ledger)
    connection.close()
    enqueue(ledger)
    assert prepared() == []
    prepare(ledger)


def test_what_is_rolled_back_is_gone_and_the_next_is_there(ledger: Ledger) -> None:
    prepare(ledger)
    gone = new_run()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        ledger.enqueue([gone])
        raise ZeroDivisionError
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            ledger.enqueue([gone])
            raise ZeroDivisionError
        kept = enqueue(ledger)
    assert ledger.fetch([gone.id]) == []
    assert state_of(ledger, kept).value == "READY"


def test_a_refused_one_is_refused_and_the_next_is_there(ledger: Ledger) -> None:
    prepare(ledger)
    with pytest.raises(IntegrityError):
        enqueue(ledger, task=None)
    assert state_of(ledger, enqueue(ledger)).value == "READY"


def test_who_discards_all_loses_nothing(ledger: Ledger) -> None:
    prepare(ledger)
    discard()
    assert state_of(ledger, enqueue(ledger)).value == "READY"
    assert prepared() == [], "it would be discarded again"
    assert state_of(ledger, enqueue(ledger)).value == "READY"


def discard() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DISCARD ALL")
