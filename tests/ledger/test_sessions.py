"""The two ways to reach the database, beyond the statements that both run."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, DataError, IntegrityError, OperationalError, connection

from django_manta.ledger import Claimed, DjangoSession, Ledger, PostgresSession, own_session
from django_manta.ledger.rows import settlement_rows
from django_manta.ledger.session import dialect_of, statement
from django_manta.states import State
from tests.ledger.given import claimed, enqueue, new_run, settlement, sql, state_of, worker_record


def test_an_own_session_is_a_connection_of_its_own(committed: None) -> None:
    session = own_session()
    try:
        assert session.connection is not connection
        [run_id] = enqueue(Ledger())
        assert state_of(Ledger(session), run_id) is State.READY
    finally:
        session.close()


def test_transactions_nest_and_the_inner_one_can_fail_alone(ledger: Ledger) -> None:
    kept, dropped = new_run(), new_run()

    def fail_inside() -> None:
        with ledger.session.transaction():
            ledger.enqueue([dropped])
            ledger.enqueue([new_run(task=None)])

    with ledger.session.transaction():
        ledger.enqueue([kept])
        with pytest.raises(IntegrityError):
            fail_inside()
        enqueue(ledger)
    assert [run.id for run in ledger.fetch([kept.id, dropped.id])] == [kept.id]


def test_an_unknown_statement_is_named() -> None:
    with pytest.raises(LookupError, match="There is no statement 'wish' for postgres"):
        statement("postgres", "wish")


def test_another_kind_of_database_is_refused_by_name() -> None:
    class Other:
        vendor, alias, display_name = "oracle", "default", "Oracle"

    with pytest.raises(ImproperlyConfigured, match="PostgreSQL or SQLite; database 'default' is Oracle"):
        dialect_of(Other())  # type: ignore[arg-type]


# -- a worker's own connection to PostgreSQL -----------------------------------------------------


@pytest.fixture
def own(committed: None) -> Iterator[Ledger]:
    session = own_session()
    yield Ledger(session)
    session.close()


@pytest.mark.postgres
def test_it_waits_for_nothing_for_long(own: Ledger) -> None:
    [limits] = sql(own, "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')")
    assert limits == ("30s", "5s")
    assert sql(own, "SHOW transaction_isolation") == [("read committed",)]
    assert sql(own, "SHOW TimeZone") == [("UTC",)]


@pytest.mark.postgres
def test_its_transactions_are_read_committed_whatever_the_default_is(own: Ledger) -> None:
    assert isinstance(own.session, PostgresSession)
    sql(own, "ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'serializable'")
    try:
        own.session.close()
        with own.session.transaction():
            assert sql(own, "SHOW transaction_isolation") == [("read committed",)]
    finally:
        sql(own, "ALTER ROLE CURRENT_USER RESET default_transaction_isolation")


class Bang(Exception):
    pass


@pytest.mark.postgres
@pytest.mark.parametrize("interruptible", [False, True])
def test_who_is_interrupted_can_go_on(committed: None, interruptible: bool) -> None:
    """By the signal of a timeout, for example, while somebody holds the table."""

    def bang(*told: object) -> None:
        raise Bang

    holder, session = PostgresSession(), PostgresSession(interruptible=interruptible)
    former = signal.signal(signal.SIGALRM, bang)
    try:
        session.connection.execute("SELECT 1")
        holder.connection.execute("BEGIN")
        holder.connection.execute("LOCK TABLE manta_run IN ACCESS EXCLUSIVE MODE")
        letting_go = threading.Timer(0.6, holder.connection.execute, ["COMMIT"])
        letting_go.start()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Bang):
            Ledger(session).save_metadata(new_run().id, 1, "{}")
        letting_go.join()
        assert not Ledger(session).save_metadata(new_run().id, 1, "{}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        session.close()
        holder.close()


@pytest.mark.postgres
def test_a_connection_that_is_cut_in_a_transaction_takes_only_that_with_it(own: Ledger, other_ledger: Ledger) -> None:
    def cut_inside() -> None:
        with own.session.transaction():
            enqueue(own)
            [[backend]] = sql(own, "SELECT pg_backend_pid()")
            sql(other_ledger, "SELECT pg_terminate_backend(%s, 5000)", [backend])

    with pytest.raises(OperationalError):
        cut_inside()
    assert own.ready_queues() == []


@pytest.mark.postgres
def test_its_statements_are_prepared_and_bound_on_the_server(own: Ledger) -> None:
    for _ in range(3):
        own.claim("worker", ["default"], 1)
    prepared = [text for (text,) in sql(own, "SELECT statement FROM pg_prepared_statements")]
    assert any("FOR NO KEY UPDATE SKIP LOCKED" in text and "$1" in text for text in prepared)


@pytest.mark.postgres
def test_any_name_can_be_claimed_from(own: Ledger) -> None:
    """The values of a claim are put into text here, not by psycopg."""
    for name in ["", 'a "queue"', "C:\\temp\\", "{a,b}", "NULL", "Zürich, 東京", "it's", "$1 %s %(worker)s"]:
        [run_id] = enqueue(own, queue=name)
        assert [claim.id for claim in own.claim(name, [name], 1)] == [run_id]
        [run_id] = enqueue(own, queue=name)
        assert own.claim(name, [name], 1, not_tasks=["tests.app.tasks.add", name]) == []
        [claim] = own.claim(name, [name, "other"], 1, not_tasks=[name], horizon=1e9)
        assert (claim.id, claim.queue, claim.worker) == (run_id, name, name)


@pytest.mark.postgres
def test_what_postgresql_cannot_hold_is_refused_not_cut_short(own: Ledger) -> None:
    enqueue(own, queue="de")
    with pytest.raises(DataError, match="NUL"):
        own.claim("worker", ["de\0fault"], 1)


@pytest.mark.postgres
def test_a_statement_is_prepared_anew_where_its_connection_is_another(own: Ledger) -> None:
    assert isinstance(own.session, PostgresSession)
    for _ in range(2):
        [run_id] = enqueue(own)
        [claim] = own.claim("worker", ["default"], 1)
        assert own.settle([settlement(claim)], "worker").moved
        assert state_of(own, run_id) is State.SUCCESSFUL
        own.session.close()


def test_a_claim_returns_the_same_from_one_queue_and_from_several() -> None:
    """Column by column: what is claimed is read by place."""
    names = ("claim", "claim_line", "claim_behind")
    [returned] = {statement("postgres", name).partition("RETURNING")[2] for name in names}
    assert returned


# claim.sql is longer. To convert it takes 35 µs, each time, of workers with several queues behind a pooler only.
@pytest.mark.parametrize(
    "name", ["claim_line", "claim_behind", "settle", "settle_well", "tell_own", "enqueue", "enqueue_plain"]
)
@pytest.mark.postgres
def test_what_is_said_often_is_short_enough_for_psycopg_to_remember(name: str) -> None:
    from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

    assert len(statement("postgres", name)) <= MAX_CACHED_STATEMENT_LENGTH


@pytest.mark.postgres
def test_it_connects_again_when_its_connection_was_cut(own: Ledger, other_ledger: Ledger) -> None:
    [run_id] = enqueue(own)
    [[backend]] = sql(own, "SELECT pg_backend_pid()")
    sql(other_ledger, "SELECT pg_terminate_backend(%s)", [backend])
    with pytest.raises(OperationalError):
        own.claim("worker", ["default"], 1)
    [claim] = own.claim("worker", ["default"], 1)
    assert claim.id == run_id


@pytest.mark.postgres
def test_it_can_be_closed_and_used_again(own: Ledger) -> None:
    assert isinstance(own.session, PostgresSession)
    own.session.close()
    own.session.close()
    assert own.ready_queues() == []


@pytest.mark.sqlite
def test_an_own_session_on_sqlite_is_a_copy_of_djangos(own: Ledger) -> None:
    assert isinstance(own.session, DjangoSession)
    assert own.session.connection.settings_dict["NAME"] == connection.settings_dict["NAME"]


@pytest.mark.postgres
def test_a_commit_that_fails_leaves_no_transaction_open(own: Ledger) -> None:
    """Also where two things are said at once, and the first of them fails."""
    with pytest.raises(DatabaseError), own.session.transaction():
        own.session.is_repeatable()
        with pytest.raises(DatabaseError):
            sql(own, "SELECT 1 / 0")
    assert not own.session.in_transaction()
    assert own.next_due() is None


# -- a transaction that is sent at once ----------------------------------------------------------


def at_once(ledger: Ledger, *requests: tuple[str, dict[str, Any]]) -> list[list[tuple[Any, ...]]]:
    """What was returned, as one is told before it is certain that it is committed."""
    heard: list[list[tuple[Any, ...]]] = []
    ledger.session.at_once(*requests, meanwhile=heard.extend)
    return heard


def test_the_statements_of_a_transaction_are_answered_in_their_order(ledger: Ledger) -> None:
    runs = enqueue(ledger, count=2)
    asked = [("states", {"ids": ledger.dialect.listing([run_id.hex])}) for run_id in runs]
    assert [ledger.dialect.read_id(rows[0][0]) for rows in at_once(ledger, *asked)] == runs


@pytest.mark.postgres
def test_each_sees_what_those_before_it_have_done(own: Ledger) -> None:
    claim = _claimed(own)
    moved, states = at_once(own, _settling(claim), ("states", {"ids": [claim.id.hex]}))
    assert len(moved) == 1
    assert states == [(claim.id, "SUCCESSFUL")]
    assert not own.session.in_transaction()
    assert state_of(own, claim.id) is State.SUCCESSFUL


@pytest.mark.postgres
@pytest.mark.parametrize("bad_one", [0, 1])
def test_if_one_of_them_fails_nothing_was_done_and_the_connection_is_as_it_was(own: Ledger, bad_one: int) -> None:
    claim = _claimed(own)
    name, params = good = _settling(claim)
    requests = [good, good]
    requests[bad_one] = name, {**params, "settlements": "no json"}
    with pytest.raises(DataError, match="json"):
        own.session.at_once(*requests, meanwhile=lambda answers: pytest.fail("it was answered"))
    assert not own.session.in_transaction()
    assert state_of(own, claim.id) is State.RUNNING
    assert own.settle([settlement(claim)], "worker").moved == {claim.token: State.SUCCESSFUL}


@pytest.mark.postgres
def test_a_commit_that_is_refused_is_told_and_leaves_no_transaction_open(own: Ledger) -> None:
    """As by a constraint that is looked at last."""
    claim = _claimed(own)
    sql(own, "CREATE TABLE late (id integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    sql(
        own,
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO late VALUES (1), (1); RETURN NEW; END'",
    )
    sql(own, "CREATE TRIGGER late BEFORE UPDATE ON manta_run FOR EACH ROW EXECUTE FUNCTION late()")
    try:
        with pytest.raises(IntegrityError, match="late"):
            at_once(own, _settling(claim))
        assert not own.session.in_transaction()
        assert state_of(own, claim.id) is State.RUNNING
    finally:
        sql(own, "DROP FUNCTION late CASCADE")
        sql(own, "DROP TABLE late")
    assert at_once(own, _settling(claim)) != [[]]


@pytest.mark.postgres
def test_who_hears_of_it_and_fails_keeps_nothing_from_being_committed(own: Ledger) -> None:
    claim = _claimed(own)

    def fail(answers: list[Any]) -> None:
        raise LookupError("of no use")

    with pytest.raises(LookupError, match="of no use"):
        own.session.at_once(_settling(claim), meanwhile=fail)
    assert not own.session.in_transaction()
    assert state_of(own, claim.id) is State.SUCCESSFUL


@pytest.mark.postgres
def test_what_weighs_much_is_sent_one_by_one(own: Ledger) -> None:
    claim = _claimed(own)
    result = '"' + "x" * 2**20 + '"'
    _, states = at_once(own, _settling(claim, result=result), ("states", {"ids": [claim.id.hex]}))
    assert states == [(claim.id, "SUCCESSFUL")]
    assert own.fetch([claim.id])[0].result == result


@pytest.mark.postgres
def test_what_the_socket_does_not_take_at_once_is_sent_all_the_same(own: Ledger) -> None:
    """As on a slow way to another host. Nobody would ever answer to a half of it."""
    claim = _claimed(own)
    assert isinstance(own.session, PostgresSession)
    with socket.socket(fileno=os.dup(own.session.connection.fileno())) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    result = '"' + "x" * 14_000 + '"'
    _, states = at_once(own, _settling(claim, result=result), ("states", {"ids": [claim.id.hex]}))
    assert states == [(claim.id, "SUCCESSFUL")]
    assert own.fetch([claim.id])[0].result == result


@pytest.mark.postgres
def test_an_old_libpq_is_asked_one_by_one(own: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_manta.ledger.direct._HAS_PIPELINE", False)
    claim = _claimed(own)
    _, states = at_once(own, _settling(claim), ("states", {"ids": [claim.id.hex]}))
    assert states == [(claim.id, "SUCCESSFUL")]


@pytest.mark.postgres
def test_a_connection_that_ends_in_the_middle_of_them_says_so(own: Ledger, other_ledger: Ledger) -> None:
    claim = _claimed(own)
    [[pid]] = sql(own, "SELECT pg_backend_pid()")
    settle = _settling(claim)
    with other_ledger.session.transaction():
        sql(other_ledger, "LOCK TABLE manta_attempt IN ACCESS EXCLUSIVE MODE")
        ending = threading.Timer(0.3, lambda: _end(pid))
        ending.start()
        with pytest.raises(OperationalError):
            own.session.at_once(settle, settle, meanwhile=lambda answers: pytest.fail("it was answered"))
        ending.join()
    own.session.close()  # type: ignore[attr-defined]
    assert state_of(own, claim.id) is State.RUNNING
    assert own.settle([settlement(claim)], "worker").moved == {claim.token: State.SUCCESSFUL}


@pytest.mark.postgres
def test_other_threads_go_on_while_their_answers_are_waited_for(own: Ledger, other_ledger: Ledger) -> None:
    claim = _claimed(own)
    holding = other_ledger.session.transaction()
    holding.__enter__()
    sql(other_ledger, "LOCK TABLE manta_attempt IN ACCESS EXCLUSIVE MODE")
    # A thread that could not go on would never let go, until the settlement has waited for as long as it may.
    letting_go = threading.Timer(0.3, lambda: holding.__exit__(None, None, None))
    letting_go.start()
    [moved] = at_once(own, _settling(claim))
    assert len(moved) == 1
    letting_go.join()
    assert state_of(own, claim.id) is State.SUCCESSFUL


def _claimed(ledger: Ledger) -> Claimed:
    ledger.register(worker_record())
    [claim] = claimed(ledger)
    return claim


def _settling(claim: Claimed, **changes: Any) -> tuple[str, dict[str, Any]]:
    rows = settlement_rows([settlement(claim, **changes)])
    return "settle", {"settlements": rows, "worker": "worker", "recovering": False, "quietly": False}


def _end(pid: int) -> None:
    session = own_session()
    sql(Ledger(session), "SELECT pg_terminate_backend(%s, 5000)", [pid])
    session.close()
