"""The page of the documentation, made from a record and nothing else."""

import re
from collections.abc import Iterator, Sequence
from textwrap import fill

from benchmarks.peers.columns import GROUPS, Column
from benchmarks.peers.contenders import CONTENDERS, Contender
from benchmarks.peers.measures import OPTIONAL
from benchmarks.peers.record import Entry, Record
from benchmarks.peers.targets import Outcome, outcomes

INTRODUCTION = """\
# Side by side with the peers

`make bench-peers` installs each peer into a virtual environment of its own, starts what it needs on this machine, and
asks all of them for the same work, one after the other, round by round. This page was written by it; `make bench-peers`
writes it anew, and `python -m benchmarks.peers --render docs/benchmarks/peers.json` does so from all that was measured,
which is [kept beside it](peers.json).

Each figure is the median of {rounds}; behind it, in brackets, the least and the greatest, and how many rounds there
were, if fewer. **Bold** is the best of its column, limits apart; where that one has its queue in Redis, † is the best
of those that have it in a database, which survives a crash and takes part in the caller's transaction. `–` means that a
peer has no such thing; a number in brackets refers to the remarks below. A limit is no queue: it shows
what one part of a queue's work costs at least on this machine, without the others. Bare SQL claims and settles and
executes nothing; the other two execute, and keep nothing.

![The most telling columns as bars](peers.svg)
"""

SMALL = """\
!!! warning

    These figures come from a run with small sizes. They show that everything works, and nothing else.
"""

REASONS = """\
Why something is not won, and what would win it: [Performance](../performance.md#what-is-not-won-and-what-would-win-it).
"""

FAIRNESS = """\
## What all have in common

Two processes that execute one run at a time. Connections that stay open. Logs with warnings only. A database of its
own for each visit, dropped afterwards; a Redis that writes nothing to disk. A worker is started, has executed
something in both processes, and is then measured; nobody else is running meanwhile. What is over within a moment is
measured three times in a round, and the median counts: a drain or a chain of less than a second and a half, the first
1,000 of a backlog of 1,000 if they take less than two seconds, and of a larger one if they take less than half a
second, and to start workers and to fill it no more than 25. Who is quick executes a drain before a larger one, as
before the small one. Every measure has a limit in time: who is not done by then is judged by what he has done, and a
remark says so.

These are figures of one machine on one day, with tasks that do nothing. They do not say which peer is right for you:
several give up durability for speed, and several do things that are not measured here.
"""


def page(record: Record) -> str:
    introduction = INTRODUCTION.format(rounds=_rounds(record.rounds))
    parts: list[str] = [introduction, *([] if record.sizes == "full" else [SMALL]), *_groups(record)]
    parts.append("\n".join(["## What is won, and what is not", "", *_targets(record), "", REASONS, FAIRNESS]))
    parts.append("\n".join(["## What each figure says, and what it does not", "", *_paragraphs()]))
    parts.append("\n".join(["", "## Settings and versions", "", *_settings(record)]))
    parts.append("\n".join(["", "## Machine", "", *_machine(record)]))
    return "\n".join(part.rstrip() + "\n" for part in parts)


def table(record: Record) -> list[str]:
    """All groups without their remarks, for a terminal."""
    return [line for columns in GROUPS.values() for line in [*_table(record, columns, Remarks()), ""]]


