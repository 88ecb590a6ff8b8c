#!/usr/bin/env python
"""Run Django's `tests/tasks` against our backend, on the database that MANTA_TEST_DATABASE names.

    python conformance/run.py [-v] [-k PATTERN]

The tests come from the source distribution of the installed Django, by pip, once: it is kept in
.cache/conformance. Exits with 1 when a test failed, was skipped, or too few ran.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django
from django.test.runner import DiscoverRunner
from django.test.utils import iter_test_cases  # type: ignore[attr-defined]  # missing in the stubs

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "conformance"

#: Fewer than this, and something was not found.
LEAST_TESTS = 80

#: Only what is true of Django's example backends and must not be of ours.
LEFT_OUT = {
    "tasks.test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result": (
        "asserts that the immediate backend keeps no results; ours keeps them (supports_get_result)"
    ),
    "tasks.test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result": (
        "asserts that a result of the immediate backend cannot be refreshed; ours can"
    ),
    "tasks.test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after": (
        "asserts that the immediate backend refuses run_after; ours keeps it (supports_defer)"
    ),
}

#: The tests of these use backends that they define themselves: they run as they are and show that Django's
#: framework is whole beside ours.
THEIR_OWN_BACKENDS = {"tasks.test_custom_backend"}


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Text in a file of Django's tests, and what takes its place wherever it occurs."""

    file: str
    old: str
    new: str


def rewrites() -> Iterator[Rewrite]:
    for kind, files in {
        "dummy": ["test_dummy_backend.py", "test_tasks.py"],
        "immediate": ["test_immediate_backend.py", "test_tasks.py"],
    }.items():
        for file in files:
            # Both the imports and the dotted paths in TASKS.
            yield Rewrite(file, f"django.tasks.backends.{kind}", "conformance.backends")
    for file in ("test_dummy_backend.py", "test_immediate_backend.py", "test_tasks.py"):
        yield Rewrite(file, "(SimpleTestCase):", "(LedgerTestCase):")
        yield Rewrite(file, "from . import", "from conformance.case import LedgerTestCase\nfrom . import")
    for file in ("test_dummy_backend.py", "test_immediate_backend.py"):
        yield Rewrite(file, "(TransactionTestCase):\n    available_apps = []\n", "(LedgerTestCase):\n")
    # The dummy's list of results is its store, and the tests change it by hand. Our store is the ledger,
    # where a run becomes successful by being executed.
    yield Rewrite(
        "test_dummy_backend.py",
        'object.__setattr__(enqueued_result, "status", TaskResultStatus.SUCCESSFUL)',
        "default_task_backend.execute_all()",
    )


#: The files of tests/tasks. A new one must be looked at by a person first.
KNOWN_FILES = {
    "__init__.py",
    "tasks.py",
    "test_custom_backend.py",
    *(rewrite.file for rewrite in rewrites()),
}

#: Must not be left in a file that was rewritten.
TIES = re.compile(r"django\.tasks\.backends(?!\.base)|\((Simple|Transaction)?TestCase\)")


# -- the tests ---------------------------------------------------------------------------------------


