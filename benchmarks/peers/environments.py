"""
A virtual environment for each peer, made by uv from its pinned requirements.

They are kept outside this project's tree (``~/.cache/django-manta/peers``, or below XDG_CACHE_HOME), named by what
is in them, so that a second run finds them and a changed pin makes a new one.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.contenders import REQUIREMENTS, Contender, pins
from benchmarks.peers.workers import ROOT, Trouble

#: A slow connection may take minutes for Ray alone.
INSTALL_SECONDS = 600


def python_of(contender: Contender) -> Path:
    """The interpreter that has this contender installed. Trouble, with the reason, if it cannot be had."""
    if not contender.requirements:
        return Path(sys.executable)
    place = _cache() / f"{contender.requirements}-{_fingerprint(contender.requirements)}"
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        _uv("venv", "--quiet", "--python", sys.executable, str(place))
        _uv("pip", "install", "--quiet", "--python", str(python), "-r", str(_file(contender.requirements)))
        (place / "complete").touch()
    return python


def versions(python: Path, contender: Contender) -> dict[str, str]:
    """What is installed there of what its requirements name."""
    names = [line.partition("==")[0].partition("[")[0] for line in contender.pins()]
    names = names or ["django-manta", "Django", "psycopg", "ray"]
    script = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    ran = subprocess.run([str(python), "-c", script, *names], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Trouble(f"Its environment is broken: {ran.stderr.strip()[-300:]}")
    import json

    return dict(json.loads(ran.stdout))


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "django-manta" / "peers"


def _fingerprint(name: str) -> str:
    """Of all that the environment is made from."""
    parts = [sys.version, *sorted(pins(name))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _file(name: str) -> Path:
    return REQUIREMENTS / f"{name}.txt"


def _uv(*arguments: str) -> None:
    command = _find_uv()
    try:
        ran = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Trouble(f"Its environment was not made within {INSTALL_SECONDS} s.") from None
    if ran.returncode:
        raise Trouble(f"It could not be installed: {' '.join(ran.stderr.split())[-300:]}")


def _find_uv() -> list[str]:
    """Where ``scripts/bootstrap`` finds or puts it."""
    for command in (["uv"], [sys.executable, "-m", "uv"], ["python3", "-m", "uv"], [str(ROOT / ".cache/uv/bin/uv")]):
        if _answers(command):
            return command
    raise Trouble("uv is not here: `python3 -m pip install uv`.")


def _answers(command: list[str]) -> bool:
    try:
        return subprocess.run([*command, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
