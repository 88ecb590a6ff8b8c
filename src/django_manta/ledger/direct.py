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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.errors import DataError, InFailedSqlTransaction, error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format, version
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from django_manta.ledger import sending
from django_manta.ledger.preparing import numbered

#: What is claimed is read with its moments and its id as PostgreSQL keeps them: microseconds since the year 2000, and
#: sixteen bytes, which can be sorted.
_CLAIMS = frozenset({"claim", "claim_line", "claim_behind"})

#: A statement, its words and its values.
type Spoken = tuple[str, str, Mapping[str, Any]]

type Rows = list[tuple[Any, ...]]

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
        self._claim_reader = Transformer(_AsKept(connection))
        #: The order in which a statement takes its values.
        self._orders: dict[str, tuple[bytes, list[str]]] = {}
        self._attempts = 0
        #: How often something was asked, or an answer came: whoever waits sees whether it is for the same one.
        self.said = 0
        self._arrival, self._room = select.poll(), select.poll()
        self._arrival.register(self._link.socket, select.POLLIN)
        self._room.register(self._link.socket, select.POLLIN | select.POLLOUT)
        #: What is done in the present transaction can be lost with the server: somebody would do it again.
        self.is_repeatable = False

    def rows(self, name: str, text: str, params: Mapping[str, Any]) -> Rows:
        """What the statement returns, if anything. When ``name`` is first heard of, it is prepared."""
        label, values = self._bound(name, text, params)
        with sending.blocking(self._link) if sending.are_large(values) else nullcontext():
            result = self._link.exec_prepared(label, values, result_format=Format.BINARY)
        return self._read(name, result)

    def _bound(self, name: str, text: str, params: Mapping[str, Any]) -> tuple[bytes, list[Any]]:
        """The name of the prepared statement, and its values."""
        self.said += 1
        if (known := self._orders.get(name)) is None:
            known = self._orders[name] = self._prepare(name, text)
        label, order = known
        return label, [_text(params[key]) for key in order]

    def _read(self, name: str, result: PGresult) -> Rows:
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
    def transaction(self) -> Iterator[None]:
        """All or nothing, where no transaction is open yet."""
        self._say(b"BEGIN")
        try:
            self.is_repeatable = False
            yield
            # Without waiting for the disk, which takes longer than all the rest of a short transaction.
            ended = self._say(b"SET LOCAL synchronous_commit = off; COMMIT" if self.is_repeatable else b"COMMIT")
            if ended != b"COMMIT":
                # Somebody passed over an error of a statement, and all of it is undone; the server calls that no error.
                raise InFailedSqlTransaction("A statement of the transaction failed: it was rolled back.")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        # Where the connection is gone, so is the transaction.
        with suppress(psycopg.Error):
            self._link.exec_(b"ROLLBACK")

    # -- all at once -----------------------------------------------------------------------------

    def at_once(self, spoken: Sequence[Spoken], meanwhile: Callable[[list[Rows]], None]) -> None:
        """
        A transaction of these, sent with its beginning and its end: nobody waits for the answer to one before the next
        is sent (libpq's pipeline). ``meanwhile`` hears what they have returned while the disk works on the commit,
        whose fate is not known then; what it raises is raised when that is.
        """
        bound = [self._bound(*each) for each in spoken]
        weight = sum(len(value or b"") for _, values in bound for value in values)
        if not _HAS_PIPELINE or weight > _LIGHT_BYTES:
            with self.transaction():
                answers = [self.rows(*each) for each in spoken]
            meanwhile(answers)
            return
        begin, commit = self._bound("begin", "BEGIN", {}), self._bound("commit", "COMMIT", {})
        link = self._link
        link.enter_pipeline_mode()
        try:
            for label, values in (begin, *bound):
                link.send_query_prepared(label, values, result_format=Format.BINARY)
            # So that the server tells what they have returned before it waits for the disk.
            link.send_flush_request()
            link.send_query_prepared(*commit)
            link.pipeline_sync()
            self._send_all()
            answered = [self._answer() for _ in range(1 + len(bound))]
            # If one has failed, those after it were not executed, and neither is the commit.
            failed = next((each for each in answered if not _is_well(each)), None)
            trouble: Exception | None = None
            if failed is None:
                try:
                    meanwhile([self._read(name, each) for (name, _, _), each in zip(spoken, answered[1:], strict=True)])
                except Exception as error:
                    trouble = error
            committed = self._answer()
            # The end of the pipeline.
            self._next_result()
        finally:
            # Refused where the connection is gone in the middle of it; then nobody uses it any more.
            with suppress(psycopg.Error):
                link.exit_pipeline_mode()
        if failed is not None or not _is_well(committed):
            refusal = self._error(failed or committed)
            self._roll_back()
            raise refusal
        if trouble is not None:
            raise trouble

    def _answer(self) -> PGresult:
        """What the server says to the next statement of a pipeline. None stands after each."""
        result = self._next_result()
        self.said += 1
        assert result is not None
        self._next_result()
        return result

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
        self.said += 1
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


class _AsKept:
    """How a connection reads rows, but for dates, which stay numbers, and ids, which stay bytes."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self.connection = connection
        self.adapters = AdaptersMap(connection.adapters)
        self.adapters.register_loader("timestamptz", Int8BinaryLoader)
        self.adapters.register_loader("uuid", ByteaBinaryLoader)


def _is_well(result: PGresult) -> bool:
    return result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


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
