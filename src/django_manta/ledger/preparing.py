"""What whoever prepares statements has to know, on a worker's connection and on an application's."""

import re
from typing import Any

_PARAMETER = re.compile(r"%\((\w+)\)s")


def is_pooled(driver: Any) -> bool:
    """A pooler answers for a server process that is another one, and may be a third in a moment."""
    return server_of(driver) != int(driver.info.backend_pid)


def server_of(driver: Any) -> int:
    """The process that answers."""
    [pid] = driver.execute("SELECT pg_backend_pid()").fetchone()
    return int(pid)


def numbered(text: str) -> tuple[str, list[str]]:
    """A statement with its parameters numbered, and their names in that order."""
    order = list(dict.fromkeys(_PARAMETER.findall(text)))
    return _PARAMETER.sub(lambda found: f"${order.index(found[1]) + 1}", text).replace("%%", "%"), order
