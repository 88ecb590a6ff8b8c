"""The limit of any queue in this database: the same rows claimed and settled by one connection, hundreds at a time."""

import time
from collections.abc import Callable
from typing import Any

import psycopg
from django.db import connection

from benchmarks.peers import database
from benchmarks.peers.measures import FIRST, Sample, Sizes

SETTINGS: dict[str, Any] = {
    "INSTALLED_APPS": ["django_manta"],
    "TASKS": {"default": {"BACKEND": "django_manta.MantaBackend"}},
}

#: How many rows are claimed and settled at once; the best of these counts.
BATCHES = (100, 250, 500)

NOTE = (
    "One psycopg connection that claims and settles rows of our own table with two prepared statements, and executes "
    f"nothing: the best of {', '.join(map(str, BATCHES[:-1]))} and {BATCHES[-1]} rows at a time. "
    "Its enqueue is a plain INSERT, its bulk enqueue a COPY of rows encoded beforehand."
)

COLUMNS = ("id", "task", "backend", "queue", "state", "arguments", "signature", "metadata", "enqueued_at", "deadline")

INSERT = f"INSERT INTO manta_run ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"


def measures(sizes: Sizes) -> dict[str, Callable[[], Sample]]:
    known: dict[str, Callable[[], Sample]] = {
        "enqueue": lambda: enqueue(sizes.enqueue),
        "bulk": lambda: bulk(sizes.bulk),
        "drain": lambda: drain(sizes.drain, sizes.drain),
        "statements": lambda: statements(sizes.statements),
    }
    return known | {f"backlog_{size}": _backlog(size) for size in sizes.backlogs}


def _backlog(size: int) -> Callable[[], Sample]:
    return lambda: drain(size, FIRST)


def enqueue(count: int) -> Sample:
    rows = _rows(count)
    database.empty("manta_run")
    with _plain() as plain:
        began = time.perf_counter()
        for row in rows:
            plain.execute(INSERT, row, prepare=True)
        return Sample(count / (time.perf_counter() - began))


def bulk(count: int) -> Sample:
    rows = _rows(count)
    database.empty("manta_run")
    with _plain() as plain:
        began = time.perf_counter()
        with plain.cursor() as cursor, cursor.copy(f"COPY manta_run ({', '.join(COLUMNS)}) FROM STDIN") as sink:
            for row in rows:
                sink.write_row(row)
        return Sample(count / (time.perf_counter() - began))


def drain(count: int, most: int) -> Sample:
    def once(batch: int) -> float:
        if _waiting(most) < most:
            _fill(count)
        began = time.perf_counter()
        done = _claim_and_settle(plain, most, batch)
        return done / (time.perf_counter() - began)

    # Of a large backlog each takes its share: to fill another takes longer than all of them.
    _fill(count)
    with _plain() as plain:
        return Sample(max(once(batch) for batch in BATCHES))


def _waiting(most: int) -> int:
    return database.count_rows(f"(SELECT FROM manta_run WHERE state = 'READY' LIMIT {most}) AS waiting")


def statements(count: int) -> Sample:
    _fill(count)
    counter = database.Statements()
    with counter.counted(), _plain() as plain:
        _claim_and_settle(plain, count, max(BATCHES))
    return Sample(counter.count / count)


def _claim_and_settle(plain: psycopg.Connection[Any], most: int, batch: int) -> int:
    from benchmarks.settle import CLAIM, RESULT, SETTLE, WORKER
    from benchmarks.tasks import SIGNATURE

    done = 0
    wanted = {"worker": WORKER, "queue": "default", "limit": batch}
    while done < most and (claims := plain.execute(CLAIM, wanted, prepare=True).fetchall()):
        given = {
            "ids": [claim[0] for claim in claims],
            "tokens": [claim[1] for claim in claims],
            "results": [RESULT] * len(claims),
            "signatures": [SIGNATURE] * len(claims),
        }
        done += plain.execute(SETTLE, given, prepare=True).rowcount
    return done


def _fill(count: int) -> None:
    from benchmarks import scratch

    scratch.fill(count, ["default"])


def _rows(count: int) -> list[tuple[Any, ...]]:
    from datetime import UTC, datetime, timedelta

    from benchmarks.tasks import PLAIN, arguments
    from django_manta.ids import new_run_id
    from django_manta.payload import dump

    now = datetime.now(UTC)
    shared = {**PLAIN, "metadata": "{}", "enqueued_at": now, "deadline": now + timedelta(days=7)}
    given = ({**shared, "id": new_run_id(), "arguments": dump(arguments(number))} for number in range(count))
    return [tuple(row[name] for name in COLUMNS) for row in given]


def _plain() -> psycopg.Connection[Any]:
    params = connection.get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold"):
        params.pop(name, None)
    return psycopg.connect(**params, autocommit=True, prepare_threshold=1)