def source_distribution(version: str) -> Path:
    """Django's sdist, from the package index that pip is configured for."""
    kept = CACHE / f"django-{version}.tar.gz"
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        print(f"Fetching the source distribution of Django {version} …", flush=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            # --no-binary for Django alone: what pip needs to read the sdist's metadata comes as wheels.
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            options = ["--no-deps", "--no-binary", "django", "--dest", directory]
            subprocess.run([*download, *options, f"django=={version}"], check=True)
            [fetched] = Path(directory).iterdir()
            fetched.rename(kept)  # at once, so that what is kept is whole
    return kept


def unpack(archive: Path, into: Path) -> None:
    """Write the rewritten tests to `into`/tasks: they name themselves `tasks.tasks…`."""
    with tarfile.open(archive) as members:
        sources = {
            Path(member.name).name: members.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in members
            if member.isfile() and Path(member.name).parent.parts[1:] == ("tests", "tasks")
        }
    if set(sources) != KNOWN_FILES:
        sys.exit(f"tests/tasks has other files than expected: {sorted(set(sources) ^ KNOWN_FILES)}.")
    for rewrite in rewrites():
        if rewrite.old not in sources[rewrite.file]:
            sys.exit(f"{rewrite.file} no longer has {rewrite.old!r}: Django's tests changed, see run.py.")
        sources[rewrite.file] = sources[rewrite.file].replace(rewrite.old, rewrite.new)
    for file in {rewrite.file for rewrite in rewrites()}:
        if left := TIES.search(sources[file]):
            sys.exit(f"{file} still has {left.group()!r} after the rewrites: Django's tests changed.")
    (into / "tasks").mkdir()
    for file, source in sources.items():
        (into / "tasks" / file).write_text(source)


# -- the run -----------------------------------------------------------------------------------------


class Runner(DiscoverRunner):
    """Django's runner, without the tests that are left out; remembers what happened."""

    tests: list[unittest.TestCase]
    result: unittest.TestResult

    def build_suite(self, *args: Any, **kwargs: Any) -> unittest.TestSuite:
        self.tests = list(iter_test_cases(super().build_suite(*args, **kwargs)))
        return unittest.TestSuite(test for test in self.tests if test.id() not in LEFT_OUT)

    def suite_result(self, suite: unittest.TestSuite, result: unittest.TestResult, **kwargs: Any) -> int:
        self.result = result
        return len(self.not_passed)

    @property
    def not_passed(self) -> set[str]:
        bad = [*self.result.failures, *self.result.errors, *self.result.skipped]
        bad += [(test, "") for test in self.result.unexpectedSuccesses]
        # A subtest counts as its test.
        return {getattr(test, "test_case", test).id() for test, _ in bad}


def vacuous(runner: Runner) -> Iterator[str]:
    """Reasons to believe that a pass would mean nothing."""
    from conformance import case

    found = {test.id() for test in runner.tests}
    if missing := {*LEFT_OUT, *case.SYNCHRONOUS_IN_ASYNC} - found:
        yield f"tests that are named here do not exist: {sorted(missing)}"
    for module in ("django.tasks.backends.dummy", "django.tasks.backends.immediate"):
        if module in sys.modules:
            yield f"{module} was imported: something used Django's backend instead of ours"
    for kind in {type(test) for test in runner.tests}:
        if issubclass(kind, case.LedgerTestCase):
            if not case.runs_seen[kind.__qualname__]:
                yield f"no test of {kind.__qualname__} enqueued a run in the ledger"
        elif kind.__module__ not in THEIR_OWN_BACKENDS:
            yield f"{kind.__qualname__} does not use our backend"
    if runner.result.testsRun < LEAST_TESTS:
        yield f"only {runner.result.testsRun} tests ran, fewer than {LEAST_TESTS}"


def report(runner: Runner, database: str) -> int:
    from conformance import case

    theirs = sum(type(test).__module__ in THEIR_OWN_BACKENDS for test in runner.tests)
    ran = runner.result.testsRun
    print(f"The tests of Django {django.__version__}:")
    for kind, runs in sorted(case.runs_seen.items()):
        print(f"  {kind}: {runs} runs in the ledger, {case.attempts_seen[kind]} attempts")
    print(
        f"{case.runs_seen.total()} runs passed through the ledger, {case.attempts_seen.total()} attempts were "
        f"settled there; {theirs} tests use custom backends of their own and none of ours."
    )
    doubts = list(vacuous(runner))
    for doubt in doubts:
        print(f"NOT CONFORMANT: {doubt}.")
    for test in sorted(runner.not_passed):
        print(f"NOT PASSED: {test}")
    print(
        f"conformance on {database}: {len(runner.tests)} tests, {ran} ran, "
        f"{ran - len(runner.not_passed)} passed, {len(LEFT_OUT)} left out"
    )
    for test, reason in LEFT_OUT.items():
        print(f"  left out: {test}: {reason}")
    return 1 if doubts or runner.not_passed else 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-v", "--verbose", action="store_true", help="name each test")
    parser.add_argument("-k", action="append", help="only tests whose name has this")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="manta-conformance-") as directory:
        unpack(source_distribution(django.__version__), Path(directory))
        # In place of this script's own directory: `conformance`, `tests.settings`, and Django's `tasks`.
        sys.path[0:1] = [str(HERE.parent), directory]
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        django.setup()
        runner = Runner(verbosity=2 if options.verbose else 1, interactive=False, test_name_patterns=options.k)
        runner.run_tests(["tasks"])
        return report(runner, os.environ.get("MANTA_TEST_DATABASE", "postgres"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
