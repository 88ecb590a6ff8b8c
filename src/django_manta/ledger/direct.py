"""
A worker's statements, spoken to libpq without a cursor.

A cursor finds out anew for each execution what its values are and whether the statement is worth
preparing. That is a fifth of the time of a claim, and more than a quarter in a process that has just been
woken, where each line of Python costs three times as much.

Here a statement is prepared when it is first used, its values travel as text, and the server knows
from the statement what they are. psycopg prepares nothing on such a connection: after a rollback it would
have the server forget all that is prepared there, ours as well.
"""

import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.errors import DataError, InFailedSqlTransaction, error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format, version
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8BinaryLoader

from django_manta.ledger.preparing import numbered

#: What is claimed is read with its moments as PostgreSQL keeps them: microseconds since the year 2000.
_CLAIMS = frozenset({"claim", "claim_line", "claim_behind"})

#: A statement, its words and its values.
type Spoken = tuple[str, str, Mapping[str, Any]]

#: What is sent at once is no more than this: what takes long to send gains nothing by it.
_LIGHT_BYTES = 16 * 1024

#: Since libpq 14.
_HAS_PIPELINE = version() >= 140_000


class Direct:
    """Prepared statements of one connection that nobody else uses at the same time."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._link = connection.pgconn
        self._encoding = connection.info.encoding
        self._reader = Transformer(connection)
        self._claim_reader = Transformer(_WithoutDates(connection))
        #: The order in which a statement takes its values.
        self._orders: dict[str, tuple[bytes, list[str]]] = {}
        self._attempts = 0
        self._arrival, self._room = select.poll(), select.poll()
        self._arrival.register(self._link.socket, select.POLLIN)
        self._room.register(self._link.socket, select.POLLIN | select.POLLOUT)
        #: What is done in the present transaction can be lost with the server: somebody would do it again.
        self.is_repeatable = False

    def rows(self, name: str, text: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """What the statement returns, if anything. When ``name`` is first heard of, it is prepared."""
        label, values = self._bound(name, text, params)
        return self._read(name, self._link.exec_prepared(label, values, result_format=Format.BINARY))

    def _bound(self, name: str, text: str, params: Mapping[str, Any]) -> tuple[bytes, list[Any]]:
        """The name of the prepared statement, and its values."""
        if (known := self._orders.get(name)) is None:
            known = self._orders[name] = self._prepare(name, text)
        label, order = known
        return label, [_text(params[key]) for key in order]

    def _read(self, name: str, result: PGresult) -> list[tuple[Any, ...]]:
        if result.status == ExecStatus.COMMAND_OK:
            return []
        if result.status != ExecStatus.TUPLES_OK:
            raise self._error(result)
        reader = self._claim_reader if name in _CLAIMS else self._reader
        reader.set_pgresult(result)
        try:
            return reader.load_rows(0, result.ntuples, tuple)
        finally:
            # A batch of large rows is not kept until the next one comes.
            reader.set_pgresult(None)

    @contextmanager
    def transaction(self, first: Sequence[Spoken] = ()) -> Iterator[list[list[tuple[Any, ...]]]]:
        """All or nothing, where no transaction is open yet, and what its ``first`` statements return."""
        try:
            self.is_repeatable = False
            yield self._begin(first)
            # Without waiting for the disk, which takes longer than all the rest of a short transaction.
            ended = self._say(b"SET LOCAL synchronous_commit = off; COMMIT" if self.is_repeatable else b"COMMIT")
            if ended != b"COMMIT":
                # Somebody passed over an error of a statement, and all of it is undone; the server calls that no error.
                raise InFailedSqlTransaction("A statement of the transaction failed: it was rolled back.")
        except BaseException:
            # Where the connection is gone, so is the transaction.
            with suppress(psycopg.Error):
                self._link.exec_(b"ROLLBACK")
            raise

    def _begin(self, first: Sequence[Spoken]) -> list[list[tuple[Any, ...]]]:
        bound = [self._bound(*each) for each in first]
        weight = sum(len(value or b"") for _, values in bound for value in values)
        if not bound or not _HAS_PIPELINE or weight > _LIGHT_BYTES:
            self._say(b"BEGIN")
            return [self.rows(*each) for each in first]
        begin, _ = self._bound("begin", "BEGIN", {})
        results = self._at_once([(begin, []), *bound])
        # If one has failed, those after it were not executed.
        for result in results:
            if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                raise self._error(result)
        return [self._read(name, result) for (name, _, _), result in zip(first, results[1:], strict=True)]

    def _at_once(self, bound: Sequence[tuple[bytes, list[Any]]]) -> list[PGresult]:
        """Send these one after the other, then hear the answers: libpq's pipeline."""
        link = self._link
        link.enter_pipeline_mode()
        try:
            for label, values in bound:
                link.send_query_prepared(label, values, result_format=Format.BINARY)
            link.pipeline_sync()
            self._send_all()
            results: list[PGresult] = []
            while (result := self._next_result()) is None or result.status != ExecStatus.PIPELINE_SYNC:
                # None stands between two answers.
                results += [result] if result is not None else []
            return results
        finally:
            # Refused where the connection is gone in the middle of it; then nobody uses it any more.
            with suppress(psycopg.Error):
                link.exit_pipeline_mode()

    def _send_all(self) -> None:
        """What the socket did not take at once; psycopg has libpq wait for nobody."""
        link = self._link
        while link.flush():
            self._room.poll()
            link.consume_input()

    def _next_result(self) -> PGresult | None:
        """As libpq gives it. Waits here, where other threads can go on meanwhile; libpq would keep them from it."""
        link = self._link
        while link.is_busy():
            self._arrival.poll()
            link.consume_input()
        if link.status == ConnStatus.BAD:
            raise psycopg.OperationalError(link.get_error_message(self._encoding))
        return link.get_result()

    def _say(self, command: bytes) -> bytes | None:
        result = self._link.exec_(command)
        if result.status != ExecStatus.COMMAND_OK:
            raise self._error(result)
        return result.command_status

    def _error(self, result: PGresult) -> psycopg.Error:
        if self._link.status == ConnStatus.BAD:
            # There was nobody who could say what is wrong, and so it has no code.
            return psycopg.OperationalError(result.get_error_message(self._encoding))
        return error_from_result(result, self._encoding)

    def _prepare(self, name: str, text: str) -> tuple[bytes, list[str]]:
        words, order = numbered(text)
        # A name of its own for each attempt: one that was interrupted may have come to its end on the server.
        self._attempts += 1
        label = f"manta_{name}_{self._attempts}".encode()
        result = self._link.prepare(label, words.encode())
        if result.status != ExecStatus.COMMAND_OK:
            raise self._error(result)
        return label, order


class _WithoutDates:
    """How a connection reads rows, but for dates, which stay numbers."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self.connection = connection
        self.adapters = AdaptersMap(connection.adapters)
        self.adapters.register_loader("timestamptz", Int8BinaryLoader)


def _text(value: Any) -> bytes | None:
    """A value as PostgreSQL reads it: text, numbers, booleans, moments, and lists of texts."""
    if value is None:
        return None
    if isinstance(value, str):
        data = value.encode()
    elif isinstance(value, bool):
        data = b"t" if value else b"f"
    elif isinstance(value, list):
        data = _listed(value).encode()
    else:
        data = str(value).encode()
    if b"\0" in data:
        # libpq would take what comes before it for the whole.
        raise DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return data


def _listed(values: list[str]) -> str:
    quoted = [value.replace("\\", r"\\").replace('"', r"\"") for value in values]
    return '{"' + '","'.join(quoted) + '"}' if quoted else "{}"
