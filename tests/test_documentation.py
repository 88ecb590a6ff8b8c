"""The documentation says what the code says: its tables list what exists, and its examples run."""

import argparse
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from django.apps import apps
from django.core.management.base import CommandError
from django.tasks import Task as DjangoTask
from django.test import override_settings
from django.utils.module_loading import import_string

import django_manta
from chaos.__main__ import STORMS
from django_manta import (
    MantaBackend,
    Outcome,
    State,
    TaskContext,
    TaskResult,
    conf,
    exceptions,
    logs,
    options,
    payload,
    resources,
    result,
    signals,
    states,
    testing,
)
from django_manta.backoff import Exponential
from django_manta.checks import CHECKS
from django_manta.commands import VERBS
from django_manta.execution.runners import inline
from django_manta.ledger import AttemptRecord, Ledger, fsck
from django_manta.management.commands.manta import Command
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
        if setting.name not in ("RETENTION", "RAY"):
            assert code(row["default"]) == shown(setting.default), setting.name


def test_every_key_of_recycle_is_documented() -> None:
    listed_once(column(table("docs/settings.md", "Recycling"), "key"), conf._RECYCLE_KEYS)
    [example] = [block for block in python_blocks("docs/settings.md") if '"RECYCLE"' in block]
    shown_there: dict[str, Any] = {}
    exec(example, shown_there)
    assert list(conf.problems_of(shown_there["OPTIONS"])) == []


def test_what_ray_is_told_is_documented() -> None:
    assert [
        (code(row["`RAY`"]), code(row["default"]), row["what it does"]) for row in table("docs/ray.md", "On a cluster")
    ] == [(name, shown(default), words) for name, (_, default, words) in conf.RAY_KEYS.items()]
    assert [(code(row["`ray`"]), row["accepts"]) for row in table("docs/ray.md", "What a task asks for")] == [
        (name, accepts) for name, (_, accepts) in resources.KEYS.items()
    ]


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
    ours = [name for name, kind in vars(logs).items() if getattr(kind, "__module__", "") == logs.__name__]
    listed_once(column(table("docs/public-api.md", "`django_manta.logs`"), "name"), ours)


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
        column(table("docs/operations.md", "Executing without a worker"), "argument"),
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
    listed_once(column(rows, "check"), {*checks, fsck.BEHIND, fsck.IMPOSSIBLE, fsck.UNSIGNED})
    repaired = {code(row["check"]) for row in rows if not row["repair"].startswith("by ")}
    assert repaired == {*fsck.REPAIRABLE, fsck.BEHIND}


@pytest.mark.parametrize(("name", "heading"), [("CONTRIBUTING.md", "Storms"), ("docs/reliability.md", "The storms")])
def test_every_storm_is_documented_as_it_is(name: str, heading: str) -> None:
    rows = table(name, heading)
    assert [(code(row["storm"]), row["does"]) for row in rows] == list(STORMS.items())


def test_every_table_is_documented() -> None:
    rows = table("docs/architecture.md", "Data")
    assert {code(row["table"]): code(row["model"]) for row in rows} == {
        model._meta.db_table: model.__name__ for model in apps.get_app_config("manta").get_models()
    }


def parts_of(folder: Path) -> set[str]:
    return {
        f"{child.name}/" if child.is_dir() else child.name
        for child in folder.iterdir()
        if child.suffix == ".py" or (child.is_dir() and (child / "__init__.py").exists())
    }


