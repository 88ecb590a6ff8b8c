"""The documentation says what the code says: its tables list what exists, and its examples run."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from django.apps import apps
from django.tasks import Task as DjangoTask
from django.test import override_settings
from django.utils.module_loading import import_string

import django_manta
from django_manta import (
    MantaBackend,
    Outcome,
    State,
    TaskContext,
    TaskResult,
    conf,
    exceptions,
    options,
    result,
    signals,
    states,
    testing,
)
from django_manta.backoff import Exponential
from django_manta.checks import CHECKS
from django_manta.execution.runners import inline
from django_manta.ledger import AttemptRecord, Ledger, fsck
from django_manta.models import RunQuerySet
from django_manta.testing import plugin
from tests.test_layout import FORBIDDEN, PACKAGE

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

type Row = dict[str, str]


# -- reading Markdown --------------------------------------------------------------------------------


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", without_code(page(name)), re.M | re.S)
    assert found, f"{name} has no heading {heading!r}"
    return found[1]


def without_code(text: str) -> str:
    """Indents what is fenced, so that a comment in an example is no heading."""
    return re.sub(r"^```.*?^```", lambda block: block[0].replace("\n", "\n    "), text, flags=re.M | re.S)


def table(name: str, heading: str, number: int = 0) -> list[Row]:
    """The rows of a table under a heading, each a dict by column."""
    drawn = re.findall(r"(?:^\|.*\n)+", section(name, heading), re.M)
    assert len(drawn) > number, f"{name} has no table {number + 1} under {heading!r}"
    head, rule, *body = [cells(line) for line in drawn[number].splitlines()]
    assert set("".join(rule)) <= set("-: "), f"{name}: {heading}: the second line must be a rule"
    return [dict(zip(head, line, strict=True)) for line in body]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def code(cell: str) -> str:
    """`name` → name; what follows in brackets or parentheses is for the reader."""
    found = re.match(r"`([^`]+)`", cell)
    assert found, f"{cell!r} is not code"
    return found[1]


def column(rows: list[Row], name: str) -> list[str]:
    return [code(row[name]) for row in rows]


def words(cell: str) -> set[str]:
    return {word.strip(" `") for word in cell.split(",")}


def python_blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page(name), re.M | re.S)


def listed_once(found: list[str], wanted: Any) -> None:
    assert sorted(found) == sorted(wanted)


# -- options, settings, checks -----------------------------------------------------------------------


def shown(value: Any) -> str:
    """A default as the documentation writes it."""
    if isinstance(value, Exponential):
        return f"exponential(first={value.first:g}, limit={value.limit:g})"
    if isinstance(value, timedelta):
        assert value == timedelta(days=value.days)
        return f"timedelta(days={value.days})"
    return repr(value)


def test_every_option_is_documented_as_it_is() -> None:
    rows = table("docs/options.md", "Ours")
    listed_once(column(rows, "option"), options.OPTIONS)
    for row in rows:
        option = options.OPTIONS[code(row["option"])]
        places = {"`@task`": option.in_decorator, "`.using()`": option.in_using, "settings": option.in_settings}
        assert code(row["default"]) == shown(option.default), option.name
        assert row["accepts"] == option.accepts, option.name
        assert row["given to"] == ", ".join(place for place, given in places.items() if given), option.name
        assert row["read"] == ("enqueue" if option.at_enqueue else "each attempt"), option.name


def test_django_s_own_options_are_documented() -> None:
    ours = {*options.OPTIONS, "func", "overridden"}
    listed_once(column(table("docs/options.md", "Django's"), "option"), set(DjangoTask.__dataclass_fields__) - ours)


def test_the_timeout_of_atomic_tasks_is_documented() -> None:
    [row] = [row for row in table("docs/options.md", "Ours") if code(row["option"]) == "timeout"]
    assert f"have {options.ATOMIC_TIMEOUT:g} seconds" in row["what it does"]


def test_every_setting_is_documented_as_it_is() -> None:
    rows = table("docs/settings.md", "In `OPTIONS`") + table("docs/settings.md", "Of the worker")
    listed_once(column(rows, "setting"), conf.SETTINGS)
    for row in rows:
        setting = conf.SETTINGS[code(row["setting"])]
        assert row["accepts"] == setting.accepts, setting.name
        if setting.name != "RETENTION":
            assert code(row["default"]) == shown(setting.default), setting.name


def test_the_default_retention_is_documented() -> None:
    rows = table("docs/settings.md", "Retention")
    assert {code(row["end"]): row["kept for"] for row in rows} == {
        state: f"{age.days} days" for state, age in conf.DEFAULT_RETENTION.items() if age is not None
    }


@pytest.mark.parametrize(
    ("name", "refused"),
    [("docs/options.md", options.NOT_BUILT), ("docs/settings.md", conf.NOT_BUILT)],
)
def test_what_is_refused_until_it_exists_is_documented(name: str, refused: frozenset[str]) -> None:
    listed_once(column(table(name, "Not built yet"), "refused"), refused)


def test_every_check_is_documented_as_it_is() -> None:
    rows = table("docs/checks.md", "System checks")
    assert {code(row["id"]): row["says"] for row in rows} == CHECKS
    for row in rows:
        assert row["level"] == ("error" if code(row["id"]).startswith("manta.E") else "warning"), row["id"]
        assert row["what to do"], row["id"]


def test_every_check_that_a_page_mentions_exists() -> None:
    for file in PAGES:
        assert set(re.findall(r"manta\.[EW]\d+", file.read_text())) <= set(CHECKS), file.name


# -- states and outcomes -----------------------------------------------------------------------------


def test_every_state_is_documented_with_its_moves() -> None:
    rows = table("docs/architecture.md", "States")
    listed_once(column(rows, "state"), State)
    for row in rows:
        state = State(code(row["state"]))
        assert row["Django's status"] == states.status_of(state).value, state
        assert words(row["may become"]) - {"nothing"} == states.MOVES[state], state


def test_every_outcome_is_documented_with_what_it_costs() -> None:
    rows = table("docs/architecture.md", "Outcomes")
    listed_once(column(rows, "outcome"), Outcome)
    costs = {Outcome.CRASHED: "quarantine", Outcome.LOST: "`max_losses`"}
    for row in rows:
        outcome = Outcome(code(row["outcome"]))
        charged = "`max_attempts`" if outcome in states.CHARGED else costs.get(outcome, "nothing")
        assert row["charged to"] == charged, outcome
        left = words(row["may leave its run"]) - {"nothing yet"}
        assert left == states.AFTER_OUTCOME.get(outcome, set()), outcome


def test_the_drawing_is_the_one_in_the_code() -> None:
    assert states.__doc__
    drawing = states.__doc__.split("::\n\n", 1)[1].split("\nThe database row", 1)[0]
    assert dedent(drawing).strip("\n") in [block.strip("\n") for block in fenced("docs/architecture.md")]


def fenced(name: str) -> list[str]:
    """The blocks that are no Python."""
    return re.findall(r"^```\n(.*?)^```", page(name), re.M | re.S)


def test_every_bad_end_is_documented_with_its_error() -> None:
    rows = table("docs/results.md", "Errors")
    listed_once(column(rows, "end"), states.BAD_ENDS)
    for row in rows:
        end = State(code(row["end"]))
        if end in result._END_ERRORS:
            assert code(row["the last error's class"]) == result._END_ERRORS[end].__name__, end
    for name in column(table("docs/results.md", "Errors", 1), "class"):
        assert hasattr(exceptions, name) or name.startswith("builtins."), name


# -- public names ------------------------------------------------------------------------------------


def test_every_public_name_is_documented() -> None:
    listed_once(column(table("docs/public-api.md", "`django_manta`"), "name"), django_manta.__all__)
    listed_once(column(table("docs/public-api.md", "`django_manta.testing`"), "name"), testing.__all__)


def test_every_exception_is_documented_with_what_it_derives_from() -> None:
    rows = table("docs/public-api.md", "`django_manta.exceptions`")
    assert {code(row["exception"]): words(row["derives from"]) for row in rows} == {
        name: {base.__name__ for base in kind.__bases__}
        for name, kind in vars(exceptions).items()
        if isinstance(kind, type) and kind.__module__ == exceptions.__name__
    }


def test_every_signal_is_documented() -> None:
    ours = {name for name, value in vars(signals).items() if isinstance(value, signals.Signal)}
    listed_once(column(table("docs/public-api.md", "`django_manta.signals`"), "signal"), ours)
    told = column(table("docs/middleware.md", "Signals"), "signal")
    assert {path.rpartition(".")[2] for path in told if path.startswith("django_manta.")} == ours
    for path in told:
        import_string(path)


def test_every_fixture_is_documented() -> None:
    fixtures = re.findall(r"@pytest\.fixture\ndef (\w+)", inspect.getsource(plugin))
    assert fixtures
    listed_once(column(table("docs/testing.md", "With pytest"), "fixture"), fixtures)


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_all_that_results_and_contexts_have_is_documented() -> None:
    for heading, kind in {"What it tells": TaskResult, "What a task is given": TaskContext}.items():
        rows = table("docs/results.md", heading)
        listed_once(column(rows, "name"), public(kind))
        ours = {code(row["name"]) for row in rows if row["from"] == "ours"}
        assert ours == (public(kind) - public(kind.__mro__[1])) | (ours & {"refresh", "arefresh"}), heading
    listed_once(column(table("docs/results.md", "History"), "field"), AttemptRecord.__dataclass_fields__)


def test_what_a_task_has_beyond_django_s_is_documented() -> None:
    ours = public(django_manta.Task) - public(DjangoTask) - set(options.OPTIONS) - {"overridden"}
    found = column(table("docs/public-api.md", "`django_manta`", 1), "method")
    listed_once(found, ours)
    assert {"enqueue_many", "aenqueue_many"} <= public(MantaBackend)


def test_what_the_documentation_uses_without_a_promise_exists() -> None:
    for path in column(table("docs/public-api.md", "Used in this documentation, not yet public"), "name"):
        try:
            import_string(path)
        except ImportError:
            __import__(path)


# -- operations and architecture ---------------------------------------------------------------------


def test_what_operators_are_told_of_exists() -> None:
    for call in column(table("docs/operations.md", "Runs"), "method"):
        name, arguments = re.fullmatch(r"ledger\.(\w+)\((.*)\)", call).groups()  # type: ignore[union-attr]
        given = [one.partition("=")[0].strip() for one in arguments.split(",")]
        assert list(inspect.signature(getattr(Ledger, name)).parameters) == ["self", *given], name
    for name in column(table("docs/architecture.md", "What stands around the path"), "ledger method"):
        assert callable(getattr(Ledger, name)), name


def test_drain_is_documented_as_it_is() -> None:
    listed_once(
        column(table("docs/operations.md", "Executing runs today"), "argument"),
        [
            f"{each.name}={str(each.default) if each.default is None else repr(each.default).replace("'", '"')}"
            for each in inspect.signature(inline.drain).parameters.values()
        ],
    )


def test_the_words_of_the_queryset_are_documented() -> None:
    refused = {"update", "bulk_update"}
    ours = {f"{name}()" for name in vars(RunQuerySet) if not name.startswith("_") and name not in refused}
    listed_once(column(table("docs/operations.md", "Looking"), "method"), ours)


def test_every_check_of_fsck_is_documented() -> None:
    checks = re.findall(r"SELECT\n    '([a-z-]+)'", (PACKAGE / "ledger" / "shared" / "fsck.sql").read_text())
    rows = table("docs/operations.md", "Checking the ledger")
    listed_once(column(rows, "check"), checks)
    repaired = {code(row["check"]) for row in rows if not row["repair"].startswith("by ")}
    assert repaired == set(fsck.REPAIRABLE)


def test_every_table_is_documented() -> None:
    rows = table("docs/architecture.md", "Data")
    assert {code(row["table"]): code(row["model"]) for row in rows} == {
        model._meta.db_table: model.__name__ for model in apps.get_app_config("manta").get_models()
    }


def test_the_layout_names_every_part() -> None:
    [drawn] = [block for block in fenced("docs/architecture.md") if "src/django_manta/" in block]
    announced = set(
        re.findall(r"`(\w+(?:/|\.py))`", section("docs/architecture.md", "Layout").partition("*To come:*")[2])
    )
    parts = {
        f"{child.name}/" if child.is_dir() else child.name
        for child in PACKAGE.iterdir()
        if child.suffix == ".py" or (child.is_dir() and (child / "__init__.py").exists())
    }
    # What is announced may be in the making.
    listed_once(re.findall(r"^  (\S+)", drawn, re.M), parts - announced)


def test_the_import_rules_are_those_that_are_tested() -> None:
    rows = table("docs/architecture.md", "What may import what")
    assert {code(row["part"]): words(row["must not import"]) for row in rows} == {
        part: set(others) for part, others in FORBIDDEN.items()
    }


# -- links and examples ------------------------------------------------------------------------------


def test_links_between_files_lead_somewhere() -> None:
    """In the pages at the root; mkdocs sees to those under docs/."""
    for file in sorted(ROOT.glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text()):
            assert (ROOT / target).exists(), f"{file.name} → {target}"


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_every_example_is_python(file: Path) -> None:
    name = str(file.relative_to(ROOT))
    for number, block in enumerate(python_blocks(name), 1):
        compile(block, f"{name}, example {number}", "exec")


def examples(name: str, first_line: str) -> list[str]:
    """The examples on a page that begin with a comment: a file to write, or the shell to type into."""
    return [block for block in python_blocks(name) if block.startswith(f"# {first_line}\n")]


SHELL = "python manage.py shell"


def expected(blocks: list[str]) -> list[str]:
    """``print(…)  # this`` prints this."""
    return [line for block in blocks for line in re.findall(r"^\s*print\(.*\)  # (.*)$", block, re.M)]


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The settings and the tasks of a page, in this process. The name of the page."""
    name: str = request.param
    settings: dict[str, Any] = {"INSTALLED_APPS": [], "DATABASES": {"default": {}}}
    [text] = examples(name, "shop/settings.py")
    exec(text, settings)
    (tmp_path / "mail").mkdir()
    (tmp_path / "mail" / "__init__.py").touch()
    [text] = examples(name, "mail/tasks.py")
    (tmp_path / "mail" / "tasks.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with override_settings(TASKS=settings["TASKS"]):
            yield name
    finally:
        for module in ("mail", "mail.tasks"):
            sys.modules.pop(module, None)


def type_into_the_shell(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = examples(name, SHELL)
    assert blocks
    typed: dict[str, Any] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{name}, shell {number}", "exec"), typed)
    assert capsys.readouterr().out.splitlines() == expected(blocks)


@pytest.mark.parametrize("project", ["README.md", "docs/quickstart.md"], indirect=True)
@pytest.mark.django_db
def test_the_start_works_as_it_says(project: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected(examples(project, SHELL))
    type_into_the_shell(project, capsys)


@pytest.mark.django_db
def test_what_operators_type_works_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    type_into_the_shell("docs/operations.md", capsys)


@pytest.mark.slow
@pytest.mark.sqlite  # the database of a new project
@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md"])
def test_a_stranger_can_paste_the_start_into_a_new_project(name: str, tmp_path: Path) -> None:
    def manage(*command: str) -> str:
        return run(sys.executable, "manage.py", *command)

    def run(*command: str) -> str:
        # Only what a stranger has: no settings of ours, no path of ours.
        theirs = {
            key: value for key, value in os.environ.items() if not key.startswith(("DJANGO_", "PYTHON", "MANTA"))
        }
        done = subprocess.run(command, cwd=tmp_path, env=theirs, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, "-m", "django", "startproject", "shop", ".")
    manage("startapp", "mail")
    with (tmp_path / "shop" / "settings.py").open("a") as settings:
        settings.write("\n".join(examples(name, "shop/settings.py")))
    (tmp_path / "mail" / "tasks.py").write_text("\n".join(examples(name, "mail/tasks.py")))
    manage("migrate", "--verbosity=0")
    assert "no issues" in manage("check")
    shell = examples(name, SHELL)
    assert manage("shell", "--verbosity=0", "--command", "\n".join(shell)).splitlines() == expected(shell)
