"""Graphs drawn: as a tree in the terminal, as Mermaid, as SVG. Colours say nothing that words do not say, too."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID
from xml.sax.saxutils import escape

from django_manta.commands.charting import Chart, layers
from django_manta.commands.printing import clean, counts, duration, runs, shortened
from django_manta.ledger.around import Link
from django_manta.states import BAD_ENDS, OWNED, Role, State

#: Pieces of a line, each with what rich calls a style.
type Line = list[tuple[str, str]]

#: Of so many runs that look alike in one place the rest is counted.
ALIKE = 8

_TERMINAL = {
    State.SUCCESSFUL: "green",
    **dict.fromkeys(BAD_ENDS, "red"),
    State.CANCELLED: "magenta",
    **dict.fromkeys(OWNED, "bold cyan"),
    State.READY: "yellow",
    State.HELD: "magenta",
}

#: The background of a state, and the line around it.
_PAPER = {
    **dict.fromkeys(BAD_ENDS, ("#fde2e1", "#c0392b")),
    **dict.fromkeys(OWNED, ("#d9ecff", "#1f6fb2")),
    State.SUCCESSFUL: ("#dff3e3", "#2e8b57"),
    State.CANCELLED: ("#eee3f5", "#7d4ea1"),
    State.HELD: ("#eee3f5", "#7d4ea1"),
    State.READY: ("#fff4cf", "#b58a00"),
    State.SCHEDULED: ("#f1f1f1", "#777777"),
    State.WAITING: ("#f1f1f1", "#777777"),
}
_CRITICAL = "#d35400"


def summary(chart: Chart) -> str:
    told = f"{runs(len(chart.runs))}: {counts({state.value: number for state, number in chart.counts.items()})}."
    if len(chart.critical_path) > 1 and chart.span is not None:
        so_far = "" if chart.runs[chart.critical_path[-1]].finished_at else " so far"
        told += f" * is the critical path: {runs(len(chart.critical_path))} in {duration(chart.span)}{so_far}."
    return told


def _facts(chart: Chart, run_id: UUID) -> str:
    """State and duration."""
    seconds = chart.seconds(run_id)
    state = chart.runs[run_id].state.value
    return state if seconds is None else f"{state} {duration(seconds)}"


# -- the terminal ------------------------------------------------------------------------------------


class _Branch(NamedTuple):
    """A run, or words, still to be drawn: after which lines, and where what stands below it begins."""

    what: UUID | str
    role: Role | None = None
    lead: str = ""
    #: Where its own line begins; and if it is an only one below an only one, where the next of them does.
    margin: str = ""
    indent: str = ""
    alone: bool = False


def tree(chart: Chart) -> Iterator[Line]:
    """
    The last ones first, and below each what it waits for. What was drawn already is only named.

    A chain goes straight down: each indented below the other, a thousand runs would leave the terminal.
    """
    critical, drawn = set(chart.critical_path), set[UUID]()
    last = chart.critical_path[-1:]
    # A stack instead of calls: a chain may be longer than Python's.
    stack = [_Branch(root) for root in reversed([*last, *(each for each in chart.lasts if each not in last)])]
    while stack:
        branch = stack.pop()
        if isinstance(branch.what, str):
            yield [(branch.lead, "dim"), (branch.what, "dim")]
            continue
        again = branch.what in drawn and bool(chart.waits_for.get(branch.what))
        yield _line(chart, branch.what, branch.lead, branch.role, branch.what in critical, again)
        if not again:
            drawn.add(branch.what)
            stack += _branches(branch, _below(chart, branch.what, critical, drawn))


def _branches(parent: _Branch, below: list[tuple[UUID | str, Role | None]]) -> Iterator[_Branch]:
    """The last first, for a stack."""
    alone = len(below) == 1
    margin = parent.margin if alone and parent.alone else parent.indent
    for place, (what, role) in reversed(list(enumerate(below))):
        corner, line = ("└─", "  ") if place == len(below) - 1 else ("├─", "│ ")
        yield _Branch(what, role, margin + corner, margin, margin + line, alone)


def _line(chart: Chart, run_id: UUID, lead: str, role: Role | None, critical: bool, again: bool) -> Line:
    run = chart.runs[run_id]
    line: Line = [(lead, "dim"), ("* " if critical else "  " if not lead else " ", "bold")]
    line += [(clean(chart.name(run_id)), "bold" if critical else ""), (" ", "")]
    seconds = chart.seconds(run_id)
    line.append((run.state.value, _TERMINAL.get(run.state, "")))
    if seconds is not None:
        line.append((f" {duration(seconds)}", ""))
    line.append((f"  {run_id}", "dim"))
    notes = [
        *([role.value] if role in (Role.AFTER, Role.DELEGATE) else []),
        *([run.gate.mode.value] if run.gate is not None and run.gate.mode != "all_successful" else []),
        *(["not counted yet"] if run.gate is not None and not run.gate.armed else []),
        *(["asked for"] if run_id in chart.centre and len(chart.centre) == 1 else []),
        *(["see above"] if again else []),
    ]
    if notes:
        line.append((f"  ({', '.join(notes)})", ""))
    return line


def _below(chart: Chart, run_id: UUID, critical: set[UUID], drawn: set[UUID]) -> list[tuple[UUID | str, Role | None]]:
    """What stands below a run: the critical one first, and of many that look alike only the first."""
    links = sorted(chart.waits_for.get(run_id, ()), key=lambda link: link.on not in critical)
    below: list[tuple[UUID | str, Role | None]] = []
    shown: dict[tuple[str, str], int] = {}
    for link in links:
        run = chart.runs[link.on]
        tells_more = bool(chart.waits_for.get(link.on)) and link.on not in drawn
        plain = not tells_more and link.on not in critical and link.on not in chart.centre
        kind = (chart.name(link.on), run.state.value)
        shown[kind] = shown.get(kind, 0) + plain
        if not plain or shown[kind] <= ALIKE:
            below.append((link.on, link.role))
    for (name, state), number in shown.items():
        if number > ALIKE:
            below.append((f" … and {number - ALIKE} more: {clean(name)} {state}", None))
    return below


# -- Mermaid -----------------------------------------------------------------------------------------


def mermaid(chart: Chart, note: str = "") -> str:
    """A flowchart in Mermaid's words, as GitHub and others show it."""
    names = {run_id: f"r{number}" for number, run_id in enumerate(chart.runs)}
    lines = ["flowchart LR", *([f"    %% {note}"] if note else [])]
    for run_id, name in names.items():
        label = f"{_coded(chart.name(run_id))}<br/>{_coded(_facts(chart, run_id))}"
        lines.append(f'    {name}["{label}"]:::{chart.runs[run_id].state.value.lower()}')
    critical = _critical_links(chart)
    for link in chart.links:
        arrow = {Role.VALUE: "-->", Role.AFTER: "-.->", Role.DELEGATE: "-->|delegate|"}[link.role]
        lines.append(f"    {names[link.on]} {arrow} {names[link.run]}")
    if critical:
        numbers = ",".join(str(number) for number, link in enumerate(chart.links) if link in critical)
        lines.append(f"    linkStyle {numbers} stroke:{_CRITICAL},stroke-width:4px")
    for state in chart.counts:
        fill, stroke = _PAPER[state]
        lines.append(f"    classDef {state.value.lower()} fill:{fill},stroke:{stroke},color:#222222")
    if chart.critical_path:
        lines.append(f"    classDef critical stroke:{_CRITICAL},stroke-width:4px")
        lines.append(f"    class {','.join(names[run_id] for run_id in chart.critical_path)} critical")
    return "\n".join(lines) + "\n"


