"""
The settings: what may stand in ``TASKS[alias]["OPTIONS"]``, checked and filled with defaults.

Upper case: a setting of ours; lower case: a keyword of a task. The table SETTINGS defines a setting; the system
checks and the tests of the documentation read it. Its type and its default are repeated in Config.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from django_manta import options as task_options
from django_manta import resources
from django_manta.backoff import LONGEST_SECONDS
from django_manta.states import ENDS, GOOD_ENDS, State

#: The runners that exist in this version. The queue chooses the runner.
RUNNERS: Final = ("processes", "inline", "ray", "ray_job")

#: Those that outlive their worker, on a cluster.
ON_RAY: Final = ("ray", "ray_job")

#: With "manta_" before it, the name is that of the doorbell's channel, a PostgreSQL identifier of at most 63 bytes.
CLUSTER_BYTES: Final = 63 - len("manta_")

DEFAULT_RETENTION: Final[dict[str, timedelta | None]] = {
    state: timedelta(days=7 if state in GOOD_ENDS else 30) for state in sorted(ENDS)
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the settings: ``check`` is the id of the system check that reports it."""

    check: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    parse: Callable[[Any], Any]
    default: Any
    accepts: str
    help: str


class _Bad(Exception):
    """A value that a setting refuses, with the sentence that says why."""


