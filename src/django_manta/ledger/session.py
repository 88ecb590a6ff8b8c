"""
The two ways to reach the database.

``DjangoSession`` speaks through Django's connection and so joins the caller's transaction: that is
how an enqueue exists if and only if the caller commits. ``PostgresSession`` is a worker's own
psycopg connection: server-side binding, prepared statements, its own time limits, no transaction
but its own. Both run the same statements, each a file in this package.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from json import dumps
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID
from weakref import WeakSet

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db import Error as DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from django_manta import payload
from django_manta.ledger import often, preparing, sending
from django_manta.moments import to_microseconds

if TYPE_CHECKING:
    import psycopg

    from django_manta.ledger.direct import Direct

#: A statement of ours that takes longer has met something it should not wait for.
STATEMENT_TIMEOUT_SECONDS = 30
LOCK_TIMEOUT_SECONDS = 5

#: Settings of a connection that runs no statements but ours. Each is planned once: planned anew for
#: every limit, a claim costs a third more. And since a plan then outlives the table that it was made
#: for, which may have been empty and have a million rows a minute later, it never reads a whole table. None is
#: worth a second process: to start one takes longer than any of them should. None is worth compiling either (JIT):
#: before PostgreSQL 18 a forbidden scan of a small table counts as if it took forever, and each execution of the poll
#: would be compiled, for a quarter of a second.
PINNED_PLANS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}

#: A host that vanished without a word is noticed: by who connects, in so many seconds, and by who waits for
#: an answer, in as many milliseconds.
LINK = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

#: Where a pooler has many who come and go, one trial alone may seem to succeed.
AFFINITY_TRIALS = 3

#: psycopg's TransactionStatus: an answer is waited for.
_ACTIVE = 1

#: Isolation levels whose transactions see the database as it was when they began.
_WITH_A_SNAPSHOT = frozenset({"REPEATABLE_READ", "SERIALIZABLE"})

type Row = tuple[Any, ...]

#: A statement and what it is given.
type Request = tuple[str, Mapping[str, Any]]


class Dialect(Protocol):
    """How one kind of database takes and gives values."""

    name: str

    def listing(self, values: Sequence[Any]) -> Any: ...
    def moment(self, value: datetime) -> str: ...
    def read_moment(self, value: Any) -> datetime: ...
    def read_microseconds(self, value: Any) -> int: ...
    def read_id(self, value: Any) -> UUID: ...


class PostgresDialect:
    name = "postgres"

    def listing(self, values: Sequence[Any]) -> list[Any]:
        return list(values)

    def moment(self, value: datetime) -> str:
        return value.astimezone(UTC).isoformat(sep=" ")

    def read_moment(self, value: datetime) -> datetime:
        # Our own connections are in UTC; to see that is cheaper than to convert.
        return value if value.tzinfo is UTC else value.astimezone(UTC)

    def read_microseconds(self, value: datetime) -> int:
        return to_microseconds(value)

    def read_id(self, value: UUID) -> UUID:
        return value


class SqliteDialect:
    """Moments are UTC text of fixed width, as Django reads it, so that text order is time order."""

    name = "sqlite"

    def listing(self, values: Sequence[Any]) -> str:
        return payload.dump(list(values))

    def moment(self, value: datetime) -> str:
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")

    def read_moment(self, value: str | datetime) -> datetime:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        return value.replace(tzinfo=UTC)

    def read_microseconds(self, value: str | datetime) -> int:
        return to_microseconds(self.read_moment(value))

    def read_id(self, value: str) -> UUID:
        return UUID(value)


DIALECTS: dict[str, Dialect] = {"postgresql": PostgresDialect(), "sqlite": SqliteDialect()}


def dialect_of(connection: BaseDatabaseWrapper) -> Dialect:
    try:
        return DIALECTS[connection.vendor]
    except KeyError:
        raise ImproperlyConfigured(
            f"django-manta keeps its tables in PostgreSQL or SQLite; database {connection.alias!r} is "
            f"{connection.display_name}."
        ) from None


@cache
def statement(dialect: str, name: str) -> str:
    """The text of ``name``.sql for a dialect, or the one that both share."""
    package = files(__package__)
    for folder in (dialect, "shared"):
        file = package / folder / f"{name}.sql"
        if file.is_file():
            return _without_comments(file.read_text(encoding="utf-8"))
    raise LookupError(f"There is no statement {name!r} for {dialect}.")


def _without_comments(text: str) -> str:
    """
    Without the lines that explain it, and without indentation.

    Only for its length: what psycopg has read once it remembers, unless it is longer than 4,096 characters, and
    to read a claim anew each time takes longer than to look for something to claim.
    """
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))


class Session(Protocol):
    """Runs named statements on one database."""

    dialect: Dialect

    def rows(self, name: str, params: Mapping[str, Any]) -> list[Row]: ...
    def run(self, name: str, params: Mapping[str, Any]) -> None: ...
    def transaction(self) -> AbstractContextManager[None]: ...
    def at_once(self, *requests: Request, meanwhile: Callable[[list[list[Row]]], None]) -> None: ...
    def step(self) -> AbstractContextManager[None]: ...
    def in_transaction(self) -> bool: ...
    def is_repeatable(self) -> None: ...


class DjangoSession:
    """Django's connection of the calling thread, or one given."""

    def __init__(self, alias: str = DEFAULT_DB_ALIAS, connection: BaseDatabaseWrapper | None = None) -> None:
        self.alias = alias
        self._connection = connection
        self.dialect = dialect_of(self.connection)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return self._connection or connections[self.alias]

    def rows(self, name: str, params: Mapping[str, Any]) -> list[Row]:
        return self._said(name, params, lambda cursor: cursor.fetchall())

    def run(self, name: str, params: Mapping[str, Any]) -> None:
        self._said(name, params, lambda cursor: None)

    def _said[T](self, name: str, params: Mapping[str, Any], then: Callable[[CursorWrapper], T]) -> T:
        connection = self.connection
        if self.dialect.name == "postgres" and sending.are_large(params.values()):
            connection.ensure_connection()
            with sending.blocking(connection.connection.pgconn):
                return self._say(connection, name, params, then)
        return self._say(connection, name, params, then)

    def _say[T](
        self,
        connection: BaseDatabaseWrapper,
        name: str,
        params: Mapping[str, Any],
        then: Callable[[CursorWrapper], T],
    ) -> T:
        text = statement(self.dialect.name, name)
        if name in often.OFTEN and self.dialect.name == "postgres":
            short = often.shortened(connection, name, text)
            if short is not None:
                try:
                    with connection.cursor() as cursor:
                        cursor.execute(short, params)
                        return then(cursor)
                except DatabaseError as error:
                    if not often.is_forgotten(connection, error):
                        raise
        with connection.cursor() as cursor:
            cursor.execute(text, params)
            return then(cursor)

    def transaction(self) -> AbstractContextManager[None]:
        if self._connection is not None:
            return _atomic_on(self._connection)
        if self.dialect.name == "postgres" and not self.in_transaction():
            return _read_committed(self.alias)
        return transaction.atomic(using=self.alias)

    def step(self) -> AbstractContextManager[None]:
        """All or nothing of what one database may do in one statement and another in two."""
        return self.transaction()

    def at_once(self, *requests: Request, meanwhile: Callable[[list[list[Row]]], None]) -> None:
        """A transaction of these; then ``meanwhile`` hears what they have returned."""
        with self.transaction():
            answers = [self.rows(name, params) for name, params in requests]
        meanwhile(answers)

    def in_transaction(self) -> bool:
        """Whether what is done here commits only when somebody else says so."""
        connection = self.connection
        driver: Any = connection.connection
        if self._connection is None and (connection.in_atomic_block or not connection.get_autocommit()):
            return True
        if driver is None:
            return False
        # Also where somebody has said BEGIN without Django.
        return bool(driver.info.transaction_status if connection.vendor == "postgresql" else driver.in_transaction)

    def keeps_its_snapshot(self) -> bool:
        """
        Whether the present transaction is REPEATABLE READ or SERIALIZABLE: it cannot write to a row that another one
        has written to since it began. Also True where it is broken, and cannot say.
        """
        connection = self.connection
        if connection.vendor != "postgresql":
            return False
        if not connection.in_atomic_block:
            # Another thread than the transaction's.
            from psycopg import IsolationLevel

            given = connection.settings_dict["OPTIONS"].get("isolation_level")
            return given is not None and IsolationLevel(given).name in _WITH_A_SNAPSHOT
        try:
            with connection.cursor() as cursor:
                cursor.execute("SHOW transaction_isolation")
                [level] = cursor.fetchone()
        except DatabaseError:
            return True
        return level.upper().replace(" ", "_") in _WITH_A_SNAPSHOT

    def is_repeatable(self) -> None:
        """Nothing: the transaction may be the caller's, and hold more."""

    def close(self) -> None:
        """Close the connection, if it is this session's own."""
        if self._connection is not None:
            self._connection.close()


