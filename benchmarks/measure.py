"""Taking turns, medians, and the table of what came out."""

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol


@dataclass(slots=True)
class Stopwatch:
    seconds: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begin


#: Does a fixed amount of work and says how many seconds of it count.
type Contender = Callable[[Stopwatch], None]


def in_turns(rounds: int, **contenders: Contender) -> dict[str, list[float]]:
    """
    Seconds of each contender in each round, after one round that does not count.

    They take turns, and every other round in reverse order, so that whatever else the machine does
    falls on all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        order = list(contenders) if number % 2 else list(reversed(contenders))
        for name in order:
            gc.collect()
            watch = Stopwatch()
            contenders[name](watch)
            if number:
                seconds[name].append(watch.seconds)
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table."""

    what: str
    ours: str
    limit: str = ""
    #: One ratio a round: the rounds' noise cancels within each.
    ratios: Sequence[float] = field(default=())
    #: Where the target is not a ratio: what was measured, in ``unit``. The target is the median's.
    values: Sequence[float] = field(default=())
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None

    @property
    def met(self) -> bool | None:
        """Whether the target is met, or None without a target."""
        judged = median(self.values) if self.values else self.ratio
        if judged is None:
            return None
        if self.at_least is not None:
            return judged >= self.at_least
        if self.at_most is not None:
            return judged <= self.at_most
        return None

    def cells(self) -> tuple[str, ...]:
        several = self.values or self.ratios
        spread = f"{min(several):.2f} to {max(several):.2f}" if len(several) > 1 else ""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        verdict = {None: "", True: "ok", False: "missed"}[self.met]
        return self.what, self.ours, self.limit, ratio, spread, self._target(), verdict

    def _target(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g} {self.unit}".rstrip()
        return "" if self.at_most is None else f"≤ {self.at_most:g} {self.unit}".rstrip()


HEADINGS = ("what", "ours", "limit", "ratio", "spread", "target", "")


def compared(
    what: str,
    count: int,
    ours: Sequence[float],
    limit: Sequence[float],
    *,
    at_least: float | None = None,
) -> Figure:
    """Two ways to do the same ``count`` things, by the seconds of each round."""
    return Figure(
        what=what,
        ours=rate(count, ours),
        limit=rate(count, limit),
        ratios=[theirs / mine for mine, theirs in zip(ours, limit, strict=True)],
        at_least=at_least,
    )


def measured(
    what: str,
    values: Sequence[float],
    unit: str,
    *,
    limit: str = "",
    ratios: Sequence[float] = (),
    at_least: float | None = None,
    at_most: float | None = None,
) -> Figure:
    """Something that has a target of its own, whatever else the machine can do."""
    ours = f"{median(values):.2f} {unit}"
    return Figure(
        what=what,
        ours=ours,
        limit=limit,
        ratios=ratios,
        values=values,
        unit=unit,
        at_least=at_least,
        at_most=at_most,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def rate(count: int, seconds: Sequence[float]) -> str:
    return f"{count / median(seconds):,.0f}/s"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


class Measurement(Protocol):
    """What each module of this package offers: its title and its figures."""

    TITLE: str

    def figures(self, *, rounds: int, quick: bool, rows: int | None) -> Iterable[Figure]: ...


def show(title: str, figures: Sequence[Figure]) -> None:
    """A table: drawn on a terminal, plain text anywhere else."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return _show_plainly(title, figures)
    console = Console()
    if not console.is_terminal:
        return _show_plainly(title, figures)
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("what", "") else "right")
    styles = {None: "", True: "green", False: "bold red"}
    for figure in figures:
        table.add_row(*figure.cells(), style=styles[figure.met])
    console.print(table)
    return None


def _show_plainly(title: str, figures: Sequence[Figure]) -> None:
    lines = [HEADINGS, *(figure.cells() for figure in figures)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    print(title)
    for line in lines:
        first, *others = zip(line, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        print("  " + "  ".join(cells).rstrip())
    print(flush=True)
