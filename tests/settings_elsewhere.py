"""The tests' project as one whose default database is empty: a router sends everything to another one."""

from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES as _DATABASES

DATABASES: dict[str, Any] = {"default": {}, "primary": _DATABASES["default"]}
DATABASE_ROUTERS = ["tests.settings_elsewhere.Primary"]


class Primary:
    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "primary"

    db_for_write = db_for_read