class Remarks:
    """What must be said about single figures, numbered as they come."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def number(self, words: str) -> str:
        if words not in self.said:
            self.said.append(words)
        return f" ({self.said.index(words) + 1})"


def _groups(record: Record) -> Iterator[str]:
    for title, columns in GROUPS.items():
        remarks = Remarks()
        lines = [f"## {title}", "", *_table(record, columns, remarks)]
        if remarks.said:
            lines += ["", *(f"({number}) {words}  " for number, words in enumerate(remarks.said, 1))]
        yield "\n".join(lines)


def _table(record: Record, columns: Sequence[Column], remarks: Remarks) -> list[str]:
    present = [one for one in CONTENDERS if one.name in record.entries]
    best = {column: _best(record, present, column) for column in columns}
    durable = [one for one in present if one.in_database]
    best_durable = {column: _best(record, durable, column) for column in columns}
    lines = [
        "| | " + " | ".join(f"{column.heading}, {column.unit}" for column in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for one in present:
        entry = record.entries[one.name]
        if entry.reason:
            # In the first cell, and the others empty: a row of Markdown cannot join cells.
            cells = [f"could not run: {_cell(entry.reason)}", *[""] * (len(columns) - 1)]
        else:
            marks = [_mark(one, entry, column, best[column], best_durable[column]) for column in columns]
            cells = [
                _figure(one, entry, column, mark, record.rounds, remarks)
                for column, mark in zip(columns, marks, strict=True)
            ]
        lines.append(f"| {_name(one)} | " + " | ".join(cells) + " |")
    return lines


def _name(contender: Contender) -> str:
    return {"ours": f"**{contender.name}**", "limit": f"*{contender.name}*"}.get(contender.kind, contender.name)


def _best(record: Record, present: Sequence[Contender], column: Column) -> float | None:
    figures = [column.figure(record.entries[one.name]) for one in present if one.kind != "limit"]
    found = [figure for figure in figures if figure is not None]
    if not found:
        return None
    return max(found) if column.more_is_better else min(found)


def _mark(one: Contender, entry: Entry, column: Column, best: float | None, best_durable: float | None) -> str:
    """``**`` for the best of all, ``†`` for the best of those in a database, if that is another one."""
    value = column.figure(entry)
    if value is None or one.kind == "limit":
        return ""
    if value == best:
        return "**"
    return "†" if one.in_database and value == best_durable and best != best_durable else ""


def _figure(one: Contender, entry: Entry, column: Column, mark: str, of: int, remarks: Remarks) -> str:
    """``of`` so many rounds."""
    value = column.figure(entry)
    if value is None:
        troubles = entry.troubles(column.measure)
        if troubles:
            return f"failed{remarks.number(f'{one.name}: {_cell(troubles[-1])}')}"
        return "–" if one.kind == "limit" or column.measure in OPTIONAL else "not measured"
    text = column.text(value)
    text = f"**{text}**" if mark == "**" else f"{text}{mark}"
    spread, rounds = column.spread(entry), len(entry.values(column.measure))
    told = [f"{column.text(spread[0])} – {column.text(spread[1])}"] if spread else []
    if rounds < of:
        told.append(_rounds(rounds))
    if told:
        text += f" [{'; '.join(told)}]"
    for words in entry.notes(column.measure)[-1:]:
        text += remarks.number(f"{one.name}: {_cell(words)}.")
    return text


def _rounds(count: int) -> str:
    return f"{count} round{'s' if count != 1 else ''}"


def _cell(words: str) -> str:
    """Somebody else's words, so that they cannot break the table, and without the colours of a terminal."""
    words = re.sub(r"\x1b\[[0-9;]*m", "", words)
    return " ".join(words.replace("|", "/").replace("<", "‹").replace(">", "›").replace("`", "'").split())[:240]


def _targets(record: Record) -> Iterator[str]:
    found = list(outcomes(record))
    won = sum(1 for one in found if one.won)
    words = (
        f"What we have set ourselves, held against the figures above: {won} of {len(found)} are won. The ratio is our "
        "figure divided by the best of those that it is held against; whoever failed or was not measured is not among "
        "them. Ours is the figure of a worker with two processes, unless the row says Ray."
    )
    yield fill(words, width=118)
    yield ""
    yield "| target | ours | theirs | whose | ratio | wanted | won |"
    yield "|---|---:|---:|---|---:|---:|---|"
    for one in found:
        yield "| " + " | ".join(_target(one)) + " |"


def _target(one: Outcome) -> Iterator[str]:
    column = one.target.column
    sign = "≥" if column.more_is_better else "≤"
    yield f"{one.target.words}, {column.unit}"
    yield "not measured" if one.ours is None else column.text(one.ours)
    yield "not measured" if one.theirs is None else column.text(one.theirs)
    yield one.best
    yield "" if one.ratio is None else f"{one.ratio:.4g}"
    yield f"{sign} {one.target.factor:g}"
    yield {True: "yes", False: "**no**", None: "not measured"}[one.won]


def _paragraphs() -> Iterator[str]:
    for columns in GROUPS.values():
        for column in columns:
            yield fill(f"**{column.heading}** ({column.unit}). {column.says}", width=118)
            yield ""


def _settings(record: Record) -> Iterator[str]:
    yield "| | versions | settings |"
    yield "|---|---|---|"
    for one in CONTENDERS:
        if entry := record.entries.get(one.name):
            versions = ", ".join(f"{name} {version}" for name, version in entry.versions.items())
            yield f"| {_name(one)} | {versions} | {entry.note.replace('|', '/')} |"


def _machine(record: Record) -> Iterator[str]:
    yield f"Measured on {record.date} in {record.seconds / 60:.0f} minutes, sizes `{record.sizes}`."
    yield ""
    yield "| | |"
    yield "|---|---|"
    for name, value in record.machine.items():
        yield f"| {name} | {value} |"
