"""What we have set ourselves, held against a record: who or what each figure of ours is measured by, and how far."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.peers.columns import Column, showing
from benchmarks.peers.contenders import CONTENDERS, Contender
from benchmarks.peers.record import Record

#: Which contenders our figure is held against: the best of them counts.
Rivals = Callable[[Contender], bool]


def every_peer(one: Contender) -> bool:
    return one.kind in ("database", "redis")


def database_backed(one: Contender) -> bool:
    return every_peer(one) and one.in_database


def only(name: str) -> Rivals:
    return lambda one: one.name == name


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    words: str
    column: Column
    rivals: Rivals
    #: Ours is at least so many times theirs; where less is better, at most.
    factor: float = 1.0
    ours: str = "django-manta"
    #: What is looked at of the rivals, if not the same column.
    against: Column | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    target: Target
    ours: float | None
    theirs: float | None
    #: Whose figure that is.
    best: str = ""

    @property
    def ratio(self) -> float | None:
        return None if self.ours is None or not self.theirs else self.ours / self.theirs

    @property
    def won(self) -> bool | None:
        """None: one of the two figures is missing."""
        if self.ratio is None:
            return None
        wanted = self.target.factor
        return self.ratio >= wanted if self.target.column.more_is_better else self.ratio <= wanted


OURS_ON_RAY = "django-manta on Ray"
LIMIT = "bare SQL"

TARGETS = (
    Target(words="enqueue, among those in a database", column=showing("enqueue"), rivals=database_backed),
    Target(words="bulk enqueue, among those in a database", column=showing("bulk"), rivals=database_backed),
    Target(words="drain, among all", column=showing("drain"), rivals=every_peer, factor=5),
    Target(words="drain, among those in a database", column=showing("drain"), rivals=database_backed, factor=20),
    Target(words="drain, against the limit", column=showing("drain"), rivals=only(LIMIT), factor=0.6),
    Target(
        words="drain on Ray, against the limit",
        column=showing("drain"),
        rivals=only(LIMIT),
        factor=0.3,
        ours=OURS_ON_RAY,
    ),
    Target(words="first 1,000 of 100k, among all", column=showing("backlog_100000"), rivals=every_peer),
    Target(words="first 1,000 of 1M, among all", column=showing("backlog_1000000"), rivals=every_peer),
    Target(
        words="first 1,000 of 1M, against our own of 1k",
        column=showing("backlog_1000000"),
        rivals=only("django-manta"),
        against=showing("backlog_1000"),
        factor=0.9,
    ),
    Target(words="start p50, among those in a database", column=showing("pickup"), rivals=database_backed),
    Target(words="result p50, among those in a database", column=showing("result"), rivals=database_backed),
    Target(words="chain, among all", column=showing("chain"), rivals=every_peer),
    Target(words="fan-out, among all", column=showing("fan"), rivals=every_peer),
    Target(words="statements, among all", column=showing("statements"), rivals=every_peer),
)


def outcomes(record: Record) -> Iterator[Outcome]:
    for target in TARGETS:
        figures = _figures(record, target)
        entry = record.entries.get(target.ours)
        ours = target.column.figure(entry) if entry else None
        if not figures:
            yield Outcome(target=target, ours=ours, theirs=None)
            continue
        theirs, best = max(figures) if target.column.more_is_better else min(figures)
        yield Outcome(target=target, ours=ours, theirs=theirs, best=best)


def _figures(record: Record, target: Target) -> list[tuple[float, str]]:
    shown = target.against or target.column
    figures = []
    for one in CONTENDERS:
        entry = record.entries.get(one.name)
        value = shown.figure(entry) if entry and target.rivals(one) else None
        if value is not None:
            figures.append((value, one.name))
    return figures
