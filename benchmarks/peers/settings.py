"""A Django project for the contender named in the environment: what all have in common, and what its adapter adds."""

import os
from importlib import import_module
from urllib.parse import parse_qsl, unquote, urlsplit

_PARTS = urlsplit(os.environ.get("MANTA_PEERS_DATABASE", "postgresql://postgres@127.0.0.1:5432/postgres"))
_QUERY = dict(parse_qsl(_PARTS.query))

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _PARTS.path.lstrip("/"),
        "USER": unquote(_PARTS.username or ""),
        "PASSWORD": unquote(_PARTS.password or ""),
        "HOST": _QUERY.get("host", _PARTS.hostname or ""),
        "PORT": _QUERY.get("port", str(_PARTS.port or "")),
        # Kept open. By Django's default some peers would open a connection for each run.
        "CONN_MAX_AGE": None,
    }
}
SECRET_KEY = "benchmarks-only-6f0c1d7a52e94b38b1d0a7c4e2f95d13-and-long-enough-to-pass"
USE_TZ = True
INSTALLED_APPS: list[str] = []
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# Nobody is slowed down by what he writes to a log.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    # By Django's default this one tells of every task that starts and ends.
    "loggers": {"django": {"level": "WARNING"}},
}

globals().update(import_module(f"benchmarks.peers.adapters.{os.environ['MANTA_PEER']}").SETTINGS)
