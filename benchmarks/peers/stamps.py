"""Where a peer that keeps no values notes when a function began: a file for each, in a directory that all know."""

import json
import os
from pathlib import Path
from typing import Any


def leave(key: str, value: Any) -> None:
    path = _place() / key
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(value))
    beside.replace(path)


def find(key: str) -> Any:
    path = _place() / key
    value = json.loads(path.read_text())
    path.unlink()
    return value


def _place() -> Path:
    return Path(os.environ["MANTA_PEERS_STAMPS"])
