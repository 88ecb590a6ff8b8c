"""A Django project of nothing but manta, on scratch databases of the server in DATABASE_URL."""

import json
import os
from datetime import timedelta

from tests.databases import parse

#: One scratch database each: three hold backlogs of different sizes at the same time, one is django-tasks-db's.
ALIASES = ("default", "small", "middle", "large", "rival")

_SERVER = parse(os.environ.get("DATABASE_URL", "postgresql://postgres@127.0.0.1:5432/postgres"))

# Whoever measures makes it up, and the workers that it starts inherit it.
_RUN = os.environ.setdefault("MANTA_BENCH_RUN", str(os.getpid()))

DATABASES = {alias: {**_SERVER, "NAME": f"manta_bench_{_RUN}_{alias}"} for alias in ALIASES}
SECRET_KEY = "benchmarks-only-3b8f2f5a0c6e4d7fa1c2b95e8d407c61-and-long-enough-to-pass"
USE_TZ = True
INSTALLED_APPS = ["django_manta", "benchmarks"]
# No QUEUES: any name will do. Each measurement has queues of its own, and its worker takes only from those.
TASKS = {
    "default": {
        "BACKEND": "django_manta.MantaBackend",
        "QUEUES": [],
        "OPTIONS": json.loads(os.environ.get("MANTA_BENCH_OPTIONS", "{}")),
    }
}

# Not an option of its own in JSON, which knows no timedelta.
if _seconds := os.environ.get("MANTA_BENCH_RETENTION"):
    TASKS["default"]["OPTIONS"]["RETENTION"] = {"SUCCESSFUL": timedelta(seconds=float(_seconds))}
