"""
System checks, each with a stable id and a hint.

Django runs ``backend.check()`` for every alias in ``TASKS`` once ``django.tasks`` is imported, which
our AppConfig sees to. Nothing here asks the database anything.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.tasks import task_backends

from django_manta import conf, enqueue, options
from django_manta.exceptions import TaskNotFound
from django_manta.result import data_databases
from django_manta.task import Task, find, load_tasks

if TYPE_CHECKING:
    from django_manta.backend import MantaBackend

#: Every check: what it says. The documentation lists this table.
CHECKS: Final[dict[str, str]] = {
    "manta.E001": "An option in OPTIONS is unknown, or its feature does not exist yet.",
    "manta.E002": "An option in OPTIONS has a value of the wrong kind.",
    "manta.E003": "psycopg 3 is missing; psycopg2 is not enough.",
    "manta.E004": "SQLite does not begin its transactions IMMEDIATE.",
    "manta.E005": "manta's tables are in a database that is neither PostgreSQL nor SQLite.",
    "manta.E006": "USE_TZ is off.",
    "manta.E007": "A task is atomic, but manta's tables are in another database than the data.",
    "manta.E008": "A middleware cannot be imported.",
    "manta.E009": "DATABASE names no database of this project.",
    "manta.E010": "django_manta is not among INSTALLED_APPS.",
    "manta.E011": "SQLite has a time zone of its own.",
    "manta.E012": "A task names an environment on Ray that RUNTIME_ENVS does not have.",
    "manta.E013": "A queue has the runner ray_job, and nothing says where Ray takes jobs.",
    "manta.E014": "manta's tables are in a database whose AUTOCOMMIT is off.",
    "manta.E015": "Two backends keep their tables in one database and have different CLUSTERs.",
    "manta.W001": "SECRET_KEY is weak.",
    "manta.W002": "A queue has options but is not among QUEUES.",
    "manta.W003": "manta's tables are in another database than the data.",
    "manta.W004": "Two backends share a queue.",
    "manta.W005": "TASK_OPTIONS names something that is not a task.",
}

#: What Django itself calls a key too short.
_KEY_LENGTH, _KEY_UNIQUE_CHARACTERS = 50, 5


def check_backend(backend: "MantaBackend") -> Iterator[CheckMessage]:
    """All that can be known to be wrong with a backend before it is used."""
    if not apps.is_installed("django_manta"):
        yield Error(
            f"TASKS[{backend.alias!r}] uses django-manta, but 'django_manta' is not among INSTALLED_APPS.",
            hint="Add it, and migrate: its tables are where runs live.",
            id="manta.E010",
        )
        return
    problems = [*conf.problems_of(backend.options), *_queue_problems(backend.alias)]
    for problem in problems:
        yield Error(f"TASKS[{backend.alias!r}]: {problem.message}", hint=problem.hint, id=f"manta.{problem.check}")
    yield from _check_time_zone()
    yield from _check_key()
    if problems:
        # The rest reads the settings, which cannot be read.
        return
    yield from _check_queues(backend)
    yield from _check_middleware(backend)
    yield from _check_task_options(backend)
    yield from _check_environments(backend)
    yield from _check_dashboard(backend)
    yield from _check_database(backend)


def _queue_problems(alias: str) -> Iterator[conf.Problem]:
    queues = task_backends.settings[alias].get("QUEUES", [])
    if isinstance(queues, str) or not all(isinstance(name, str) and name.strip() for name in queues):
        yield conf.Problem(
            "E002", f"QUEUES must be a list of names, not {queues!r}.", "Write QUEUES: ['default', 'mail']."
        )


def _check_time_zone() -> Iterator[CheckMessage]:
    if not settings.USE_TZ:
        yield Error(
            "django-manta needs USE_TZ = True: its moments are aware datetimes.",
            hint="Set USE_TZ = True, which is Django's default.",
            id="manta.E006",
        )


def _check_key() -> Iterator[CheckMessage]:
    key: Any = settings.SECRET_KEY  # str or bytes
    insecure = isinstance(key, str) and key.startswith("django-insecure-") and not settings.DEBUG
    if len(key) < _KEY_LENGTH or len(set(key)) < _KEY_UNIQUE_CHARACTERS or insecure:
        yield CheckWarning(
            "SECRET_KEY is weak. It signs what workers execute: whoever guesses it and can write to the "
            "database can make them run any of your tasks.",
            hint=(
                f"Use at least {_KEY_LENGTH} random characters, such as from "
                "django.core.management.utils.get_random_secret_key(); rotate by SECRET_KEY_FALLBACKS."
            ),
            id="manta.W001",
        )


def _check_queues(backend: "MantaBackend") -> Iterator[CheckMessage]:
    if backend.queues:
        for queue in sorted(set(backend.config.queue_options) - backend.queues):
            yield CheckWarning(
                f"TASKS[{backend.alias!r}]: queue {queue!r} has QUEUE_OPTIONS but is not among QUEUES.",
                hint=f"Add {queue!r} to QUEUES: nothing can be enqueued there.",
                id="manta.W002",
            )
    for alias in sorted(task_backends.settings):
        other = task_backends[alias]
        if alias > backend.alias and isinstance(other, type(backend)) and other.queues & backend.queues:
            shared = ", ".join(sorted(other.queues & backend.queues))
            yield CheckWarning(
                f"TASKS[{backend.alias!r}] and TASKS[{alias!r}] share: {shared}. A worker of either takes the "
                "runs of both.",
                hint="Queues are known by their names alone; give each backend its own.",
                id="manta.W004",
            )


def _check_middleware(backend: "MantaBackend") -> Iterator[CheckMessage]:
    for setting in ("MIDDLEWARE", "ENQUEUE_MIDDLEWARE"):
        for path in getattr(backend.config, setting.lower()):
            try:
                enqueue.load(path, setting)
            except ImproperlyConfigured as error:
                yield Error(
                    f"TASKS[{backend.alias!r}]: {error}",
                    hint="Name a callable by its dotted path.",
                    id="manta.E008",
                )


def _check_task_options(backend: "MantaBackend") -> Iterator[CheckMessage]:
    for path in backend.config.task_options:
        try:
            find(path)
        except TaskNotFound as error:
            yield CheckWarning(
                f"TASKS[{backend.alias!r}]: TASK_OPTIONS: {error}",
                hint="Options are found by the dotted path of the function, where it is defined.",
                id="manta.W005",
            )


def _check_environments(backend: "MantaBackend") -> Iterator[CheckMessage]:
    if not any(given.get("runner") in conf.ON_RAY for given in backend.config.queue_options.values()):
        # Nobody asks for one, and to look would import every task.
        return
    profiles = backend.config.runtime_envs
    named = {task.module_path: options.effective(task, backend.config).ray for task in _tasks_of(backend)}
    wanted = {path: asked["runtime_env"] for path, asked in named.items() if "runtime_env" in asked}
    if backend.config.ray["RUNTIME_ENV"] is not None:
        wanted["RAY['RUNTIME_ENV']"] = backend.config.ray["RUNTIME_ENV"]
    for path, profile in wanted.items():
        if profile not in profiles:
            yield Error(
                f"TASKS[{backend.alias!r}]: {path} names the profile {profile!r}, which RUNTIME_ENVS does not have.",
                hint=f"RUNTIME_ENVS has: {', '.join(map(repr, profiles)) or 'nothing'}.",
                id="manta.E012",
            )


def _check_dashboard(backend: "MantaBackend") -> Iterator[CheckMessage]:
    if backend.config.ray["DASHBOARD"] is not None:
        return
    for queue, given in backend.config.queue_options.items():
        if given.get("runner") == "ray_job":
            yield Error(
                f"TASKS[{backend.alias!r}]: queue {queue!r} has the runner 'ray_job', and RAY has no DASHBOARD.",
                hint="Jobs are submitted to Ray's dashboard: RAY = {'DASHBOARD': 'http://ray-head:8265'}.",
                id="manta.E013",
            )


def _check_database(backend: "MantaBackend") -> Iterator[CheckMessage]:
    if backend.config.database is not None and backend.config.database not in connections.settings:
        yield Error(
            f"TASKS[{backend.alias!r}]: DATABASE is {backend.config.database!r}, which is not in DATABASES.",
            hint=f"DATABASES has: {', '.join(connections.settings)}.",
            id="manta.E009",
        )
        return
    yield from _check_vendor(backend.database)
    yield from _check_cluster(backend)
    if backend.database == DEFAULT_DB_ALIAS:
        return
    data = data_databases()
    if backend.database not in data:
        yield CheckWarning(
            f"manta's tables are in database {backend.database!r}, your data in {', '.join(map(repr, data))}: an "
            "enqueue does not join the transaction of your data.",
            hint="Enqueue in on_commit() there, or keep the tables together. atomic=True is refused.",
            id="manta.W003",
        )
    yield from _check_atomic_tasks(backend)


def _check_cluster(backend: "MantaBackend") -> Iterator[CheckMessage]:
    for alias in sorted(task_backends.settings):
        other = task_backends[alias]
        if alias <= backend.alias or not isinstance(other, type(backend)) or any(conf.problems_of(other.options)):
            continue
        if other.database == backend.database and other.config.cluster != backend.config.cluster:
            yield Error(
                f"TASKS[{backend.alias!r}] and TASKS[{alias!r}] keep their tables in database {backend.database!r}, "
                f"and their CLUSTERs are {backend.config.cluster!r} and {other.config.cluster!r}.",
                hint="One database holds one cluster: workers of the other one refuse to start. Give both the same.",
                id="manta.E015",
            )


def _check_vendor(database: str) -> Iterator[CheckMessage]:
    connection = connections[database]
    if not connection.settings_dict["AUTOCOMMIT"]:
        yield Error(
            without_autocommit(database),
            hint=f"Remove AUTOCOMMIT from DATABASES[{database!r}]; where you need to, call set_autocommit(False).",
            id="manta.E014",
        )
    if connection.vendor == "postgresql":
        from django.db.backends.postgresql.psycopg_any import is_psycopg3

        if not is_psycopg3:
            yield Error(
                "django-manta needs psycopg 3; this project's PostgreSQL runs on psycopg2.",
                hint="pip install 'django-manta[postgres]'",
                id="manta.E003",
            )
    elif connection.vendor == "sqlite":
        mode = (connection.settings_dict.get("OPTIONS") or {}).get("transaction_mode")
        if str(mode).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
            yield Error(
                f"Database {database!r} is SQLite with transaction_mode {mode!r}: a transaction that first reads "
                "and then writes fails at once when another one writes meanwhile.",
                hint=f'Set DATABASES[{database!r}]["OPTIONS"] = {{"transaction_mode": "IMMEDIATE"}}.',
                id="manta.E004",
            )
        if connection.settings_dict.get("TIME_ZONE"):
            yield Error(
                f"Database {database!r} is SQLite with TIME_ZONE {connection.settings_dict['TIME_ZONE']!r}: manta "
                "writes its moments in UTC, and they would be read as local ones.",
                hint=f"Remove TIME_ZONE from DATABASES[{database!r}]; settings.TIME_ZONE is the one to show times in.",
                id="manta.E011",
            )
    else:
        yield Error(
            f"manta's tables are in database {database!r}, which is {connection.display_name}.",
            hint="Use PostgreSQL, or SQLite on a laptop; a router or DATABASE can send the tables there.",
            id="manta.E005",
        )


def without_autocommit(database: str) -> str:
    return (
        f"Database {database!r} has AUTOCOMMIT = False: what moves or executes runs commits by Django's means, and "
        "would commit nothing."
    )


def _check_atomic_tasks(backend: "MantaBackend") -> Iterator[CheckMessage]:
    for task in _tasks_of(backend):
        data = data_databases(task.func.__module__)
        if options.effective(task, backend.config).atomic and backend.database not in data:
            yield Error(
                f"{task.module_path} is atomic, but manta's tables are in database {backend.database!r}, not with "
                f"the data in {', '.join(map(repr, data))}: its writes and its success cannot commit together.",
                hint="Keep the tables in the database of your data, or make the task idempotent and not atomic.",
                id="manta.E007",
            )


def _tasks_of(backend: "MantaBackend") -> list[Task]:
    return [task for task in _defined_tasks() if task.backend == backend.alias]


def _defined_tasks() -> list[Task]:
    """The tasks of the modules that have been imported, and of every app's ``tasks`` module."""
    load_tasks()
    found: dict[str, Task] = {}
    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            if type(value) is Task:
                found[value.module_path] = value
    return [found[path] for path in sorted(found)]
