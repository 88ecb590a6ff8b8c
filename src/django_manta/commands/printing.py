"""
How the verbs print: JSON with stable keys, tables by rich on a terminal, plain aligned text elsewhere.

What a task wrote (errors, output, arguments) can hold anything: control characters are shown, never
sent to the terminal. In JSON they are escaped by JSON itself.
"""

import argparse
import dataclasses
import json
import re
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand

from django_manta.text import visible, visible_json

_NUMBER = re.compile(r"[\d.,]+\+?|-|")


def add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=["text", "json"], default="text", help="How to print (default: text).")


class Printer:
    """Prints what a verb has to say, in the format it was asked for."""

    def __init__(self, command: BaseCommand, options: dict[str, Any]) -> None:
        self.wants_json = options["format"] == "json"
        self.verbosity = options["verbosity"]
        self.is_terminal = bool(command.stdout.isatty())
        self._colourless = options.get("no_color", False)
        self._out = command.stdout
        self._err = command.stderr

    def data(self, data: Any, *, on_one_line: bool = False) -> None:
        """Print as JSON."""
        self._out.write(data_text(data, indent=None if on_one_line else 2))

    def line(self, text: str = "") -> None:
        self._out.write(clean(text))

    def styled(self, lines: Iterable[Iterable[tuple[str, str]]]) -> None:
        """Lines of pieces, each with a style of rich's, which only a terminal shows."""
        if not (self.is_terminal and _has_rich()):
            for line in lines:
                self.line("".join(piece for piece, _ in line).rstrip())
            return
        import rich.text

        console = self._console()
        for line in lines:
            with console.capture() as drawn:
                # Not wrapped: what it is wider the terminal wraps, and it can be copied as one line.
                console.print(rich.text.Text.assemble(*line), soft_wrap=True)
            self._out.write(drawn.get())

    def progress(self, text: str) -> None:
        """For the person who waits: on standard error, so that the output stays clean."""
        if self.verbosity and not self.wants_json:
            self._err.write(clean(text))

    def facts(self, facts: Iterable[tuple[str, Any]]) -> None:
        """Names and values, one a line, without those that have nothing to say."""
        told = [(name, text(value)) for name, value in facts if value not in (None, "", {}, [])]
        width = max((len(name) for name, _ in told), default=0)
        for name, value in told:
            self.line(f"{name:<{width}}  {value.replace('\n', '\n' + ' ' * (width + 2))}")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        cells = [[_cell(value) for value in row] for row in rows]
        right = [bool(cells) and all(_NUMBER.fullmatch(row[place]) for row in cells) for place in range(len(columns))]
        draw = self._rich_table if self.is_terminal and _has_rich() else self._plain_table
        draw(columns, cells, right)

    def _plain_table(self, columns: Sequence[str], rows: list[list[str]], right: list[bool]) -> None:
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        for row in [list(columns), *rows]:
            padded = [
                cell.rjust(width) if to_the_right else cell.ljust(width)
                for cell, width, to_the_right in zip(row, widths, right, strict=True)
            ]
            self._out.write("  ".join(padded).rstrip())

    def _rich_table(self, columns: Sequence[str], rows: list[list[str]], right: list[bool]) -> None:
        import rich.table
        import rich.text

        table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
        for name, to_the_right in zip(columns, right, strict=True):
            table.add_column(name, justify="right" if to_the_right else "left", overflow="fold")
        for row in rows:
            # Text, because a plain string would be read as markup.
            table.add_row(*(rich.text.Text(cell) for cell in row))
        console = self._console()
        with console.capture() as drawn:
            console.print(table)
        self._out.write(drawn.get())

    def _console(self) -> Any:
        import rich.console

        return rich.console.Console(
            width=shutil.get_terminal_size().columns, force_terminal=True, no_color=self._colourless
        )


def data_text(data: Any, indent: int | None = 2) -> str:
    """As JSON, for a program to read."""
    return visible_json(json.dumps(data, indent=indent, default=_plain, ensure_ascii=False))


def _has_rich() -> bool:
    """Not imported before it is needed: a worker, which loads this module, has no use for it."""
    return find_spec("rich") is not None


def clean(text: str) -> str:
    """Control characters made visible: what a task printed must not steer an operator's terminal."""
    return visible(text)


def text(value: Any) -> str:
    """A value for people."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, timedelta):
        return duration(value.total_seconds())
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value))
    return str(value)


def _cell(value: Any) -> str:
    return clean(" ".join(text(value).split()))


def moment(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def duration(seconds: float) -> str:
    """``3.1ms``, ``0.12s``, ``42s``, ``3m20s``, ``2h05m``, ``4d03h``: two units at the most."""
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds < 0.1:
        return f"{sign}{seconds * 1000:.1f}ms"
    if seconds < 10:
        return f"{sign}{seconds:.2f}s"
    whole = round(seconds)
    for size, unit, smaller, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{sign}{whole // size}{unit}{whole % size // smaller:02d}{name}"
    return f"{sign}{whole}s"


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def tail(text: str, lines: int) -> str:
    """The last lines, and how many were left out."""
    all_lines = text.rstrip("\n").split("\n")
    left_out = len(all_lines) - lines
    return "\n".join(all_lines) if left_out <= 0 else "\n".join([f"… {left_out} lines", *all_lines[-lines:]])


def counts(numbers: dict[str, int]) -> str:
    """``2 READY, 1 HELD``"""
    return ", ".join(f"{number} {name}" for name, number in numbers.items())


def runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{value!r} has no place in JSON.")
