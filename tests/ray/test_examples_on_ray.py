"""The examples that use Ray work as a reader would run them: as processes of their own, on a real database."""

import contextlib
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.ray.clusters import SLOW_SECONDS
from tests.test_examples import DEMO, ROOT, processes_of

SCORE = ROOT / "examples" / "scoring" / "manage.py"

pytestmark = pytest.mark.postgres  # minutes, for the same Ray


def run(environment: dict[str, str], *command: str | Path) -> tuple[subprocess.Popen[str], str, str]:
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            return process, *process.communicate(timeout=2 * SLOW_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise


@pytest.mark.slow
def test_the_demo_on_ray_adopts_what_a_killed_worker_had_and_keeps_what_it_claims(tmp_path: Path) -> None:
    demo, output, errors = run({}, DEMO, "--runner", "ray", "--runs", "40", "--output", tmp_path)

    assert demo.returncode == 0, output + errors
    assert errors == ""
    for sentence in (
        r"Started worker 1, process \d+: manage\.py manta worker --runner ray",
        r"SIGTERM to worker 1, process \d+, as in a deploy: it left \d+\.\d\d s later, exit code 0\.",
        r"SIGKILL to worker 2, process \d+, in the middle of a run that writes 5,000 rows\.",
        r"holds   Worker 2 was killed\. What it had on Ray went on, [1-9]\d* runs: .* none was lost\.",
        r"holds   The tasks' code was started (\d+) times, once for each of \1 attempts\.",
    ):
        assert re.search(f"^  {sentence}", output, re.MULTILINE), f"{sentence}\n{output}"
    assert "11 atomic runs left 6,000 rows, each exactly once" in output
    assert output.count("  holds   ") == 12
    assert "BROKEN" not in output
    assert not processes_of(demo.pid)  # Ray's own included


@pytest.fixture
def scratch() -> Iterator[str]:
    """The URL of an empty database, on the server of the tests."""
    server = os.environ["DATABASE_URL"]
    name = f"manta_scoring_{secrets.token_hex(4)}"

    def tell(command: str) -> None:
        with psycopg.connect(server, autocommit=True) as told:
            told.execute(command.encode())

    tell(f"CREATE DATABASE {name}")
    yield urlsplit(server)._replace(path=f"/{name}").geturl()
    with contextlib.suppress(psycopg.Error):
        tell(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.slow
def test_a_model_is_loaded_once_by_each_process_that_scores_with_it(cluster: Any, scratch: str) -> None:
    environment = {"DATABASE_URL": scratch, "SCORING_RAY": cluster.address}

    scoring, output, errors = run(environment, SCORE, "score", "--rows", "600", "--batch", "30")

    assert scoring.returncode == 0, output + errors
    assert "20 batches of up to 30 reviews are enqueued." in output
    assert "600 reviews in 20 batches, mean score 0." in output
    told = re.search(r"(\d+) processes on Ray loaded the model (\d+) times in all\.", output)
    assert told, output
    processes, loads = map(int, told.groups())
    assert 1 <= loads <= processes < 20
