"""A worker whose loop has a bug: when a file was written, its next look raises what nobody expects."""

import os
import sys
from pathlib import Path
from typing import Any

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from django_manta.ledger import house

_look = house.look


def look(*args: Any) -> house.Sight:
    bug = Path(os.environ["FAILS_WHEN_THIS_EXISTS"])
    if bug.exists():
        bug.unlink()
        raise RuntimeError("what nobody expected")
    return _look(*args)


if __name__ == "__main__":
    house.look = look
    execute_from_command_line(sys.argv)