def _mapping_of(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _Bad(f"must be a dict of {what}, not {value!r}")
    for key in value:
        if not isinstance(key, str):
            raise _Bad(f"must have strings as keys, not {key!r}")
    return value


def _task_keywords(value: Any, *, where: str = "") -> dict[str, Any]:
    kept = {}
    for name, given in _mapping_of(value, "task keywords").items():
        prefix = f"{where}: " if where else ""
        option = task_options.OPTIONS.get(name)
        if option is not None and not option.in_settings:
            raise _Bad(f"{prefix}{name!r} cannot be given in settings")
        try:
            kept[name] = task_options.parse(name, given)
        except (TypeError, ValueError) as error:
            raise _Bad(prefix + str(error).rstrip(".")) from None
    return kept


def _task_options(value: Any) -> dict[str, dict[str, Any]]:
    tasks = _mapping_of(value, "dotted task paths")
    return {path: _task_keywords(keywords, where=path) for path, keywords in tasks.items()}


def _queue_options(value: Any) -> dict[str, dict[str, Any]]:
    kept = {}
    for queue, keywords in _mapping_of(value, "queue names").items():
        keywords = dict(_mapping_of(keywords, f"options of queue {queue!r}"))
        runner = keywords.pop("runner", RUNNERS[0])
        if runner not in RUNNERS:
            raise _Bad(f"{queue}: runner must be one of {', '.join(RUNNERS)}, not {runner!r}")
        kept[queue] = {**_task_keywords(keywords, where=queue), "runner": runner}
    return kept


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Bad(f"must be a name, not {value!r}")
    return value


def _cluster(value: Any) -> str:
    name = _text(value)
    if not name.isprintable():
        raise _Bad(f"must be printable, not {name!r}")
    if (size := len(name.encode())) > CLUSTER_BYTES:
        raise _Bad(f"must have at most {CLUSTER_BYTES} bytes in UTF-8, and {name!r} has {size}")
    return name


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _seconds(value: Any) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_SECONDS:
        raise _Bad(f"must be seconds (0 or more) or a timedelta, not {value!r}")
    return float(value)


def _lease(value: Any) -> float:
    seconds = _seconds(value)
    if seconds < 1:
        raise _Bad(f"must be at least 1 second, not {value!r}")
    return seconds


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _Bad(f"must be a whole number above 0, not {value!r}")
    return value


_RECYCLE_KEYS = {"RUNS": 1, "MEMORY_MIB": 2**20, "LIMIT_MIB": 2**20}


def _recycle(value: Any) -> dict[str, int | None]:
    kept: dict[str, int | None] = {}
    for name, given in _mapping_of(value, ", ".join(_RECYCLE_KEYS)).items():
        if name not in _RECYCLE_KEYS:
            raise _Bad(f"knows {', '.join(_RECYCLE_KEYS)}, not {name!r}")
        kept[name] = None if given is None else _count(given) * _RECYCLE_KEYS[name]
    return kept


#: What may stand in ``RAY``: how it is read, its default, and what it means.
RAY_KEYS: Final[dict[str, tuple[Callable[[Any], Any], Any, str]]] = {
    "ADDRESS": (
        lambda value: _address(value),
        "local",
        "`'local'` (a Ray of the worker's own), `'host:port'` or `'ray://host:port'`",
    ),
    "VERSION": (
        lambda value: _text(value),
        "0",
        "The release of your code. Another one has a foreman, and fresh processes, of its own.",
    ),
    "NAMESPACE": (lambda value: _text(value), "manta", "Ray's namespace of the foreman."),
    "RUNTIME_ENV": (lambda value: _text_or_none(value), None, "The profile of tasks that name none."),
    "NUM_CPUS": (lambda value: None if value is None else _count(value), None, "Processors of a `local` Ray."),
    "AHEAD": (
        lambda value: _count(value),
        100,
        "How many runs are handed to Ray beyond what it has processors for: the demand that its autoscaler sees.",
    ),
    "MAX_IN_FLIGHT": (lambda value: _count(value), 2_000, "How many runs a worker has on Ray at most."),
    "PENDING_SECONDS": (
        lambda value: _count(value),
        3_600,
        "After so long a run fails that no node of the cluster has the resources for, or whose job Ray has not begun.",
    ),
    "DASHBOARD": (
        lambda value: None if value is None else _url(value),
        None,
        "Where Ray takes jobs: the `http://host:port` of its dashboard. For the runner `ray_job`.",
    ),
    "MAX_JOBS": (lambda value: _count(value), 20, "How many jobs a worker has on Ray at most."),
    "PYTHON": (
        lambda value: _text_or_none(value),
        None,
        "The interpreter of jobs. By default the worker's own, or `python` where the environment brings one.",
    ),
}


def _ray(value: Any) -> dict[str, Any]:
    kept = {name: default for name, (_, default, _) in RAY_KEYS.items()}
    for name, given in _mapping_of(value, ", ".join(RAY_KEYS)).items():
        if name not in RAY_KEYS:
            raise _Bad(f"knows {', '.join(RAY_KEYS)}, not {name!r}")
        try:
            kept[name] = RAY_KEYS[name][0](given)
        except _Bad as bad:
            raise _Bad(f"{name} {bad}") from None
    return kept


def _address(value: Any) -> str:
    text = _text(value)
    host, _, port = text.removeprefix("ray://").rpartition(":")
    if text != "local" and not (host and port.isdecimal()):
        raise _Bad(f"must be 'local', 'host:port' or 'ray://host:port', not {value!r}")
    return text


def _url(value: Any) -> str:
    text = _text(value)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _Bad(f"must be a URL such as 'http://ray-head:8265', not {value!r}")
    return text


def _runtime_envs(value: Any) -> dict[str, dict[str, Any]]:
    try:
        return resources.environments(value)
    except (TypeError, ValueError) as error:
        raise _Bad(str(error)) from None


def _dotted_paths(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise _Bad(f"must be a list of dotted paths, not {value!r}")
    for path in value:
        if not isinstance(path, str) or "." not in path:
            raise _Bad(f"must hold dotted paths such as 'app.middleware.timing', not {path!r}")
    return tuple(value)


def _retention(value: Any) -> dict[str, timedelta | None]:
    kept = dict(DEFAULT_RETENTION)
    for state, age in _mapping_of(value, "end states").items():
        if state not in State.values or State(state) not in ENDS:
            raise _Bad(f"knows the states {', '.join(sorted(ENDS))}, not {state!r}")
        if age is not None and not (isinstance(age, timedelta) and age >= timedelta(0)):
            raise _Bad(f"must give a timedelta or None (keep for ever) for {state}, not {age!r}")
        kept[state] = age
    return kept


SETTINGS: Final[dict[str, Setting]] = {
    setting.name: setting
    for setting in [
        Setting(
            "TASK_DEFAULTS",
            _task_keywords,
            {},
            "dict of task keywords",
            "Options of every task of this backend.",
        ),
        Setting(
            "QUEUE_OPTIONS",
            _queue_options,
            {},
            "dict: queue → task keywords and `runner`",
            "Options of the tasks of a queue, and the runner it chooses.",
        ),
        Setting(
            "TASK_OPTIONS",
            _task_options,
            {},
            "dict: dotted path → task keywords",
            "Options of single tasks, for code that is not yours to decorate.",
        ),
        Setting(
            "DATABASE",
            _text_or_none,
            None,
            "alias from DATABASES, or None",
            "Where manta's tables live. None: where the database routers send them.",
        ),
        Setting(
            "CLUSTER",
            _cluster,
            "default",
            f"name of at most {CLUSTER_BYTES} bytes",
            "Salt of every signature: processes with the same key and another cluster name accept nothing of ours.",
        ),
        Setting(
            "PROCESSES",
            _count,
            2,
            "whole number above 0",
            "How many child processes a worker has. `--processes` wins.",
        ),
        Setting(
            "ASYNC_SLOTS",
            _count,
            50,
            "whole number above 0",
            "How many `async def` tasks a worker executes at a time, in one child of their own.",
        ),
        Setting(
            "LEASE_SECONDS",
            _lease,
            30.0,
            "seconds (1 or more) or timedelta",
            "How long a worker may be silent before another one declares it lost.",
        ),
        Setting(
            "STOP_TIMEOUT",
            _seconds,
            30.0,
            "seconds or timedelta",
            "How long a stopping worker lets running runs finish. `--stop-timeout` wins.",
        ),
        Setting(
            "RECYCLE",
            _recycle,
            {},
            "dict with `RUNS`, `MEMORY_MIB`, `LIMIT_MIB`",
            "Replace a child after so many runs, or when it has needed so much memory; with `LIMIT_MIB` an "
            "allocation beyond it fails inside the task.",
        ),
        Setting(
            "SKEW_SECONDS",
            _seconds,
            600.0,
            "seconds or timedelta",
            "How long a run that this code cannot verify or find is given back, for a newer release to take, "
            "before it is FAILED.",
        ),
        Setting(
            "RETENTION",
            _retention,
            DEFAULT_RETENTION,
            "dict: end state → timedelta or None",
            "How long finished runs are kept. None: for ever.",
        ),
        Setting("MIDDLEWARE", _dotted_paths, (), "list of dotted paths", "Wrapped around every execution."),
        Setting("ENQUEUE_MIDDLEWARE", _dotted_paths, (), "list of dotted paths", "Wrapped around every enqueue."),
        Setting(
            "RAY",
            _ray,
            _ray({}),
            "dict with " + ", ".join(f"`{name}`" for name in RAY_KEYS),
            "Where Ray is, and how much is handed to it.",
        ),
        Setting(
            "RUNTIME_ENVS",
            _runtime_envs,
            {},
            "dict: name → Ray runtime environment, or `EXTENDS` and what differs",
            "Environments that tasks choose by name, with `ray={'runtime_env': name}`.",
        ),
    ]
}

#: Settings of features that do not exist yet: refused, never ignored.
NOT_BUILT: Final = frozenset({"HTTP", "REDACT", "RESULTS", "SCHEDULES"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Config:
    """The settings of one backend alias, checked."""

    task_defaults: dict[str, Any] = field(default_factory=dict)
    queue_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    task_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    database: str | None = None
    cluster: str = "default"
    processes: int = 2
    async_slots: int = 50
    lease_seconds: float = 30.0
    stop_timeout: float = 30.0
    recycle: dict[str, int | None] = field(default_factory=dict)
    skew_seconds: float = 600.0
    retention: dict[str, timedelta | None] = field(default_factory=lambda: dict(DEFAULT_RETENTION))
    middleware: tuple[str, ...] = ()
    enqueue_middleware: tuple[str, ...] = ()
    ray: dict[str, Any] = field(default_factory=lambda: _ray({}))
    runtime_envs: dict[str, dict[str, Any]] = field(default_factory=dict)


def problems_of(options: Any) -> Iterator[Problem]:
    """What is wrong with an ``OPTIONS`` dict."""
    if not isinstance(options, Mapping):
        yield Problem("E002", f"OPTIONS must be a dict, not {options!r}.", "See the settings page.")
        return
    for name, value in options.items():
        setting = SETTINGS.get(name)
        if setting is None:
            yield _unknown(name)
            continue
        try:
            setting.parse(value)
        except _Bad as bad:
            yield Problem("E002", f"{name} {bad}.", f"{name} takes: {setting.accepts}.")


def _unknown(name: Any) -> Problem:
    if name in NOT_BUILT:
        return Problem(
            "E001",
            f"Option {name!r} is not supported by this version of django-manta.",
            "Remove it: an option whose feature does not exist is refused, not ignored.",
        )
    close = difflib.get_close_matches(str(name).upper(), SETTINGS, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known options: {', '.join(SETTINGS)}."
    return Problem("E001", f"Unknown option {name!r}.", hint)


def read(alias: str, options: Mapping[str, Any]) -> Config:
    """The configuration of a backend. Raise ImproperlyConfigured with every problem found."""
    problems = list(problems_of(options))
    if problems:
        sentences = " ".join(f"{problem.message} {problem.hint}" for problem in problems)
        raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: {sentences}")
    return Config(**{name.lower(): SETTINGS[name].parse(value) for name, value in options.items()})
