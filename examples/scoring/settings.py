"""Settings of the example: one queue, whose tasks are executed on Ray."""

import os
from pathlib import Path
from urllib.parse import quote

from montecarlo.settings import SECRET_KEY, database

__all__ = ["SECRET_KEY"]

HERE = Path(__file__).resolve().parent

USE_TZ = True
TIME_ZONE = "UTC"

INSTALLED_APPS = [
    "django_manta",
    "scoring",
]

DATABASE_URL = os.environ.get("DATABASE_URL") or f"sqlite:///{quote(str(HERE))}/db.sqlite3"
DATABASES = {"default": database(DATABASE_URL)}

VARIABLES = {"DJANGO_SETTINGS_MODULE": "scoring.settings", "DATABASE_URL": DATABASE_URL}

TASKS = {
    "default": {
        "BACKEND": "django_manta.MantaBackend",
        "QUEUES": ["scoring"],
        "OPTIONS": {
            "QUEUE_OPTIONS": {"scoring": {"runner": "ray", "max_attempts": 3}},
            # On a laptop the worker brings a Ray along. On a cluster: "ray-head:6379", and your release as VERSION.
            "RAY": {"ADDRESS": os.environ.get("SCORING_RAY", "local"), "RUNTIME_ENV": "scoring"},
            # What processes on Ray are told: whoever started a cluster knew nothing of this project and its database.
            "RUNTIME_ENVS": {"scoring": {"env_vars": VARIABLES}},
        },
    },
}
