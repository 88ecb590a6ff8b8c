"""The storm ``rows`` on a SQLite file, which keeps what it is given, whatever a column's type is."""

import tempfile
from pathlib import Path

from chaos import rows, world


def storm(weather: world.Weather, report: world.Report) -> None:
    with tempfile.TemporaryDirectory(prefix="manta-rows-") as directory:
        rows.blow(weather, report, {"MANTA_CHAOS_SQLITE": str(Path(directory) / "default.sqlite3")})
