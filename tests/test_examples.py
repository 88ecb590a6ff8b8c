"""The examples work as a reader would run them: as processes of their own, on a real database."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import DATABASE

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "examples" / "demo.py"
PROJECTS = ("montecarlo", "scoring")

type Environment = dict[str, str]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """Where the demo finds a server to make its scratch database on, or a folder to make it in."""
    kept = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    if DATABASE == "sqlite":
        kept["DATABASE_URL"] = f"sqlite:///{tmp_path / 'scratch' / 'db.sqlite3'}"
    return kept | {"FORCE_COLOR": "1"}


@pytest.fixture
def scratch_databases(environment: Environment, tmp_path: Path) -> Callable[[int], list[str]]:
    """Lists the scratch databases of a process."""

    def of(pid: int) -> list[str]:
        if DATABASE == "sqlite":
            return [file.name for file in (tmp_path / "scratch").glob(f"manta_demo_{pid}_*")]
        import psycopg

        with psycopg.connect(environment["DATABASE_URL"]) as connection:
            found = connection.execute("SELECT datname FROM pg_database").fetchall()
        return [name for (name,) in found if name.startswith(f"manta_demo_{pid}_")]

    return of


def run(environment: Environment, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_the_demo_executes_its_runs_and_keeps_what_it_claims(environment: Environment, tmp_path: Path) -> None:
    done = run(environment, DEMO, "--runs", "40", "--output", tmp_path / "out")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert f"38 runs enqueued in {'SQLite' if DATABASE == 'sqlite' else 'PostgreSQL'} in " in done.stdout
    assert "40 of 40 runs ended, " in done.stdout
    for step in (
        r"Started worker 1, process \d+: manage\.py manta worker --processes 2",
        r"SIGTERM to worker 1, process \d+, as in a deploy: it left \d+\.\d\d s later, exit code 0\.",
        r"Started worker 2, ",
        r"SIGKILL to worker 2, process \d+, in the middle of a run that writes 5,000 rows\.",
        r"Started worker 3, ",
    ):
        assert re.search(f"^  {step}", done.stdout, re.MULTILINE), step
    # runs, successful; attempts, failed, lost, given back: how many of these the kill decides
    for task, runs in (("price_option", 18), ("record_years", 11), ("time_to_exit", 10), ("all together", 40)):
        row = rf"^ *{task} +{runs} +{runs} +\d+ +\d+ +\d+ +\d+ +\d+\.\d\d *$"
        assert re.search(row, done.stdout, re.MULTILINE), task
    assert re.search(r"^  attempt 1: .* (FAILED|LOST|RETURNED)", done.stdout, re.MULTILINE)
    assert re.search(r"^  attempt \d: .* SUCCESSFUL$", done.stdout, re.MULTILINE)
    assert "11 atomic runs left 6,000 rows, each exactly once" in done.stdout
    assert done.stdout.count("  holds   ") == 11
    assert "BROKEN" not in done.stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stdout)  # plain, though FORCE_COLOR is set

    picture = tmp_path / "out" / "montecarlo.png"
    assert f"The picture: {picture}" in done.stdout.splitlines()
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert image.width > 1_000
        image.load()  # raises if it is cut short


@pytest.mark.slow
def test_a_claim_that_does_not_hold_is_named_and_is_exit_code_1(environment: Environment, tmp_path: Path) -> None:
    environment["PYTHONIOENCODING"] = "ascii"
    environment["MONTECARLO_FAILING_ATTEMPTS"] = "99"  # more than its tasks have

    done = run(environment, DEMO, "--runs", "8", "--output", tmp_path / "out")

    assert done.returncode == 1
    assert "  BROKEN  All 8 runs ended SUCCESSFUL, none of them twice." in done.stdout
    assert "It failed 3 times, and max_attempts is 3." in done.stdout
    assert "There are 5,100 rows; wrong for seeds 0." in done.stdout
    assert done.stderr == "demo: 3 of 8 claims do not hold; see above.\n"
    assert done.stdout.isascii()
    assert not (tmp_path / "out" / "montecarlo.png").exists()


@pytest.mark.slow
def test_a_demo_that_is_stopped_leaves_no_database_and_no_worker_behind(
    environment: Environment,
    tmp_path: Path,
    scratch_databases: Callable[[int], list[str]],
) -> None:
    command = [sys.executable, "-u", str(DEMO), "--runs", "5000", "--output", str(tmp_path / "out")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        assert demo.stdout.readline().startswith(b"4998 runs enqueued in")
        assert scratch_databases(demo.pid)
        assert demo.stdout.readline().startswith(b"  Started worker 1, ")
        assert b" of 5000 runs ended, " in demo.stdout.readline()
        assert processes_of(demo.pid)
        demo.send_signal(signal.SIGTERM)
        _, errors = demo.communicate(timeout=60)

    assert demo.returncode == 130, errors.decode()
    assert errors == b"demo: interrupted\n"
    assert not scratch_databases(demo.pid)
    assert not processes_of(demo.pid)


def processes_of(demo: int) -> list[str]:
    """The processes that were started with the scratch database of a demo: its workers and their children."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"/manta_demo_{demo}_".encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


def test_the_demo_explains_itself(environment: Environment) -> None:
    done = run(environment, DEMO, "--help")

    assert done.returncode == 0
    assert "make demo" in done.stdout
    assert "--runs N" in done.stdout
    assert "--runner {processes,ray}" in done.stdout


@pytest.mark.parametrize("runs", ["7", "-1", "many"])
def test_the_demo_refuses_a_senseless_number_of_runs(environment: Environment, runs: str) -> None:
    done = run(environment, DEMO, f"--runs={runs}")

    assert done.returncode == 2
    assert f"{runs!r} is not a whole number of 8 or more" in done.stderr


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://localhost/x", "begins with 'mysql'; it can be 'postgresql' or 'sqlite'"),
        ("postgresql://nobody@127.0.0.1:1/x", "cannot create a scratch database"),
    ],
)
def test_the_demo_says_why_it_cannot_use_a_database(environment: Environment, url: str, complaint: str) -> None:
    done = run(environment | {"DATABASE_URL": url}, DEMO)

    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("project", PROJECTS)
def test_the_example_projects_have_all_their_migrations_and_pass_the_checks(
    environment: Environment, tmp_path: Path, project: str
) -> None:
    environment["DATABASE_URL"] = f"sqlite:///{tmp_path / 'db.sqlite3'}"

    for command in (["makemigrations", "--check", "--dry-run"], ["check", "--fail-level", "WARNING"]):
        done = run(environment, ROOT / "examples" / project / "manage.py", *command)
        assert done.returncode == 0, done.stdout + done.stderr
