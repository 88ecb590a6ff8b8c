"""PostgreSQL as people have it: a server that compiles statements (JIT), and a pooler before it (PgBouncer)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection

from scripts.debian import Missing
from tests.app import tasks
from tests.poolers import pgbouncer
from tests.worker.conftest import Start, ended, start_worker, wait_for

__all__ = ["start_worker"]

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    # Only one of them installs what is missing.
    pytest.mark.xdist_group("servers"),
]

ROOT = Path(__file__).parent.parent

#: Connections to the server that a pooler has: enough for one worker that keeps each of its own.
SIZE = 12

type Pooled = Callable[[str], dict[str, str]]


@pytest.fixture
def pooled(transactional_db: None, subprocess_environment: dict[str, str]) -> Iterator[Pooled]:
    """The environment of processes that reach the test's database through a pooler of that mode."""
    with ExitStack() as poolers:

        def through(mode: str) -> dict[str, str]:
            try:
                url = poolers.enter_context(pgbouncer(os.environ["DATABASE_URL"], mode=mode, size=SIZE))
            except Missing as missing:
                pytest.skip(str(missing))
            parts = urlsplit(url)._replace(path=f"/{connection.settings_dict['NAME']}")
            return {**subprocess_environment, "DATABASE_URL": parts.geturl()}

        yield through


def doctor(environment: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """What the doctor of a process with that environment finds, by check."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.manage", "manta", "doctor", "--format", "json"],
        cwd=ROOT,
        env={"DJANGO_SETTINGS_MODULE": "tests.settings", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for line in json.loads(ran.stdout)["checks"]:
        found.setdefault(line["check"], []).append(line)
    return found


def test_the_doctor_warns_of_a_jit_that_workers_cannot_switch_off(
    pooled: Pooled, subprocess_environment: dict[str, str]
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_jit_available()")
        if cursor.fetchall() == [(False,)]:
            pytest.skip("this server cannot compile statements; `make test-debian` has one that does")
    assert [line["status"] for line in doctor(subprocess_environment)["database"]] == ["ok"]
    [_, line] = doctor(pooled("transaction"))["database"]
    assert line["status"] == "warning"
    assert "(JIT)" in line["message"]
    assert "SET jit = off" in line["remedy"]


# -- a pooler ----------------------------------------------------------------------------------------


def listening(url: str, size: int) -> list[str]:
    """What the server's connections that a pooler hands out per transaction listen to: all of them are asked."""
    with ExitStack() as stack:
        clients = [stack.enter_context(psycopg.connect(url)) for _ in range(size)]
        # None of them gives back what it has before the last one was asked.
        asked = [client.execute("SELECT pg_backend_pid(), ARRAY(SELECT pg_listening_channels())") for client in clients]
        rows = [cursor.fetchall()[0] for cursor in asked]
    assert len({pid for pid, _ in rows}) == size
    return [channel for _, channels in rows for channel in channels]


def test_nobody_is_left_listening_in_a_pooler_that_hands_out_connections_per_transaction(
    pooled: Pooled, start_worker: Start
) -> None:
    """An enqueue there would receive what it has rung itself, again and again, and keep it."""
    environment = pooled("transaction")
    [line] = doctor(environment)["doorbell"]
    assert line["status"] == "warning"
    worker = start_worker(environment=environment).ready()
    results = [tasks.add.enqueue(1, number) for number in range(3)]
    ended(*results, worker=worker)
    assert [result.return_value for result in results] == [1, 2, 3]
    assert any("polling once a second" in line for line in worker.lines())
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.tell()
    assert listening(environment["DATABASE_URL"], SIZE) == []


def test_the_doorbell_is_heard_through_a_pooler_that_hands_out_connections_per_session(
    pooled: Pooled, start_worker: Start
) -> None:
    environment = pooled("session")
    [line] = doctor(environment)["doorbell"]
    assert line["status"] == "ok"
    worker = start_worker(environment=environment).ready()
    wait_for(lambda: any("doorbell: listen" in line for line in worker.lines()), 30, worker.tell)
    ended(tasks.add.enqueue(1, 1), worker=worker)
