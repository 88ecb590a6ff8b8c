"""The storms that are short and need no luck, small; the rest is for ``make chaos``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.__main__ import STORMS
from chaos.table import BEGIN, END, total

ROOT = Path(__file__).parent.parent


def chaos(*arguments: str, timeout: float = 120) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "chaos", *arguments],
        cwd=ROOT,
        env=os.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_storm_is_a_module_and_is_told_of() -> None:
    helped = chaos("--help")
    for name in STORMS:
        assert (ROOT / "chaos" / f"{name.replace('-', '_')}.py").is_file()
        assert f"\n  {name} " in helped


@pytest.mark.postgres
@pytest.mark.slow
def test_settlements_that_come_twice_late_stale_and_unheard_of_change_nothing(tmp_path: Path) -> None:
    """And their figures go into a page, where what a person wrote stays."""
    page = tmp_path / "page.md"
    kept = "| `kill` | lost=0 | yes | 7 | 2026-01-01 |"
    page.write_text(
        f"# Before\n\n{BEGIN}\nOld words.\n\n{kept}\n| `echoes` | old | yes | 1 | 1999 |\n{END}\n\nAfter.\n"
    )
    said = chaos("--quick", "--only", "echoes", "--only", "acknowledgements", "--seed", "1", "--report", str(page))
    [echoes, acknowledgements] = [line for line in said.splitlines() if " fsck=0 " in line and line.endswith(" ok")]
    [together] = [line for line in said.splitlines() if line.startswith("in all")]
    for figure in ("lost=0", "stale_accepted=0", "double_settlements=0"):
        assert figure in echoes
    for figure in ("lost=0", "forgotten=0", "extra_starts=0", "effects_not_once=0", "orders_unmatched=0"):
        assert figure in acknowledgements
    for figure in ("lost=0", "double_settlements=0", "double_successes=0", "stale_accepted=0", "fsck=0"):
        assert figure in together.split()
    told = page.read_text()
    assert told.startswith(f"# Before\n\n{BEGIN}\n")
    assert told.endswith(f"{END}\n\nAfter.\n")
    assert kept in told
    assert "Old words." not in told
    assert "| old |" not in told
    assert told.count("| `echoes` |") == told.count("| `acknowledgements` |") == 1
    assert "stale_accepted=0" in told
    assert f"\n\nAll rows together: {together.removeprefix('in all').strip()}\n\n{END}" in told


@pytest.mark.postgres
@pytest.mark.slow
def test_whatever_happens_at_any_statement_of_any_verb_costs_no_run() -> None:
    said = chaos("--quick", "--only", "faults", "--seed", "1", timeout=400)
    [line] = [line for line in said.splitlines() if line.startswith("faults")]
    for figure in ("lost=0", "strange_errors=0", "exited=0", "double_successes=0", "fsck=0"):
        assert figure in line.split()


def judged(said: str, name: str) -> None:
    [line] = [line for line in said.splitlines() if line.startswith(f"{name} ")]
    for figure in ("combinations=100", "lost=0", "imports=0", "exited=0", "errors=0", "alarms=0", "unnamed=0"):
        assert figure in line.split()


@pytest.mark.postgres
@pytest.mark.slow
def test_rows_altered_by_hand_end_no_worker_import_nothing_and_keep_no_other_run_waiting() -> None:
    judged(chaos("--quick", "--only", "rows", "--seed", "1", timeout=400), "rows")


@pytest.mark.sqlite
@pytest.mark.slow
def test_rows_altered_by_hand_do_as_little_on_sqlite() -> None:
    judged(chaos("--quick", "--only", "rows-sqlite", "--seed", "1", timeout=400), "rows-sqlite")


@pytest.mark.sqlite
@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while_costs_time_and_no_run() -> None:
    said = chaos("--quick", "--only", "disk-full", "--seed", "1")
    [line] = [line for line in said.splitlines() if line.startswith("disk-full")]
    for figure in ("lost=0", "exited=0", "declared_lost=0", "double_successes=0", "fsck=0"):
        assert figure in line.split()


def test_what_storms_count_is_added_up_where_they_count_it() -> None:
    lines = [
        "runs=10 lost=-1 fsck=0 double_successes=0 (3 s)",
        "| `postgres` | runs=4x10 lost=2 fsck=1 extra_starts=0(limit 30) | yes | 7, 2 trials | 2026-01-01 |",
        "skipped=there is nothing to run it with",
    ]
    assert total(lines) == "runs=10 lost=1 double_successes=0 fsck=1"