def test_the_layout_names_every_part() -> None:
    [drawn] = [block for block in fenced("docs/architecture.md") if "src/django_manta/" in block]
    path: list[str] = []
    found: dict[str, list[str]] = {"": []}
    for indent, name in re.findall(r"^((?:  )+)(\S+)", drawn, re.M):
        del path[len(indent) // 2 - 1 :]
        found.setdefault("".join(path), []).append(name)
        path.append(name)
    listed_once(found.pop(""), parts_of(PACKAGE))
    # The path of a run, down to its files.
    assert set(found) == {
        "ledger/",
        "execution/",
        "execution/runners/",
        "execution/runners/ray/",
        "worker/",
        "workflow/",
    }
    for folder, names in found.items():
        listed_once(names, parts_of(PACKAGE / folder) - {"__init__.py"})


def test_the_import_rules_are_those_that_are_tested() -> None:
    rows = table("docs/architecture.md", "What may import what")
    assert {code(row["part"]): words(row["must not import"]) for row in rows} == {
        part: set(others) for part, others in FORBIDDEN.items()
    }


# -- running it --------------------------------------------------------------------------------------


def failures() -> Iterator[tuple[str, Row]]:
    """Every row of the tables of what happens, with the heading it stands under."""
    headings = re.findall(r"^## (.*)$", without_code(page("docs/what-happens-when.md")), re.M)
    for heading in headings:
        if "| what happens |" in section("docs/what-happens-when.md", heading):
            for row in table("docs/what-happens-when.md", heading):
                yield heading, row


def coded(cell: str, *kinds: Any) -> list[str]:
    """What a cell writes as code and is a member of one of these."""
    return [word for word in re.findall(r"`([^`]+)`", cell) if any(word in kind for kind in kinds)]


def test_every_failure_ends_as_the_states_allow() -> None:
    costs = {Outcome.CRASHED: {"quarantine"}, Outcome.LOST: {"`max_losses`", "nothing"}}
    costs |= {outcome: {"`max_attempts`"} for outcome in states.CHARGED}
    rows = list(failures())
    assert len(rows) > 50
    for heading, row in rows:
        what = row["what happens"]
        assert list(row) == ["what happens", "attempt", "run", "charged to", "how soon"]
        outcomes = [Outcome(word) for word in coded(row["attempt"], Outcome.values)]
        reached = {State(word) for word in coded(row["run"], State.values)}
        cancelled = {State.CANCELLED, State.SUCCESSFUL} if heading == "Cancel" else set()
        if not outcomes:
            assert row["attempt"].startswith(("none", "its own", "as ")), what
            continue
        allowed = set[State]().union(*(states.AFTER_OUTCOME[outcome] for outcome in outcomes))
        assert reached <= allowed | cancelled, what
        assert reached or row["run"].startswith("as "), what
        possible = {"nothing"} if heading == "Cancel" else costs.get(outcomes[-1], {"nothing"})
        assert row["charged to"] in possible, what


def test_every_outcome_and_every_end_has_a_failure_that_leads_there() -> None:
    rows = [row for _, row in failures()]
    outcomes = {word for row in rows for word in coded(row["attempt"], Outcome.values)}
    assert outcomes == {outcome.value for outcome in states.AFTER_OUTCOME}
    ends = {word for row in rows for word in coded(row["run"], states.ENDS)}
    assert ends == {end.value for end in states.ENDS}


def test_what_the_failures_name_exists() -> None:
    known = {
        *Outcome.values,
        *State.values,
        *options.OPTIONS,
        *conf.SETTINGS,
        *dir(exceptions),
        *flags_of("worker"),
    }
    for _, row in failures():
        for name in ("attempt", "run", "charged to"):
            assert set(re.findall(r"`([^`]+)`", row[name])) <= known, row["what happens"]


def test_budgets_and_numbers_are_those_of_the_code() -> None:
    first = page("docs/what-happens-when.md")
    assert f"`max_attempts` ({options.OPTIONS['max_attempts'].default})" in first
    assert f"`max_losses` ({options.OPTIONS['max_losses'].default})" in first
    assert f"quarantine ({states.CRASHES_TO_QUARANTINE}, fixed)" in first
    rows = table("docs/what-happens-when.md", "Numbers")
    for row in rows:
        assert float(row["seconds"]) == import_string(code(row["in the code"])), row["number"]
    grace = import_string("django_manta.execution.runners.flights.GRACE_SECONDS")
    killed = [row["how soon"] for _, row in failures() if "killed" in row["how soon"]]
    assert len(killed) > 4
    assert all(f"killed {grace:g} s" in soon for soon in killed)


def test_sizes_are_those_of_the_code() -> None:
    rows = table("docs/what-happens-when.md", "Sizes")
    assert len(rows) > 3
    for row in rows:
        assert int(row["MiB"]) * 2**20 == import_string(code(row["in the code"])), row["size"]
    assert f"more than {payload.ARGUMENTS_LIMIT // 2**20} MiB of arguments" in page("docs/what-happens-when.md")
    assert f"more than {payload.RESULT_LIMIT // 2**20} MiB of JSON" in page("docs/what-happens-when.md")


def parser_of(verb: str) -> argparse.ArgumentParser:
    parser = Command().create_parser("manage.py", "manta")
    [verbs] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    found: argparse.ArgumentParser = verbs.choices[verb]
    return found


def flags_of(verb: str) -> set[str]:
    return {flag for action in parser_of(verb)._actions for flag in action.option_strings}


def commands_on(text: str) -> list[list[str]]:
    """Every ``manage.py manta VERB …`` that a page gives, also as a list of words."""
    words = text.replace('", "', " ").replace('"]', "")
    return [shlex.split(found) for found in re.findall(r"manage\.py manta ([a-z]+(?: [\w$:.=-]+)*)", words)]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_every_command_that_a_page_gives_is_one(file: Path) -> None:
    text = file.read_text()
    for block in [*re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S), *re.findall(r"`([^`\n]+)`", text)]:
        for verb, *arguments in commands_on(block):
            assert verb in VERBS, file.name
            try:
                parser_of(verb).parse_args(arguments)
            except (SystemExit, CommandError):
                pytest.fail(f"{file.name}: manta {verb} {' '.join(arguments)}")
    assert set(re.findall(r"`manta ([a-z]+)", text)) <= set(VERBS), file.name


