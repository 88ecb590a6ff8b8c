"""
Rows altered by hand, in every column of every table.

Each column is given each of a dozen and more hostile values (row_values.py) in rows of many kinds (row_scenes.py), a
hundred rows at a time; real workers work beside them, and every way to look at rows is tried (row_reads.py).

- No module is imported that no signed run names, by no process.
- No worker ends, and none logs that a duty failed or that the database is away.
- Twenty good runs beside each batch, and twenty that come later, end as they must.
- Every look is answered, or refused with a documented error.
- fsck names each row that no verb of the ledger can have written: a signature that does not match, a value that the
  column never holds (a date outside of the calendar, a state that does not exist, a negative count, text that is not
  the JSON that it must be). It does not name what is legal: another priority or queue, a reason in other words, another
  date, a state that the rest of the row allows. The ledger could have written those itself. Nor does it verify finished
  runs, because a key may be forgotten when the runs that were signed with it have ended.
- What the database refuses (the type of a column, NOT NULL, a CHECK) is counted as refused.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from chaos import world

COMBINATIONS = 2_000

LIMIT_SECONDS = 1_800


def storm(weather: world.Weather, report: world.Report) -> None:
    blow(weather, report, {})


def blow(weather: world.Weather, report: world.Report, environment: Mapping[str, str]) -> None:
    """In a process of its own, which has the admin, and its own database if the environment says so."""
    count = weather.count(COMBINATIONS, 100)
    with tempfile.TemporaryDirectory(prefix="manta-rows-") as directory:
        marks = {"MANTA_CHAOS_MARK": str(Path(directory) / "marks")}
        process = subprocess.Popen(
            [sys.executable, "-m", "chaos.row_process", str(count), str(weather.seed)],
            cwd=world.ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "chaos.settings_admin", **marks, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            said, _ = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.terminate()
            process.wait(60)
    if process.returncode:
        raise world.Broken(f"the process that alters rows ended with {process.returncode}")
    told = json.loads(said)
    counted = ("combinations", "refused", "altered", "wrong", "named", "good", "log_lines")
    judged = ("lost", "imports", "exited", "errors", "alarms", "unnamed")
    report.figures = {name: told["figures"].get(name, 0) for name in (*counted, *judged)}
    report.broken += told["broken"]
