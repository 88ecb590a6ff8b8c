"""A Django project of nothing but manta, on scratch databases of the server in DATABASE_URL."""

import os

from tests.databases import parse

#: One scratch database each: the last three hold backlogs of different sizes at the same time.
ALIASES = ("default", "small", "middle", "large")

_SERVER = parse(os.environ.get("DATABASE_URL", "postgresql://postgres@127.0.0.1:5432/postgres"))

DATABASES = {alias: {**_SERVER, "NAME": f"manta_bench_{os.getpid()}_{alias}"} for alias in ALIASES}
SECRET_KEY = "benchmarks-only-3b8f2f5a0c6e4d7fa1c2b95e8d407c61-and-long-enough-to-pass"
USE_TZ = True
INSTALLED_APPS = ["django_manta"]
TASKS = {"default": {"BACKEND": "django_manta.MantaBackend"}}
