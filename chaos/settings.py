"""A Django project of manta, the storms' tasks and the examples, on a scratch database of DATABASE_URL."""

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


DATABASES = {
    "default": {
        **parse(os.environ.get("DATABASE_URL", NOWHERE)),
        # The storm makes it up and its workers inherit it.
        "NAME": os.environ.setdefault("MANTA_CHAOS_DATABASE", f"manta_chaos_{os.getpid()}"),
    }
}
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
