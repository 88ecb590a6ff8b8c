#!/usr/bin/env python
"""Servers as people have them, from Debian's packages: PostgreSQL with its JIT, and PgBouncer.

    python scripts/debian.py postgres     where its programs are; exit code 1 and the reason where it cannot be had
    python scripts/debian.py pgbouncer    the same of the pooler's

What is missing is installed, if root asks and there is an apt-get. Nothing is started, and what a package has started
is stopped again.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

VERSIONS = Path("/usr/lib/postgresql")


class Missing(Exception):
    """It is not installed, and cannot be: why."""


def postgres() -> Path:
    """The folder with the programs of the newest PostgreSQL that is installed and can compile (LLVM)."""
    return _found("postgresql", _postgres)


def pgbouncer() -> Path:
    """The program."""
    return _found("pgbouncer", _pgbouncer)


def _postgres() -> Path | None:
    with_jit = [path.parent.parent / "bin" for path in VERSIONS.glob("*/lib/llvmjit.so")]
    servers = [folder for folder in with_jit if (folder / "postgres").exists()]
    return max(servers, key=lambda folder: float(folder.parent.name), default=None)


def _pgbouncer() -> Path | None:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    return Path(found) if found else None


def _found(package: str, look: Callable[[], Path | None]) -> Path:
    if (found := look()) is not None:
        return found
    if os.geteuid() or not shutil.which("apt-get"):
        raise Missing(f"{package} is not installed, and only root can install it: `apt-get install {package}`.")
    install = ("install", "-y", "--no-install-recommends", package)
    failure = ""
    for arguments in (install, ("update",), install):
        failure = _apt(*arguments) or failure
        if (found := look()) is not None:
            # A package starts its service where it can: tests start their own.
            with suppress(OSError):
                subprocess.run(["service", package, "stop"], capture_output=True, check=False)
            return found
    raise Missing(f"{package} could not be installed: {failure}")


def _apt(*arguments: str) -> str:
    """Why it failed, if it did."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    waiting = ("-o", "DPkg::Lock::Timeout=120")
    ran = subprocess.run(
        ["apt-get", *waiting, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    return " ".join(ran.stderr.split())[-300:] if ran.returncode else ""


def main(arguments: list[str]) -> int:
    if arguments not in (["postgres"], ["pgbouncer"]):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(postgres() if arguments == ["postgres"] else pgbouncer())
    except Missing as missing:
        print(f"debian.py: {missing}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
