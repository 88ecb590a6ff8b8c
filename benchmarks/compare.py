"""
Two trees of this repository side by side: is the one in hand as fast as another commit of it?

    git worktree add ../base COMMIT
    python scripts/postgres.py run -- python -m benchmarks.compare ../base
    python scripts/postgres.py run -- python -m benchmarks.compare ../base --only "drain of 20,000" --pairs 20

Each tree has a database of its own on the same server, and a worker of its own; they are measured in turns, and in
every other pair in reverse order. A figure is a ratio of two neighbours: other tree ÷ this tree, so more than 1 means
that this tree is faster. Use a quiet machine, and the same Python requirements for both.
"""

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parent.parent
SIDE = Path(__file__).with_name("compare_side.py")


class Side:
    """A process that measures one tree when it is asked to."""

    def __init__(self, tree: Path, name: str) -> None:
        if not (tree / "src" / "django_manta").is_dir():
            sys.exit(f"{tree} is not a tree of this repository: there is no src/django_manta in it.")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SIDE)],
            cwd=tree,
            env={
                **os.environ,
                "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}",
                "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
                "MANTA_BENCH_RUN": f"{os.getpid()}_{name}",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.measurements: list[str] = self._read()["ready"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"A side ended with exit code {self._process.wait()}; the reason is printed above.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def measure(self, what: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def __enter__(self) -> "Side":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("other", type=Path, help="the tree to compare with, a worktree of another commit")
    parser.add_argument("--this", type=Path, default=ROOT, metavar="TREE", help="instead of the tree of this file")
    parser.add_argument("--pairs", type=int, default=8, metavar="N", help="pairs of each measurement (8)")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this measurement; may be repeated")
    parser.add_argument("--at-least", type=float, metavar="RATIO", help="exit with 1 if a median is below this")
    options = parser.parse_args(argv)
    if not os.environ.get("DATABASE_URL"):
        sys.exit("DATABASE_URL is not set: python scripts/postgres.py run -- python -m benchmarks.compare …")
    with ExitStack() as stack:
        other = stack.enter_context(Side(options.other.resolve(), "other"))
        this = stack.enter_context(Side(options.this.resolve(), "this"))
        chosen = options.only or this.measurements
        if unknown := set(chosen) - set(this.measurements):
            sys.exit(f"No such measurement: {', '.join(unknown)}. There are: {', '.join(this.measurements)}.")
        taken = {what: in_turns(this, other, what, options.pairs) for what in chosen}
    print(f"{'':30} {'other':>10} {'this':>10} {'ratio':>6}  {'by pair':14} (ratio > 1: this tree is faster)")
    slow = False
    for what, pairs in taken.items():
        ratios = [theirs / ours for ours, theirs in pairs]
        others, ours = median(theirs for _, theirs in pairs), median(mine for mine, _ in pairs)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{what:30} {others * 1e3:7.2f} ms {ours * 1e3:7.2f} ms {median(ratios):6.3f}  {spread}")
        slow |= options.at_least is not None and median(ratios) < options.at_least
    return 1 if slow else 0


def in_turns(this: Side, other: Side, what: str, pairs: int) -> list[tuple[float, float]]:
    """(this, other), after one pair that does not count."""
    taken = []
    for number in range(pairs + 1):
        if number % 2:
            ours, theirs = this.measure(what), other.measure(what)
        else:
            theirs, ours = other.measure(what), this.measure(what)
        if number:
            taken.append((ours, theirs))
        print(f"{what}: {number} of {pairs}", end="\r", file=sys.stderr, flush=True)
    return taken


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
