"""PostgreSQL as people have it: a server that compiles statements (JIT), and a pooler before it (PgBouncer)."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection

from scripts.debian import Missing
from tests.poolers import pgbouncer

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

ROOT = Path(__file__).parent.parent

type Pooled = Callable[[str], dict[str, str]]


@pytest.fixture
def pooled(transactional_db: None, subprocess_environment: dict[str, str]) -> Iterator[Pooled]:
    """The environment of processes that reach the test's database through a pooler of that mode."""
    with ExitStack() as poolers:

        def through(mode: str) -> dict[str, str]:
            try:
                url = poolers.enter_context(pgbouncer(os.environ["DATABASE_URL"], mode=mode))
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