def _coded(text: str) -> str:
    """Only letters, digits and what means nothing to Mermaid; the rest by number."""
    return re.sub(r"[^\w .,:-]", lambda found: f"#{ord(found[0])};", text)


def _critical_links(chart: Chart) -> set[Link]:
    """
    The edges along the critical path: from each run to the next, or, where that is what a run delegated to, from
    what the run had waited for before to the run itself.
    """
    place = {run_id: number for number, run_id in enumerate(chart.critical_path)}
    inside = [link for link in chart.links if link.run in place and link.on in place]
    return {
        link
        for link in inside
        if place[link.run] - place[link.on] == 1
        or (chart.runs[link.run].delegates and link.role is not Role.DELEGATE and place[link.on] < place[link.run])
    }


# -- SVG ---------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _MARGIN = 210, 56, 90, 20, 24
_HEAD, _LEAST_WIDTH = 64, 820
_SWEEPS = 8
_LABEL = 28


def svg(chart: Chart, note: str = "") -> str:
    """A picture of its own: a column for each layer, what waits to the right of what it waits for."""
    places = _placed(chart)
    width = max(_LEAST_WIDTH, max((x for x, _ in places.values()), default=0) + _WIDTH + _MARGIN)
    height = max((y for _, y in places.values()), default=0) + _HEIGHT + _MARGIN
    title = _xml(summary(chart).replace(" * is the critical path:", " Orange is the critical path:"))
    critical, path = _critical_links(chart), set(chart.critical_path)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    letters = 'font-family="system-ui, sans-serif" font-size="12"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {letters} role="img">',
        f"<title>{title}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="28" font-size="14" fill="#222222">{title}</text>',
        *([f'<text x="{_MARGIN}" y="48" fill="#c0392b">{_xml(note)}</text>'] if note else []),
        *(_curve(link, places, link in critical) for link in sorted(chart.links, key=lambda each: each in critical)),
        *(_box(chart, run_id, place, run_id in path) for run_id, place in places.items()),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _placed(chart: Chart) -> dict[UUID, tuple[int, int]]:
    """Where each run stands: its column by its layer, its row by where those that it is tied to stand."""
    columns: dict[int, list[UUID]] = {}
    for run_id, layer in layers(chart).items():
        columns.setdefault(layer, []).append(run_id)
    rows = {run_id: float(row) for column in columns.values() for row, run_id in enumerate(column)}
    tallest = max(map(len, columns.values()), default=0)
    for sweep in range(_SWEEPS):
        forwards = sweep % 2 == 0
        for layer in sorted(columns, reverse=not forwards):
            columns[layer].sort(key=lambda run_id: (_middle(chart, run_id, rows, forwards), rows[run_id]))
            spare = (tallest - len(columns[layer])) / 2
            rows |= {run_id: row + spare for row, run_id in enumerate(columns[layer])}
    return {
        run_id: (
            _MARGIN + layer * (_WIDTH + _ACROSS),
            _HEAD + round(rows[run_id] * (_HEIGHT + _DOWN)),
        )
        for layer, column in sorted(columns.items())
        for run_id in column
    }


