"""Who is measured: their names, their adapters, and what they need."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

REQUIREMENTS = Path(__file__).parent / "requirements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    name: str
    #: The module in ``adapters``, and which way of two it shall go.
    adapter: str
    variant: str = ""
    #: Where a run is kept: what is in memory only can be quicker, and be lost.
    kind: Literal["ours", "database", "redis", "limit"]
    #: A file in ``requirements``; empty for who is measured in this project's own environment.
    requirements: str = ""
    redis: bool = False

    def pins(self) -> list[str]:
        return pins(self.requirements) if self.requirements else []


def pins(name: str) -> list[str]:
    """The lines of a requirement file, without its comments."""
    lines = (line.partition("#")[0].strip() for line in (REQUIREMENTS / f"{name}.txt").read_text().splitlines())
    return [line for line in lines if line]


CONTENDERS = (
    Contender(name="django-manta", adapter="manta", variant="processes", kind="ours"),
    Contender(name="django-manta on Ray", adapter="manta", variant="ray", kind="ours"),
    Contender(name="bare SQL", adapter="limit_sql", kind="limit"),
    Contender(name="bare ProcessPoolExecutor", adapter="limit_processes", kind="limit"),
    Contender(name="bare Ray", adapter="limit_ray", kind="limit"),
    Contender(name="django-tasks-db", adapter="tasks_db", kind="database", requirements="django-tasks-db"),
)

#: For the developer's loop: ours against the limits.
QUICK = tuple(one.name for one in CONTENDERS if one.kind in ("ours", "limit"))


def named(name: str) -> Contender:
    [found] = [one for one in CONTENDERS if one.name == name]
    return found
