"""A picture of the most telling columns, as SVG for the page and as PNG for everywhere else."""

from pathlib import Path
from typing import Any

from benchmarks.peers.columns import Column, showing
from benchmarks.peers.contenders import CONTENDERS, Contender
from benchmarks.peers.record import Record

COLOURS = {"ours": "#00897b", "database": "#5c6bc0", "redis": "#e57373", "limit": "#b0bec5"}
WORDS = {"ours": "django-manta", "database": "in PostgreSQL", "redis": "in Redis", "limit": "a limit, no queue"}


#: What is drawn, and how it is titled.
PANELS = (
    (showing("drain"), "Drain of 10,000 no-ops, runs/s; more is better"),
    (showing("pickup"), "Idle start, p50, ms; less is better"),
    (showing("backlog_1000000"), "The first 1,000 of 1,000,000, runs/s; more is better"),
    (showing("statements"), "Statements and commands a run; less is better"),
)


def draw(record: Record, folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    # The same record gives the same file: no random ids, no date.
    matplotlib.rcParams.update({"svg.hashsalt": "django-manta", "font.size": 8, "svg.fonttype": "none"})
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8.5), layout="constrained")
    for axis, (column, title) in zip(axes.flat, PANELS, strict=True):
        _panel(axis, record, column, title)
    handles = [Patch(color=colour) for colour in COLOURS.values()]
    figure.legend(handles, list(WORDS.values()), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(folder / "peers.svg", metadata={"Date": None})
    figure.savefig(folder / "peers.png", dpi=150, metadata={"Software": None})
    pyplot.close(figure)


def _panel(axis: Any, record: Record, column: Column, title: str) -> None:
    bars: list[tuple[float, Contender]] = []
    for one in CONTENDERS:
        entry = record.entries.get(one.name)
        value = column.figure(entry) if entry else None
        if value:
            bars.append((value, one))
    bars.sort(key=lambda bar: bar[0], reverse=not column.more_is_better)
    axis.barh([one.name for _, one in bars], [value for value, _ in bars], color=[COLOURS[one.kind] for _, one in bars])
    for row, (value, _) in enumerate(bars):
        axis.text(value, row, f" {column.text(value)}", va="center")
    axis.set_title(f"{title}, logarithmic", fontsize=9, loc="left")
    if bars:
        # Powers of ten lie between the first and the last. The figures stand beside the bars, so that no ticks need to.
        axis.set_xscale("log")
        axis.margins(x=0.15)
    axis.tick_params(axis="x", which="both", bottom=False, labelbottom=False)
    axis.spines[["top", "right"]].set_visible(False)
