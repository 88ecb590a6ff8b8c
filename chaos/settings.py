"""A Django project of manta, the storms' tasks and the examples: on a scratch database of DATABASE_URL, or a file."""

import json
import os
from datetime import timedelta
from typing import Any

from tests.databases import NOWHERE, parse


def options() -> dict[str, Any]:
    """What a storm wants its workers to be given; JSON knows no durations."""
    given: dict[str, Any] = json.loads(os.environ.get("MANTA_CHAOS_OPTIONS", "{}"))
    if "RETENTION" in given:
        given["RETENTION"] = {state: timedelta(seconds=kept) for state, kept in given["RETENTION"].items()}
    return given


def on_postgres() -> dict[str, Any]:
    # The storm makes its name up and its workers inherit it.
    name = os.environ.setdefault("MANTA_CHAOS_DATABASE", f"manta_chaos_{os.getpid()}")
    return {**parse(os.environ.get("DATABASE_URL", NOWHERE)), "NAME": name}


def on_sqlite(file: str) -> dict[str, Any]:
    commands = ["PRAGMA journal_mode=WAL"]
    if pages := os.environ.get("MANTA_CHAOS_PAGES"):
        commands.append(f"PRAGMA max_page_count={pages}")
    options = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": ";".join(commands)}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "OPTIONS": options}


FILE = os.environ.get("MANTA_CHAOS_SQLITE")
DATABASES = {"default": on_sqlite(FILE) if FILE else on_postgres()}
SECRET_KEY = "chaos-only-52d0f6b84f1e4c0f9a6f0f1f8b7d3c29-and-long-enough-to-pass-the-checks"
USE_TZ = True
INSTALLED_APPS = ["django_manta", "chaos", "examples.workflows"]
TASKS = {
    "default": {
        "BACKEND": "django_manta.MantaBackend",
        "QUEUES": ["default", "io"],
        "OPTIONS": options(),
    }
}
