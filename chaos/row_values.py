"""Hostile values for each column of each of manta's tables, and which of them no row may hold."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.apps import apps
from django.db import connection, models

from django_manta.models import Attempt, Cluster, Dependency, Gate, Herald, Promise, Queue, Run, Worker, Workflow
from django_manta.states import Outcome, Role, State, When

TABLES: tuple[type[models.Model], ...] = (
    Run,
    Attempt,
    Dependency,
    Gate,
    Herald,
    Promise,
    Workflow,
    Worker,
    Queue,
    Cluster,
)

#: Stands for the id of another run that exists.
ANOTHER = "another run"

#: What the signature of a run covers: any other value than the one that was signed is wrong.
SIGNED = frozenset({"id", "task", "arguments", "refs", "overrides", "signature"})

#: Paths of modules that no signed run names; the last one ends the process that imports it.
FOREIGN = ("chaos.unwanted.wanted", "unittest.__main__.x")

_DEEP = "[" * 100_000

_TEXTS: tuple[Any, ...] = (
    "",
    "garbage",
    "\x1b[2J\r\nforged line\x07\x9b31m",
    "\u202e\ufeff\U0001f4a9",
    "x" * 300_000,
    "{",
    "[1]",
    "null",
    "1e999",
    _DEEP,
    "a\x00b",
    *FOREIGN,
    ANOTHER,
    None,
)

#: Besides all these. Some are well-formed, and forged.
_OF_COLUMN: dict[str, tuple[Any, ...]] = {
    "run.task": ("chaos.tasks.double", "os.system", "..", "django_manta.workflow.kept.kept_from_outside"),
    "run.arguments": ('[[],{"number":"x"}]', "[[1,2,3],{}]", "[[NaN],{}]", "[[],[]]"),
    "run.overrides": tuple(
        json.dumps(given)
        for given in (
            {"backoff": FOREIGN[0].replace("wanted.wanted", "wanted.give_up")},
            {"backoff": FOREIGN[1]},
            {"max_losses": -1},
            {"max_losses": 10**30},
            {"max_attempts": "x", "timeout": []},
            {"nobody": 1},
            [],
        )
    ),
    "run.refs": (
        '[[[0,0],"00000000-0000-0000-0000-000000000000"]]',
        '[[[5,5],"x"]]',
        "[[1,2,3]]",
        "[[[0,0],7]]",
    ),
    "run.delegate": ("[]", '"garbage"', '["00000000-0000-0000-0000-000000000000"]', "[[]]", "7"),
    "run.state": tuple(State),
    "attempt.outcome": tuple(Outcome),
    "dependency.role": tuple(Role),
    "gate.mode": tuple(When),
    "worker.foremen": ('[["a"]]', "[[1,2]]", '{"a":1}', '[["a","b","c"]]', '"x"'),
    "worker.troubles": ('{"":1}', "[]", '{"garbage":"x"}', "[[]]"),
    "worker.runner": ("ray", "ray_job", "inline"),
    "worker.ray_address": ("local", "ray://127.0.0.1:1"),
}

_JSONS: tuple[Any, ...] = (
    "null",
    "[]",
    '"text"',
    "7",
    "true",
    "{",
    "garbage",
    '{"done":"x","total":[],"message":{}}',
    '{"done":1,"nobody":2}',
    '{"done":1e300,"total":1e-300,"message":"\\u001b[2J"}',
    "[" * 1_000 + "]" * 1_000,
    '{"a":"\\u0000"}',
    None,
)

_NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    2**15,
    2**31 - 1,
    -(2**31),
    2**31,
    2**63 - 1,
    -(2**63),
    1.5,
    "garbage",
    "",
    float("inf"),
    None,
)

_FLOATS: tuple[Any, ...] = (0, -1, 1e-300, 1e300, 1e308, "NaN", "Infinity", "-Infinity", "garbage", "", 0.001, None)

_MOMENTS: tuple[Any, ...] = (
    "-infinity",
    "infinity",
    "0001-01-01 00:00:00",
    "0001-01-01 00:00:00+14:00",
    "4713-01-01 00:00:00 BC",
    "1970-01-01 00:00:00",
    "9999-12-31 23:59:59.999999",
    "10000-01-01 00:00:00",
    "294276-12-31 00:00:00",
    "garbage",
    "",
    "2026-02-30 12:00:00",
    17,
    None,
)

_TRUTHS: tuple[Any, ...] = (True, False, 2, -1, "garbage", "", 1.5, None)

_IDS: tuple[Any, ...] = (
    ANOTHER,
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "0190b3c2-7b1e-7c3a-9b1a-0123456789ab",
    "garbage",
    "\x1b[2J",
    "",
    "0",
    7,
    -1,
    "x" * 300_000,
    None,
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, and what it is made of."""

    table: str
    name: str
    field: Any

    @property
    def is_reference(self) -> bool:
        return isinstance(self.field, models.ForeignKey)

    @property
    def is_null_allowed(self) -> bool:
        return bool(self.field.null)

    @property
    def kind(self) -> str:
        field = self.field.target_field if self.is_reference else self.field
        return str(field.get_internal_type())

    def __str__(self) -> str:
        return f"{self.table.removeprefix('manta_')}.{self.name}"


