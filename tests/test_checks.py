"""System checks: stable ids, hints, and silence when all is well."""

from typing import Any

import pytest
from django.core import checks as system
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connections
from django.tasks import task_backends
from django.tasks.exceptions import InvalidTask
from django.test import override_settings

from django_manta.checks import CHECKS
from tests.app import tasks

# Django's own model checks ask SQLite what it can do.
pytestmark = pytest.mark.django_db(databases=["default", "other"])

GOOD: dict[str, Any] = {"BACKEND": "django_manta.MantaBackend", "QUEUES": ["default", "urgent", "slow"]}


class ToOther:
    """Sends manta's tables to the second database."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "manta" else None

    db_for_write = db_for_read


def found(**settings: Any) -> dict[str, Any]:
    with override_settings(**settings):
        messages = system.run_checks()
    ours = {message.id: message for message in messages if str(message.id).startswith("manta.")}
    for message in ours.values():
        assert message.hint, message
        assert message.id in CHECKS
    return ours


def with_options(options: Any, **rest: Any) -> dict[str, Any]:
    return {"TASKS": {"default": {**GOOD, "OPTIONS": options, **rest}}}


def test_a_good_project_hears_nothing() -> None:
    assert found() == {}
    assert found(**with_options({"TASK_DEFAULTS": {"max_attempts": 3}, "RETENTION": {"FAILED": None}})) == {}


@pytest.mark.parametrize(
    ("options", "check", "words"),
    [
        ({"TASK_DEFAULT": {}}, "manta.E001", "Unknown option 'TASK_DEFAULT'."),
        ({"task_defaults": {}}, "manta.E001", "Unknown option 'task_defaults'."),
        ({"RAY": {"ADDRESS": "auto"}}, "manta.E002", "RAY ADDRESS must be 'local', 'host:port' or 'ray://host:port'"),
        ({"RAY": {"WORKERS": 3}}, "manta.E002", "RAY knows ADDRESS"),
        ({"RAY": {"AHEAD": 0}}, "manta.E002", "RAY AHEAD must be a whole number above 0, not 0."),
        ({"RUNTIME_ENVS": {"a": {"pipp": []}}}, "manta.E002", "not 'pipp' in 'a'"),
        ({"RUNTIME_ENVS": {"a": {"EXTENDS": "b"}}}, "manta.E002", "must define what 'a' extends, 'b'"),
        (
            {"RUNTIME_ENVS": {"a": {"EXTENDS": "b"}, "b": {"EXTENDS": "a"}}},
            "manta.E002",
            "must not go round in circles: a extends b extends a",
        ),
        ({"RUNTIME_ENVS": {"a": {"env_vars": {"X": 1}}}}, "manta.E002", "must have strings as env_vars in 'a'"),
        ({"RUNTIME_ENVS": {"a": {"working_dir": "."}}}, "manta.E002", "must have a URI as working_dir in 'a', not '.'"),
        ({"SCHEDULES": []}, "manta.E001", "Option 'SCHEDULES' is not supported"),
        ({"TASK_DEFAULTS": 3}, "manta.E002", "TASK_DEFAULTS must be a dict of task keywords, not 3."),
        ({"TASK_DEFAULTS": {"max_attempts": "3"}}, "manta.E002", "max_attempts must be a whole number, not '3'"),
        ({"TASK_DEFAULTS": {"aliases": ["a.b"]}}, "manta.E002", "'aliases' cannot be given in settings"),
        ({"TASK_DEFAULTS": {"tries": 3}}, "manta.E002", "Unknown task option 'tries'"),
        ({"QUEUE_OPTIONS": {"slow": {"runner": "threads"}}}, "manta.E002", "slow: runner must be one of processes, "),
        ({"QUEUE_OPTIONS": {"slow": 3}}, "manta.E002", "must be a dict of options of queue 'slow', not 3"),
        ({"TASK_OPTIONS": {"a.b": {"timeout": -1}}}, "manta.E002", "a.b: Task option timeout must be"),
        ({"SKEW_SECONDS": "10"}, "manta.E002", "SKEW_SECONDS must be seconds (0 or more) or a timedelta"),
        ({"CLUSTER": ""}, "manta.E002", "CLUSTER must be a name, not ''."),
        ({"MIDDLEWARE": "a.b"}, "manta.E002", "MIDDLEWARE must be a list of dotted paths, not 'a.b'."),
        ({"RETENTION": {"READY": None}}, "manta.E002", "knows the states"),
        ({"RETENTION": {"FAILED": 3}}, "manta.E002", "must give a timedelta or None"),
        ([], "manta.E002", "OPTIONS must be a dict, not []."),
        (
            {"CLUSTER": "c" * 58},
            "manta.E002",
            f"CLUSTER must have at most 57 bytes in UTF-8, and '{'c' * 58}' has 58.",
        ),
        (
            {"CLUSTER": "ü" * 40},
            "manta.E002",
            f"CLUSTER must have at most 57 bytes in UTF-8, and '{'ü' * 40}' has 80.",
        ),
        ({"CLUSTER": "shop\0"}, "manta.E002", "CLUSTER must be printable, not 'shop\\x00'."),
        ({"TASK_DEFAULTS": {"backoff": 10**400}}, "manta.E002", "backoff must be a finite number of seconds"),
        ({"MIDDLEWARE": ["tests.broken.x"]}, "manta.E008", "MIDDLEWARE: 'tests.broken.x' cannot be imported"),
        ({"MIDDLEWARE": ["tests.nowhere.x"]}, "manta.E008", "MIDDLEWARE: 'tests.nowhere.x' cannot be imported"),
        ({"DATABASE": "third"}, "manta.E009", "DATABASE is 'third', which is not in DATABASES."),
        ({"QUEUE_OPTIONS": {"gpu": {"timeout": 3}}}, "manta.W002", "queue 'gpu' has QUEUE_OPTIONS but is not"),
        ({"TASK_OPTIONS": {"no.such": {"timeout": 3}}}, "manta.W005", "Task 'no.such' cannot be found"),
    ],
)
def test_settings_that_are_wrong(options: Any, check: str, words: str) -> None:
    messages = found(**with_options(options))
    assert set(messages) == {check}
    assert words in messages[check].msg


def test_settings_that_are_wrong_are_also_refused_when_used() -> None:
    with (
        override_settings(**with_options({"TASK_DEFAULT": {}, "CLUSTER": 3})),
        pytest.raises(ImproperlyConfigured) as caught,
    ):
        _ = task_backends["default"].config
    assert "Unknown option 'TASK_DEFAULT'. Did you mean 'TASK_DEFAULTS'?" in str(caught.value)
    assert "CLUSTER must be a name, not 3." in str(caught.value)


def test_time_zones_are_needed() -> None:
    assert "manta.E006" in found(USE_TZ=False)


@pytest.mark.parametrize(
    ("key", "debug", "weak"),
    [
        ("short", True, True),
        ("a" * 60, True, True),
        ("django-insecure-" + "0123456789" * 5, False, True),
        ("django-insecure-" + "0123456789" * 5, True, False),
        ("0123456789" * 5, False, False),
    ],
)
def test_a_weak_key(key: str, debug: bool, weak: bool) -> None:
    assert ("manta.W001" in found(SECRET_KEY=key, DEBUG=debug)) == weak


def test_two_backends_that_share_a_queue() -> None:
    messages = found(TASKS={"default": GOOD, "second": {**GOOD, "QUEUES": ["slow", "own"]}})
    assert set(messages) == {"manta.W004"}
    assert "TASKS['default'] and TASKS['second'] share: slow." in messages["manta.W004"].msg


def test_two_backends_of_different_clusters_on_one_database() -> None:
    second = {**GOOD, "QUEUES": ["own"], "OPTIONS": {"CLUSTER": "second"}}
    messages = found(TASKS={"default": GOOD, "second": second})
    assert set(messages) == {"manta.E015"}
    words = "keep their tables in database 'default', and their CLUSTERs are 'default' and 'second'."
    assert words in messages["manta.E015"].msg
    second["OPTIONS"]["DATABASE"] = "other"
    assert "manta.E015" not in found(TASKS={"default": GOOD, "second": second})


def test_tables_in_another_database_and_atomic_tasks_on_such_a_set_up() -> None:
    messages = found(DATABASE_ROUTERS=["tests.test_checks.ToOther"])
    assert set(messages) == {"manta.W003", "manta.E007"}
    assert "is atomic, but manta's tables are in database 'other'" in messages["manta.E007"].msg
    assert tasks.write_atomically.module_path


@pytest.fixture
def no_autocommit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "AUTOCOMMIT", False)


def test_a_database_must_commit_what_nobody_begins(no_autocommit: None) -> None:
    messages = found()
    assert set(messages) == {"manta.E014"}
    assert "Database 'default' has AUTOCOMMIT = False" in messages["manta.E014"].msg


@pytest.mark.parametrize("verb", [["worker"], ["cancel", "--all"], ["list"]], ids=lambda verb: verb[0])
def test_no_command_goes_on_where_nothing_it_does_would_be_committed(no_autocommit: None, verb: list[str]) -> None:
    with (
        override_settings(SILENCED_SYSTEM_CHECKS=["manta.E014"]),
        pytest.raises(CommandError, match="would commit nothing"),
    ):
        call_command("manta", *verb)


@pytest.mark.sqlite
def test_sqlite_must_begin_immediate() -> None:
    options = connections["default"].settings_dict["OPTIONS"]
    former = options.pop("transaction_mode")
    try:
        assert set(found()) == {"manta.E004"}
    finally:
        options["transaction_mode"] = former


def test_other_databases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connections["default"]), "vendor", "mysql")
    assert "manta.E005" in found()


@pytest.mark.postgres
def test_psycopg2_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", False)
    assert set(found()) == {"manta.E003"}


@pytest.mark.parametrize("queues", ["default", [1], [None], [""]])
def test_queues_are_a_list_of_names(queues: Any) -> None:
    messages = found(TASKS={"default": {**GOOD, "QUEUES": queues}})
    assert "QUEUES must be a list of names" in messages["manta.E002"].msg


def test_the_app_must_be_installed() -> None:
    from django.conf import settings
    from django.test import modify_settings

    with modify_settings(INSTALLED_APPS={"remove": "django_manta"}):
        assert "django_manta" not in settings.INSTALLED_APPS
        messages = {message.id for message in task_backends["default"].check()}
        assert messages == {"manta.E010"}
        with pytest.raises(ImproperlyConfigured, match="Add 'django_manta' to INSTALLED_APPS"):
            tasks.add.enqueue(1, 2)


@pytest.mark.parametrize(
    ("options", "who"),
    [
        ({"RAY": {"RUNTIME_ENV": "gone"}}, "RAY['RUNTIME_ENV']"),
        ({"TASK_OPTIONS": {"tests.app.tasks.add": {"ray": {"runtime_env": "gone"}}}}, "tests.app.tasks.add"),
    ],
)
def test_an_environment_on_ray_must_exist(options: dict[str, Any], who: str) -> None:
    options |= {"QUEUE_OPTIONS": {"default": {"runner": "ray"}}, "RUNTIME_ENVS": {"there": {}}}
    [message] = found(**with_options(options)).values()
    assert message.id == "manta.E012"
    assert f"{who} names the profile 'gone'" in message.msg
    assert message.hint == "RUNTIME_ENVS has: 'there'."


def test_where_ray_takes_jobs_must_be_said() -> None:
    options = {"QUEUE_OPTIONS": {"default": {"runner": "ray_job"}}}
    [message] = found(**with_options(options)).values()
    assert message.id == "manta.E013"
    assert "queue 'default' has the runner 'ray_job', and RAY has no DASHBOARD" in message.msg
    assert found(**with_options(options | {"RAY": {"DASHBOARD": "http://head:8265"}})) == {}
    [message] = found(**with_options(options | {"RAY": {"DASHBOARD": "head:8265"}})).values()
    assert "RAY DASHBOARD must be a URL such as 'http://ray-head:8265', not 'head:8265'" in message.msg


def test_a_run_for_an_environment_that_does_not_exist_is_refused() -> None:
    with (
        override_settings(**with_options({"RUNTIME_ENVS": {"there": {}}})),
        pytest.raises(InvalidTask, match="RUNTIME_ENVS has no profile 'gone'; it has: 'there'"),
    ):
        tasks.add.using(ray={"runtime_env": "gone"}).enqueue(1, 2)


@pytest.mark.sqlite
def test_sqlite_must_not_have_a_time_zone_of_its_own() -> None:
    settings = connections["default"].settings_dict
    settings["TIME_ZONE"] = "Asia/Kolkata"
    try:
        assert set(found()) == {"manta.E011"}
    finally:
        settings["TIME_ZONE"] = None
