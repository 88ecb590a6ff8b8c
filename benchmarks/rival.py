"""
django-tasks-db draining no-ops with two workers: what people run now.

It is given every advantage that its users could have: workers that keep their connections (by
Django's default it would open two for each run), look for work a hundred times a second, and log
nothing. They live for one drain, so that they disturb nobody else's.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

from django.db import connections, transaction

from benchmarks import scratch
from benchmarks.working import ROOT, Trouble, command

SETTINGS = "benchmarks.rival_settings"
WORKERS = 2

#: As its enqueue leaves them. ``run_after`` is its word for "at once".
_FILL = """
INSERT INTO django_tasks_database_dbtaskresult (
    id, status, args_kwargs, priority, task_path, worker_ids, queue_name, backend_name, enqueued_at, run_after,
    exception_class_path, traceback
)
SELECT
    gen_random_uuid(), 'READY',
    format('{"args": ["media/2026/11/%%s.jpg", 640, 480], "kwargs": {"quality": 85}}', to_char(number, 'FM00000000'))
        ::jsonb,
    0, 'benchmarks.rival_tasks.resize', '[]', 'default', 'default', statement_timestamp(), '9999-01-01 00:00:00+00',
    '', ''
FROM generate_series(1, %(count)s) AS number
"""

_IDLE = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

_UNFINISHED = "SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE finished_at IS NULL"

_OUTCOME = """
SELECT count(*) FILTER (WHERE status = 'SUCCESSFUL'), max(finished_at)
FROM django_tasks_database_dbtaskresult
"""


@contextmanager
def database() -> Iterator[None]:
    """Its scratch database, migrated."""
    with scratch.bare_database("rival"):
        subprocess.run(
            [sys.executable, "-m", "django", "migrate", "--verbosity", "0"],
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS},
            check=True,
        )
        yield


def drain(count: int) -> float:
    """Seconds from the commit of ``count`` runs to the end of the last."""
    _execute("TRUNCATE django_tasks_database_dbtaskresult")
    _execute("CHECKPOINT")
    flags = ("--interval", "0.01", "--no-startup-delay", "--verbosity", "0")
    with ExitStack() as stack:
        workers = [stack.enter_context(command("db_worker", *flags, settings=SETTINGS)) for _ in range(WORKERS)]
        workers[0].wait_for(lambda: _number(_IDLE) >= WORKERS, "both workers of django-tasks-db look for work")
        with transaction.atomic(using="rival"):
            with connections["rival"].cursor() as cursor:
                cursor.execute(_FILL, {"count": count})
            _execute("ANALYZE django_tasks_database_dbtaskresult")
        # By the clock of this machine, which is also that of its workers, who write finished_at.
        committed = datetime.now(UTC)
        workers[0].wait_for(lambda: not _number(_UNFINISHED), "django-tasks-db has drained its runs", every=0.1)
    [[successful, finished]] = _rows(_OUTCOME)
    if successful != count:
        raise Trouble(f"Of {count} runs of django-tasks-db {successful} succeeded.")
    return float((finished - committed).total_seconds())


def _execute(statement: str) -> None:
    scratch.execute(statement, "rival")


def _rows(query: str) -> list[tuple[Any, ...]]:
    with connections["rival"].cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def _number(query: str) -> int:
    [[value]] = _rows(query)
    return int(value)