def _middle(chart: Chart, run_id: UUID, rows: dict[UUID, float], forwards: bool) -> float:
    if forwards:
        tied = [rows[link.on] for link in chart.waits_for.get(run_id, ())]
    else:
        tied = [rows[link.run] for link in chart.waited_for_by.get(run_id, ())]
    return sum(tied) / len(tied) if tied else rows[run_id]


def _curve(link: Link, places: dict[UUID, tuple[int, int]], critical: bool) -> str:
    (left, top), (right, bottom) = places[link.on], places[link.run]
    x1, y1, x2, y2 = left + _WIDTH, top + _HEIGHT // 2, right, bottom + _HEIGHT // 2
    bend = max(40, (x2 - x1) // 2)
    dashes = {Role.VALUE: "", Role.AFTER: ' stroke-dasharray="5 4"', Role.DELEGATE: ' stroke-dasharray="1 3"'}[
        link.role
    ]
    colour, width = (_CRITICAL, 3) if critical else ("#999999", 1.2)
    return (
        f'<path d="M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2 - 6} {y2}" fill="none" stroke="{colour}" '
        f'stroke-width="{width}"{dashes}><title>{link.role.value}</title></path>'
        f'<path d="M{x2 - 8} {y2 - 4} L{x2} {y2} L{x2 - 8} {y2 + 4} z" fill="{colour}"/>'
    )


def _box(chart: Chart, run_id: UUID, place: tuple[int, int], critical: bool) -> str:
    run = chart.runs[run_id]
    x, y = place
    fill, stroke = _PAPER[run.state]
    width = 3 if critical else 1.2
    name = shortened(chart.name(run_id), _LABEL)
    asked = run_id in chart.centre and len(chart.centre) == 1
    return (
        f'<g id="run-{run_id}"><title>{_xml(f"{run.task} {run_id} {run.state.value} {run.reason}".strip())}</title>'
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{fill}" '
        f'stroke="{_CRITICAL if critical else stroke}" stroke-width="{width}"/>'
        f'<text x="{x + 10}" y="{y + 18}" font-weight="{"bold" if asked else "normal"}" fill="#222222">'
        f"{_xml(name)}</text>"
        f'<text x="{x + 10}" y="{y + 34}" fill="#222222">{_xml(_facts(chart, run_id))}</text>'
        f'<text x="{x + 10}" y="{y + 48}" font-size="9" fill="#555555">{run_id}</text></g>'
    )


def _xml(text: str) -> str:
    """What XML can hold: it has no way to write most control characters, halves of surrogates and two others."""
    return escape(re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", clean(text)))


def plain(lines: Iterable[Line]) -> str:
    """Lines without their styles."""
    return "".join("".join(piece for piece, _ in line).rstrip() + "\n" for line in lines)