def test_whoever_stops_a_worker_waits_long_enough() -> None:
    text = page("docs/deploying.md")
    needed = conf.SETTINGS["STOP_TIMEOUT"].default + 2
    [systemd] = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.M)
    [compose] = re.findall(r"^ +stop_grace_period: (\d+)s$", text, re.M)
    assert int(systemd) > needed
    assert int(compose) > needed
    [procfile] = [flags for verb, *flags in commands_on(text) if verb == "worker" and "--stop-timeout" in flags]
    assert float(procfile[procfile.index("--stop-timeout") + 1]) + 2 <= 30
    assert f"default of `STOP_TIMEOUT` is {conf.SETTINGS['STOP_TIMEOUT'].default:g}" in text
    assert f"`LEASE_SECONDS` ({conf.SETTINGS['LEASE_SECONDS'].default:g})" in text
    assert f"`SKEW_SECONDS` ({conf.SETTINGS['SKEW_SECONDS'].default:g})" in text


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


@contextmanager
def working(*command: str, cwd: Path, env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, stopped as a person would stop it: it must end well."""
    with log.open("w") as output:
        worker = subprocess.Popen(
            [sys.executable, *command, "manta", "worker"], cwd=cwd, env=env, stdout=output, stderr=output
        )
    try:
        yield worker
        worker.send_signal(signal.SIGINT)
        assert worker.wait(30) == 0, log.read_text()
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait(10)


@pytest.fixture
def project(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    transactional_db: None,
    subprocess_environment: dict[str, str],
) -> Iterator[str]:
    """The settings and the tasks of a page, in this process and in a worker. The name of the page."""
    name: str = request.param
    settings: dict[str, Any] = {"INSTALLED_APPS": [], "DATABASES": {"default": {}}}
    settings["TASKS"] = {"default": {"BACKEND": "django_manta.MantaBackend"}}
    exec("\n".join(examples(name, "shop/settings.py")), settings)
    [app] = set(re.findall(r"^# (\w+)/tasks\.py$", page(name), re.M))
    (tmp_path / app).mkdir()
    (tmp_path / app / "__init__.py").touch()
    (tmp_path / app / "tasks.py").write_text("\n".join(examples(name, f"{app}/tasks.py")))
    theirs = f"from tests.settings import *\nINSTALLED_APPS += [{app!r}]\nTASKS = {settings['TASKS']!r}\n"
    (tmp_path / "worker_settings.py").write_text(theirs)
    monkeypatch.syspath_prepend(tmp_path)
    environment = {
        **subprocess_environment,
        "DJANGO_SETTINGS_MODULE": "worker_settings",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    try:
        with (
            override_settings(TASKS=settings["TASKS"]),
            working("-m", "django", cwd=ROOT, env=environment, log=tmp_path / "worker.log"),
        ):
            yield name
    finally:
        for module in (app, f"{app}.tasks"):
            sys.modules.pop(module, None)


def type_into_the_shell(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = examples(name, SHELL)
    assert blocks
    typed: dict[str, Any] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{name}, shell {number}", "exec"), typed)
    assert capsys.readouterr().out.splitlines() == expected(blocks)


@pytest.mark.parametrize("project", ["README.md", "docs/quickstart.md", "docs/workflows.md"], indirect=True)
def test_what_is_typed_works_as_it_says(project: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected(examples(project, SHELL))
    type_into_the_shell(project, capsys)


@pytest.mark.django_db
def test_what_operators_type_works_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    type_into_the_shell("docs/operations.md", capsys)


@pytest.mark.slow
@pytest.mark.sqlite  # the database of a new project
@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md"])
def test_a_stranger_can_paste_the_start_into_a_new_project(name: str, tmp_path: Path) -> None:
    # Only what a stranger has: no settings of ours, no path of ours.
    theirs = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO_", "PYTHON", "MANTA"))}

    def manage(*command: str) -> str:
        return run(sys.executable, "manage.py", *command)

    def run(*command: str) -> str:
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
    with working("manage.py", cwd=tmp_path, env=theirs, log=tmp_path / "worker.log"):
        typed = manage("shell", "--verbosity=0", "--command", "\n".join(shell))
    assert typed.splitlines() == expected(shell)
