"""Other releases of django-manta: copies of the source that were changed, and what has a worker and Ray use one."""

import shutil
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent.parent / "src"

#: A release whose protocol is the one that the environment says.
ANY_PROTOCOL = (
    "execution/runners/ray/messages.py",
    "\nPROTOCOL = 4\n",
    '\nPROTOCOL = int(__import__("os").environ["MANTA_TEST_PROTOCOL"])\n',
)


def release(place: Path, *changes: tuple[str, str, str]) -> Path:
    """Copy the source to ``place`` and replace, in each of these files, one text by another."""
    shutil.copytree(SOURCE, place, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in changes:
        file = place / "django_manta" / name
        text = file.read_text()
        assert text.count(old) == 1, f"{name} does not have {old!r} once"
        file.write_text(text.replace(old, new))
    return place


def worker_of(
    options: dict[str, Any], code: Path, version: dict[str, str], *, protocol: int = 4, on_ray: int | None = None
) -> dict[str, Any]:
    """How to start a worker of that code: with a protocol, and perhaps another one on Ray's nodes."""
    [profile] = options["RUNTIME_ENVS"].values()
    theirs = {"PYTHONPATH": str(code), "MANTA_TEST_PROTOCOL": str(on_ray or protocol)}
    older = {"env_vars": {"MANTA_TEST_PROTOCOL": "1"}, "EXTENDS": "tests"}
    return options | {
        "RAY": options["RAY"] | version,
        "RUNTIME_ENVS": {"tests": {"env_vars": profile["env_vars"] | theirs}, "older": older},
        "environment": {"PYTHONPATH": str(code), "MANTA_TEST_PROTOCOL": str(protocol)},
    }
