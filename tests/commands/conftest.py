"""``manage.py manta …`` in this process, and as a process of its own."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str = ""

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def manta(*arguments: object, terminal: bool = False) -> Done:
    """The command in this process and its transaction. Errors are raised, exit codes returned."""
    out, err, code = Terminal() if terminal else io.StringIO(), io.StringIO(), 0
    try:
        call_command("manta", *map(str, arguments), stdout=out, stderr=err)
    except SystemExit as left:
        code = int(left.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def manta_json(*arguments: object) -> Any:
    return manta(*arguments, "--format", "json").data


@pytest.fixture
def run_manta(transactional_db: None, subprocess_environment: dict[str, str]) -> Callable[..., Done]:
    """The command as a person gives it, in a process of its own."""

    def run(*arguments: str, **environment: str) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "tests.manage", "manta", *arguments],
            cwd=ROOT,
            env={**subprocess_environment, "DJANGO_SETTINGS_MODULE": "tests.settings", **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run