@dataclass(frozen=True, slots=True)
class Combination:
    """One value for one column of a row of one kind."""

    column: Column
    value: Any
    #: What the row is: a ready run, a lost worker (see row_scenes.py).
    kind: str

    def __str__(self) -> str:
        shown = repr(self.value)
        return f"{self.column} = {shown if len(shown) <= 70 else shown[:67] + '...'} of a {self.kind}"


def columns() -> list[Column]:
    """Every column of every table of manta's."""
    missing = set(apps.get_app_config("manta").get_models()) - set(TABLES)
    if missing:
        raise LookupError(f"The storm knows nothing of {missing}.")
    return [
        Column(model._meta.db_table, field.column, field) for model in TABLES for field in model._meta.concrete_fields
    ]


def values_of(column: Column) -> Sequence[Any]:
    match column.kind:
        case "UUIDField":
            usual = _IDS
        case "TextField":
            usual = _TEXTS
        case "JSONField":
            usual = _JSONS
        case "DateTimeField":
            usual = _MOMENTS
        case "BooleanField":
            usual = _TRUTHS
        case "FloatField":
            usual = _FLOATS
        case _:
            usual = _NUMBERS
    return (*usual, *_OF_COLUMN.get(str(column), ()))


def combinations(kinds: Callable[[Column], Sequence[str]]) -> Iterator[Combination]:
    """All that there are."""
    for column in columns():
        for value in values_of(column):
            for kind in kinds(column):
                yield Combination(column, value, kind)


# -- what no row may hold ----------------------------------------------------------------------------

#: What a text may be, of those columns that not any text may be in.
_WORDS: dict[str, frozenset[str]] = {
    "run.state": frozenset(State),
    "attempt.outcome": frozenset(Outcome),
    "dependency.role": frozenset(Role),
    "gate.mode": frozenset(When),
}

#: JSON, and what it must be; where it is not said, it is an object.
_LISTED: dict[str, type] = {"worker.queues": list, "worker.foremen": list, "worker.troubles": dict}

#: Counted from something that is there, or given by a sequence.
_COUNTERS = frozenset(
    {
        "run.attempts",
        "run.failures",
        "run.crashes",
        "run.losses",
        "attempt.number",
        "gate.pending_values",
        "gate.bad_values",
        "gate.pending_after",
        "gate.met_after",
        "gate.bad_after",
        "gate.consumed",
        "gate.laters",
        "cluster.term",
    }
)


def is_impossible(column: Column, value: Any) -> bool:
    """Whether no row may hold this value in this column, whatever else it holds, and whatever database it is in."""
    if value is None:
        return not column.is_null_allowed
    match column.kind:
        case "DateTimeField":
            return not _is_moment(value)
        case "TextField":
            if str(column) in _LISTED:
                return not _is_json(str(column), value)
            return not isinstance(value, str) or (str(column) in _WORDS and value not in _WORDS[str(column)])
        case "BooleanField":
            return not isinstance(value, bool)
        case "JSONField":
            return not _is_json(str(column), value)
        case "FloatField":
            return not (isinstance(value, int | float) and 0 <= value < float("inf"))
        case "UUIDField":
            return value != ANOTHER and not _is_id(value)
        case _:
            return not isinstance(value, int) or (str(column) in _COUNTERS and value < 0)


def _is_moment(value: Any) -> bool:
    try:
        moment = datetime.fromisoformat(value)
        return bool((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC))
    except (ValueError, TypeError, OverflowError):
        return False


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 36 and value.count("-") == 4


def _is_json(column: str, value: str) -> bool:
    try:
        decoded = json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return False
    return isinstance(decoded, _LISTED.get(column, dict))


def parameter(column: Column, value: Any, another: str) -> tuple[str, Any]:
    """How to write a value into a statement, and what to give with it."""
    if value == ANOTHER:
        value = another
    if connection.vendor == "postgresql":
        return f"%s::text::{column.field.db_type(connection)}", None if value is None else str(value)
    if column.kind == "UUIDField" and isinstance(value, str):
        value = value.replace("-", "")
    return "%s", value
