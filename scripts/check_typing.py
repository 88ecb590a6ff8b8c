#!/usr/bin/env python
"""Hold tests/typing/ against mypy (strict) and pyright: good.py has no error, bad.py has all it says.

In bad.py a line that ends in `# wrong` must be an error to both checkers, `# wrong for mypy` or
`# wrong for pyright` to that one; no other line may be. So a type that turns into `Any` is noticed.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOOD = ROOT / "tests/typing/good.py"
BAD = ROOT / "tests/typing/bad.py"

Errors = dict[int, str]


def mypy(file: Path) -> Errors:
    # Plain runs of mypy leave bad.py out (pyproject.toml); a file named outright is checked all the same.
    lines = run("mypy", "--output=json", str(file)).splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {
        each["line"]: each["message"]
        for each in found
        if each["severity"] == "error" and (ROOT / each["file"]).resolve() == file
    }


def pyright(file: Path) -> Errors:
    found = json.loads(run("pyright", "--outputjson", str(file)))["generalDiagnostics"]
    return {
        each["range"]["start"]["line"] + 1: each["message"]
        for each in found
        if each["severity"] == "error" and Path(each["file"]) == file
    }


def run(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        sys.exit(f"{module} did not run:\n{done.stdout}{done.stderr}")
    return done.stdout


def wrong_lines(file: Path, checker: str) -> set[int]:
    pattern = re.compile(rf"# wrong(?: for {checker})?$")
    return {number for number, line in enumerate(file.read_text().splitlines(), 1) if pattern.search(line)}


def complaints(checker: Callable[[Path], Errors]) -> list[str]:
    found = []
    for file in (GOOD, BAD):
        errors, expected = checker(file), wrong_lines(file, checker.__name__)
        place = file.relative_to(ROOT)
        found += [f"{place}:{line}: {errors[line]}" for line in sorted(errors.keys() - expected)]
        found += [f"{place}:{line}: accepted, but should not be" for line in sorted(expected - errors.keys())]
        print(f"{checker.__name__}: {place}: {len(expected)} errors expected, {len(errors)} found")
    return [f"{each} [{checker.__name__}]" for each in found]


def main() -> int:
    found = complaints(mypy) + complaints(pyright)
    print("\n".join(found) or "types: as they should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
