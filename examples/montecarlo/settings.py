"""Settings of the example: all that django-manta needs is its app and TASKS."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

HERE = Path(__file__).resolve().parent

# Every run is signed with this key. Keep the real one out of your repository.
SECRET_KEY = os.environ.get("SECRET_KEY", "example-only-3b9d1f7c5a0e4826b7d3c1f09e8a6d54-not-a-secret")
USE_TZ = True
TIME_ZONE = "UTC"

INSTALLED_APPS = [
    "django_manta",
    "montecarlo",
]

TASKS = {
    "default": {
        "BACKEND": "django_manta.MantaBackend",
        "QUEUES": ["default", "records"],
        "OPTIONS": {
            # Upper case: a setting. Lower case: a keyword of @task, here for all tasks.
            "TASK_DEFAULTS": {"timeout": 60},
        },
    },
}


def database(url: str) -> dict[str, Any]:
    """Django's words for `postgresql://user@host/name`, `…/name?host=/socket/directory` or `sqlite:///file`."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    match parts.scheme:
        case "postgres" | "postgresql":
            return {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": unquote(parts.path.lstrip("/")),
                "USER": unquote(parts.username or ""),
                "PASSWORD": unquote(parts.password or ""),
                "HOST": options.pop("host", parts.hostname or ""),
                "PORT": options.pop("port", str(parts.port or "")),
                "OPTIONS": options,
                # A worker executes many runs a second; a new connection for each would cost more than they do.
                "CONN_MAX_AGE": 600,
                "CONN_HEALTH_CHECKS": True,
            }
        case "sqlite":
            return {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": unquote(parts.path.removeprefix("/")),  # sqlite:////tmp/file is an absolute path
                "OPTIONS": {
                    # A transaction that means to write says so at its start, and waits for its turn.
                    "transaction_mode": "IMMEDIATE",
                    "timeout": 20,
                    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
                },
            }
        case scheme:
            raise ValueError(f"DATABASE_URL begins with {scheme!r}; it can be 'postgresql' or 'sqlite'.")


DATABASES = {
    "default": database(os.environ.get("DATABASE_URL") or f"sqlite:///{quote(str(HERE))}/db.sqlite3"),
}
