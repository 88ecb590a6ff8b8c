"""What no column may hold is refused by the database, on SQLite as on PostgreSQL."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.apps import apps
from django.db import Error as AnyDatabaseError
from django.db import connection, transaction
from django.db.models import DateTimeField
from django.tasks import task_backends

from django_manta.column_types import ColumnTypes
from django_manta.ledger import Ledger
from tests.ledger.given import claimed, enqueue, settlement, the, worker_record

pytestmark = pytest.mark.django_db

#: What Python cannot read as a moment, in the calendars of both databases.
NO_MOMENTS = ["-infinity", "infinity", "garbage", "0001-01-01 00:00:00", "2026-02-30 12:00:00", "10000-01-01", ""]

COLUMNS = [
    ("manta_run", "task", ["a\0b"]),
    ("manta_run", "priority", ["garbage", 1.5, 40_000]),
    ("manta_run", "attempts", ["garbage", 2**31]),
    ("manta_run", "token", ["garbage", 2**70, 2**63 - 1, -1]),
    ("manta_attempt", "token", ["garbage", 2**63 - 1, -1]),
    ("manta_cluster", "term", ["garbage", 2**63 - 1, -1]),
    ("manta_run", "suspect", ["garbage", 2.5]),
    ("manta_run", "workflow_id", ["garbage", 7, "G" * 32]),
    ("manta_attempt", "peak_memory", ["garbage"]),
    ("manta_worker", "slots", [-1, "garbage"]),
    ("manta_worker", "lease_seconds", ["NaN", "Infinity", "-Infinity", -1, "garbage"]),
]


@pytest.fixture
def rows(db: None) -> Ledger:
    """A row of most tables."""
    ledger = Ledger()
    ledger.register(worker_record())
    [claim] = claimed(ledger)
    ledger.settle([settlement(claim)])
    ledger.pause("paused")
    ledger.check_key(task_backends["default"].seal)  # type: ignore[attr-defined]
    return ledger


def refuses(table: str, column: str, value: object) -> bool:
    cast = "%s"
    if connection.vendor == "postgresql":
        model = next(each for each in apps.get_app_config("manta").get_models() if each._meta.db_table == table)
        [field] = [each for each in model._meta.concrete_fields if each.column == column]
        cast = f"%s::text::{field.db_type(connection)}"
        value = str(value)
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET {column} = {cast}", [value])
            assert cursor.rowcount, f"there is no row in {table}"
    except (AnyDatabaseError, OverflowError, ValueError):
        return True
    return False


def moments() -> list[tuple[str, str]]:
    return [
        (model._meta.db_table, field.column)
        for model in apps.get_app_config("manta").get_models()
        for field in model._meta.concrete_fields
        if isinstance(field, DateTimeField) and model._meta.db_table not in ("manta_gate", "manta_workflow")
    ]


@pytest.mark.parametrize("value", NO_MOMENTS)
def test_no_column_takes_a_moment_that_nobody_can_read(rows: Ledger, value: str) -> None:
    taken = [place for place in moments() if not refuses(*place, value)]
    assert not taken


@pytest.mark.parametrize(("table", "column", "values"), COLUMNS)
def test_a_column_takes_no_value_of_another_type(rows: Ledger, table: str, column: str, values: list[Any]) -> None:
    assert [value for value in values if not refuses(table, column, value)] == []


def test_the_first_and_the_last_moment_are_taken(rows: Ledger) -> None:
    for moment in (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)):
        [run_id] = enqueue(rows, deadline=moment)
        assert the(rows, run_id).deadline == moment


def test_every_table_has_the_constraint() -> None:
    for model in apps.get_app_config("manta").get_models():
        assert any(isinstance(each, ColumnTypes) for each in model._meta.constraints), model


@pytest.mark.postgres("there it is a constraint of the columns that were there when it was made")
def test_the_constraint_knows_every_moment(rows: Ledger) -> None:
    with connection.cursor() as cursor:
        for table, column in moments():
            cursor.execute(
                "SELECT string_agg(pg_get_constraintdef(oid), ' ') FROM pg_constraint"
                " WHERE conrelid = %s::regclass AND contype = 'c' AND conname LIKE '%%_types'",
                [table],
            )
            assert column in cursor.fetchone()[0], (table, column)
