"""Migrations go back as well as forth, and tune the hot table on PostgreSQL."""

import pytest
from django.core.management import call_command
from django.db import connection


def tables() -> set[str]:
    return {name for name in connection.introspection.table_names() if name.startswith("manta_")}


@pytest.mark.django_db(transaction=True)
def test_migrations_are_reversible() -> None:
    before = tables()
    assert "manta_run" in before
    try:
        call_command("migrate", "manta", "zero", verbosity=0)
        assert tables() == set()
    finally:
        call_command("migrate", "manta", verbosity=0)
    assert tables() == before


@pytest.mark.postgres
@pytest.mark.django_db
def test_autovacuum_is_tuned_for_the_hot_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT array_to_string(reloptions, ' ') FROM pg_class WHERE relname = 'manta_run'")
        [options] = cursor.fetchone()
    assert "autovacuum_vacuum_scale_factor=0.01" in options


@pytest.mark.postgres
@pytest.mark.django_db
def test_tokens_come_from_the_sequence_of_the_attempts() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_serial_sequence('manta_attempt', 'token')")
        assert cursor.fetchone()[0].endswith("manta_attempt_token_seq")
