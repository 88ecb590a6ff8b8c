"""
The table of figures in a page of the documentation: made here, kept between two marks, the rest of the page is ours.

A storm that was run replaces its row; rows of storms that were not run stay, each with its date.
"""

import os
import platform
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import django
import psycopg
from django.db import connections

BEGIN, END = "<!-- storms: begin (python -m chaos --report) -->", "<!-- storms: end -->"
#: What is added up over storms, where they count it.
TOTALS = (
    "runs",
    "lost",
    "double_settlements",
    "double_successes",
    "stale_accepted",
    "early_promotions",
    "double_promotions",
    "fsck",
)
HEAD = "| storm | figures | kept | seed | date |\n|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Row:
    """What one storm left behind."""

    storm: str
    #: As they were printed.
    figures: str
    broken: int
    #: With which it can be repeated, and whether it was the short one.
    seed: str
    date: str

    def text(self) -> str:
        kept = "**no**" if self.broken else "yes"
        return f"| `{self.storm}` | {self.figures.replace('|', '/')} | {kept} | {self.seed} | {self.date} |"


def write(page: Path, rows: Iterable[Row], order: Iterable[str]) -> None:
    """Put the rows into the page, in this order."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    former, _, after = rest.partition(END)
    if not rest or END not in rest:
        raise ValueError(f"{page} has no place for the table: it needs the lines {BEGIN!r} and {END!r}.")
    lines = dict(re.findall(r"^(?=\| `([a-z-]+)` \|)(.*)$", former, re.M))
    lines |= {row.storm: row.text() for row in rows}
    body = "\n".join(lines[name] for name in order if name in lines)
    told = f"{machine()}\n\n{HEAD}\n{body}\n\nAll rows together: {total(body.splitlines())}"
    page.write_text(f"{before}{BEGIN}\n\n{told}\n\n{END}{after}", encoding="utf-8")


def total(lines: Iterable[str]) -> str:
    """The sum of each figure over the lines that have it; what none has is not told."""
    counts: Counter[str] = Counter()
    for line in lines:
        # Not with +=, which would forget what is below zero. A figure that is no number is no such count.
        counts.update({name: int(count) for name, count in re.findall(r"(?<!\S)(\w+)=(-?\d+)(?!\S)", line)})
    return " ".join(f"{name}={counts[name]}" for name in TOTALS if name in counts)


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def machine() -> str:
    """Where the last of them were run."""
    with connections["default"]._nodb_cursor() as cursor:
        cursor.execute("SHOW server_version")
        [server] = cursor.fetchone()
    # The distribution that packaged the server is of no interest here.
    return (
        f"The last of them ran on {os.cpu_count()} cores ({platform.machine()}, {platform.system()}), "
        f"Python {platform.python_version()}, Django {django.get_version()}, PostgreSQL {server.split()[0]}, "
        f"psycopg {psycopg.__version__}."
    )
