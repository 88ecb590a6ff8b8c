"""Ledgers on every kind of session."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from django.db import connection

from django_manta.ledger import DjangoSession, Ledger, own_session

type OpenLedger = Callable[[], AbstractContextManager[Ledger]]

# Work is really committed, for other connections to see, and gone afterwards. Emptying our own tables only is
# ten times faster than all.
COMMITTED = pytest.mark.django_db(transaction=True, available_apps=["django_manta"])

# Inside a transaction of the caller's, which is rolled back: ten times faster again.
ROLLED_BACK = pytest.mark.django_db


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if "open_ledger" in fixtures or "committed" in fixtures:
            alone = "ledger" in fixtures and "committed" not in fixtures
            through_django = item.callspec.params.get("open_ledger") == "django" if alone else False  # type: ignore[attr-defined]
            item.add_marker(ROLLED_BACK if through_django else COMMITTED)


@pytest.fixture
def committed() -> None:
    """Work is really committed, whatever the session: see COMMITTED."""


@pytest.fixture(params=["django", "own"])
def open_ledger(request: pytest.FixtureRequest) -> OpenLedger:
    """Opens ledgers of one kind: on Django's connection of the thread, or each on one of its own."""

    @contextmanager
    def opened() -> Iterator[Ledger]:
        session = own_session() if request.param == "own" else DjangoSession()
        try:
            yield Ledger(session)
        finally:
            session.close()
            if threading.current_thread() is not threading.main_thread():
                connection.close()

    return opened


@pytest.fixture
def ledger(open_ledger: OpenLedger) -> Iterator[Ledger]:
    with open_ledger() as opened:
        yield opened


@pytest.fixture
def other_ledger(committed: None) -> Iterator[Ledger]:
    """A second connection: another process, as far as the database can tell."""
    session = own_session()
    try:
        yield Ledger(session)
    finally:
        session.close()


@pytest.fixture
def keepsakes(committed: None) -> Iterator[None]:
    """A table of the user's whose foreign key, as Django makes them, protects runs: manta_keepsake."""
    column = "uuid" if connection.vendor == "postgresql" else "char(32)"
    reference = f"run_id {column} NOT NULL REFERENCES manta_run (id) DEFERRABLE INITIALLY DEFERRED"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE manta_keepsake ({reference})")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE manta_keepsake")