class PostgresSession:
    """A worker's own connection to PostgreSQL, for one thread."""

    dialect: Dialect = DIALECTS["postgresql"]

    def __init__(self, alias: str = DEFAULT_DB_ALIAS, *, interruptible: bool = False) -> None:
        self.alias = alias
        #: Signals are heard while a statement is executed, at the price of a cursor.
        self.interruptible = interruptible
        self._connection: psycopg.Connection[Row] | None = None
        self._direct: Direct | None = None
        self._errors: AbstractContextManager[None] | None = None
        #: The connection with a descriptor of our own for it, which stays what it is when libpq has closed its one.
        self._wire: tuple[psycopg.Connection[Row], socket.socket] | None = None
        #: Statements that went another way than ``_direct``; and what was waited for at the last look, how many looks.
        self._said = 0
        self._waiting_for: tuple[object, int, int] | None = None
        self._looks = 0
        _sessions.add(self)

    @property
    def connection(self) -> "psycopg.Connection[Row]":
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> "psycopg.Connection[Row]":
        import psycopg
        import psycopg.sql

        from django_manta.ledger.direct import Direct

        self._direct = None
        wrapper: Any = connections[self.alias]
        params = dict(wrapper.get_connection_params())
        # Django's choices for its own cursors; ours are psycopg's defaults, which bind on the server.
        for name in ("cursor_factory", "context", "prepare_threshold"):
            params.pop(name, None)
        params = {**LINK, **params}
        connection: psycopg.Connection[Row] = psycopg.connect(
            **params, autocommit=True, prepare_threshold=1 if self.interruptible else None
        )
        self._let_go()
        self._wire = connection, socket.socket(fileno=os.dup(connection.fileno()))
        if role := wrapper.settings_dict["OPTIONS"].get("assume_role"):
            connection.execute(psycopg.sql.SQL("SET ROLE {}").format(psycopg.sql.Identifier(role)))
        if preparing.is_pooled(connection):
            # What is set or prepared here would stay behind on a connection that others get next.
            connection.prepare_threshold = None
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            return connection
        connection.execute(
            "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),"
            # In a zone far from UTC the last and first moments that Python knows could not be read.
            " set_config('TimeZone', 'UTC', false),"
            # Whatever a role or a database has for a default. All of it is for this connection, which is ours alone.
            " set_config('default_transaction_isolation', 'read committed', false),"
            " (SELECT max(set_config(pinned.key, pinned.value, false)) FROM json_each_text(%s) AS pinned)",
            [f"{STATEMENT_TIMEOUT_SECONDS}s", f"{LOCK_TIMEOUT_SECONDS}s", dumps(PINNED_PLANS)],
        )
        if not self.interruptible:
            self._direct = Direct(connection)
        return connection

    def rows(self, name: str, params: Mapping[str, Any]) -> list[Row]:
        with self._django_errors():
            connection, text = self.connection, statement("postgres", name)
            if self._direct is not None:
                return self._direct.rows(name, text, params)
            self._said += 1
            with self._unless_interrupted():
                cursor = connection.execute(text, params, binary=True)
                return cursor.fetchall() if cursor.description else []

    def run(self, name: str, params: Mapping[str, Any]) -> None:
        self.rows(name, params)

    @contextmanager
    def _unless_interrupted(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except psycopg.Error:
            raise
        except BaseException:
            # By a signal, in the middle of a statement: nobody will ever read the answer.
            self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        from psycopg.errors import InFailedSqlTransaction
        from psycopg.pq import TransactionStatus

        with self._django_errors():
            connection = self.connection
            if self._direct is not None and not self.in_transaction():
                with self._direct.transaction():
                    yield
            else:
                with connection.transaction():
                    yield
                    if connection.info.transaction_status == TransactionStatus.INERROR:
                        # Somebody passed over an error. psycopg would ask for a commit, and not hear that it is none.
                        raise InFailedSqlTransaction("A statement of the transaction failed: it is rolled back.")

    def at_once(self, *requests: Request, meanwhile: Callable[[list[list[Row]]], None]) -> None:
        """
        A transaction of these, where none is open: each sees what those before it have done, and nobody waits for the
        answer to one before the next one is sent. ``meanwhile`` hears what they have returned, before it is certain
        that they are committed. If any of them fails, nothing was done.
        """
        with self._django_errors():
            # The connection first: it says how one speaks with it.
            if not self.connection.closed and self._direct is not None:
                spoken = [(name, statement("postgres", name), params) for name, params in requests]
                self._direct.at_once(spoken, meanwhile)
                return
        with self.transaction():
            answers = [self.rows(name, params) for name, params in requests]
        meanwhile(answers)

    def step(self) -> AbstractContextManager[None]:
        """One statement, which needs no transaction round it unless one is open already."""
        return self.transaction() if self.in_transaction() else nullcontext()

    def in_transaction(self) -> bool:
        """Whether what is done here commits only when somebody else says so."""
        from psycopg.pq import TransactionStatus

        with self._django_errors():
            return self.connection.info.transaction_status != TransactionStatus.IDLE

    def is_repeatable(self) -> None:
        """Should the server lose what the present transaction does, somebody will do it again."""
        if self._direct is not None:
            self._direct.is_repeatable = True

    def keeps_its_server(self) -> bool:
        """Whether each transaction meets the same process of the server: no pooler, or one that pools per session."""
        with self._django_errors():
            if not preparing.is_pooled(self.connection):
                return True
            other = PostgresSession(self.alias)
            try:
                return all(self._meets_again(other) for _ in range(AFFINITY_TRIALS))
            finally:
                other.close()

    def _meets_again(self, other: "PostgresSession") -> bool:
        """Whether our next transaction meets the process of the one before, while ``other`` is in one, too."""
        first = preparing.server_of(self.connection)
        with other.transaction():
            # What is free between two transactions of ours is likely to be given to this one.
            taken = preparing.server_of(other.connection)
            return taken != first and preparing.server_of(self.connection) == first

    def listen(self, channel: str) -> None:
        """Hear what is rung on ``channel`` from now on."""
        from psycopg import sql

        with self._django_errors():
            self.connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    def heard(self, seconds: float = 0) -> list[str]:
        """What was rung, waiting up to ``seconds`` for the first of it."""
        with self._django_errors():
            if not seconds:
                return list(self._arrived())
            return [notification.payload for notification in self.connection.notifies(timeout=seconds, stop_after=1)]

    def _arrived(self) -> Iterator[str]:
        # Through libpq: psycopg's own way waits, if only for no time, and that costs a third of a pickup.
        link = self.connection.pgconn
        link.consume_input()
        while (notification := link.notifies()) is not None:
            yield notification.extra.decode()

    def fileno(self) -> int | None:
        """The descriptor that becomes readable when something arrives."""
        connection = self._connection
        return None if connection is None or connection.closed else connection.fileno()

    def _django_errors(self) -> AbstractContextManager[None]:
        """Callers meet ``django.db`` exceptions here as everywhere else in a Django project."""
        if self._errors is None:
            # Kept: to find Django's connection of a thread takes longer than all else that is not the statement.
            self._errors = connections[self.alias].wrap_database_errors
        return self._errors

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._let_go()

    # -- for another thread, which sees to it that nobody waits for ever -------------------------

    def looks_waiting(self) -> int:
        """How many looks in a row, this one included, have found it waiting for the same answer, beyond the first."""
        wire, direct = self._wire, self._direct
        if wire is None or wire[0].pgconn.transaction_status != _ACTIVE:
            self._waiting_for = None
            return 0
        waits_for = wire[0], self._said, direct.said if direct else 0
        self._looks = self._looks + 1 if waits_for == self._waiting_for else 0
        self._waiting_for = waits_for
        return self._looks

    def cut(self) -> None:
        """Whoever waits for an answer meets a lost connection."""
        if (wire := self._wire) is not None:
            with suppress(OSError):
                wire[1].shutdown(socket.SHUT_RDWR)

    def _let_go(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire[1].close()


_sessions: "WeakSet[PostgresSession]" = WeakSet()


def sessions() -> list[PostgresSession]:
    """Those of this process, whichever thread has them."""
    while True:
        try:
            return list(_sessions)
        except RuntimeError:
            # Another thread has made one meanwhile.
            continue


def own_session(alias: str = DEFAULT_DB_ALIAS, *, interruptible: bool = False) -> PostgresSession | DjangoSession:
    """A session on a connection that nobody else uses, whatever the calling thread's is doing."""
    shared = connections[alias]
    if dialect_of(shared).name == "postgres":
        return PostgresSession(alias, interruptible=interruptible)
    return DjangoSession(alias, shared.copy(alias))


@contextmanager
def _read_committed(alias: str) -> Iterator[None]:
    """
    A transaction of ours alone on the application's connection, whose isolation level is for the application's. It
    travels with BEGIN, and holds for nothing else.
    """
    from psycopg import IsolationLevel

    wrapper: Any = connections[alias]
    wrapper.ensure_connection()
    driver = wrapper.connection
    usual = driver.isolation_level
    driver.isolation_level = IsolationLevel.READ_COMMITTED
    try:
        with transaction.atomic(using=alias):
            yield
    finally:
        if not driver.closed:
            driver.isolation_level = usual


@contextmanager
def _atomic_on(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """``transaction.atomic`` for a connection to SQLite that is in no handler."""
    connection.ensure_connection()
    driver: Any = connection.connection
    undo: tuple[str, ...]
    if driver.in_transaction:
        begin, commit, undo = "SAVEPOINT manta", "RELEASE manta", ("ROLLBACK TO manta", "RELEASE manta")
    else:
        begin, commit, undo = "BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",)
    with connection.cursor() as cursor:
        cursor.execute(begin)
        try:
            yield
            # A deferred constraint speaks up here, and SQLite then leaves the transaction open.
            cursor.execute(commit)
        except BaseException:
            # After some errors SQLite has rolled back by itself.
            for each in undo if driver.in_transaction else ():
                cursor.execute(each)
            raise
