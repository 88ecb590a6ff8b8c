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

    @property
    def in_database(self) -> bool:
        """Whether its queue is in PostgreSQL: it survives a crash, and an enqueue joins the caller's transaction."""
        return self.kind in ("ours", "database")

    def pins(self) -> list[str]:
        return pins(self.requirements) if self.requirements else []


def pins(name: str) -> list[str]:
    """The lines of a requirement file, without its comments."""
    lines = (line.partition("#")[0].strip() for line in (REQUIREMENTS / f"{name}.txt").read_text().splitlines())
    return [line for line in lines if line]


def _peer(name: str, adapter: str, requirements: str = "", variant: str = "", *, redis: bool = False) -> Contender:
    return Contender(
        name=name,
        adapter=adapter,
        variant=variant,
        kind="redis" if redis else "database",
        requirements=requirements or name,
        redis=redis,
    )


CONTENDERS = (
    Contender(name="django-manta", adapter="manta", variant="processes", kind="ours"),
    Contender(name="django-manta on Ray", adapter="manta", variant="ray", kind="ours"),
    Contender(name="bare SQL", adapter="limit_sql", kind="limit"),
    Contender(name="bare ProcessPoolExecutor", adapter="limit_processes", kind="limit"),
    Contender(name="bare Ray", adapter="limit_ray", kind="limit"),
    _peer("django-tasks-db", "tasks_db"),
    _peer("django-ox", "django_ox"),
    _peer("dj-queue", "dj_queue"),
    _peer("django-goals", "django_goals"),
    _peer("procrastinate", "procrastinate"),
    _peer("django-q2 (ORM)", "django_q2", "django-q2", "orm"),
    _peer("django-q2 (Redis)", "django_q2", "django-q2", "redis", redis=True),
    _peer("Celery", "celery", "celery", redis=True),
    _peer("Dramatiq", "dramatiq", "dramatiq", redis=True),
    _peer("RQ", "rq", "rq", redis=True),
    _peer("django-ray (sync)", "django_ray", "django-ray", "sync"),
    _peer("django-ray (Ray Core)", "django_ray", "django-ray", "core"),
)

#: For the developer's loop: ours against the limits.
QUICK = tuple(one.name for one in CONTENDERS if one.kind in ("ours", "limit"))


def named(name: str) -> Contender:
    [found] = [one for one in CONTENDERS if one.name == name]
    return found
