"""
The keywords of a task: what each accepts, its default, where it may be given and when it is read.

The table OPTIONS defines an option: ``@task(...)``, ``.using(...)``, ``TASK_OPTIONS``, ``QUEUE_OPTIONS``,
``TASK_DEFAULTS``, the system checks and the tests of the documentation read it. For type checkers a new option is
repeated in Effective (below), ``task.Task`` and ``typed.Keywords``; the tests compare the latter with the table.

Precedence: using > decorator > TASK_OPTIONS > queue > TASK_DEFAULTS > built-in.
"""

import difflib
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

from django.utils import timezone

from django_manta import backoff as backoffs
from django_manta import payload, resources
from django_manta.ids import parse_run_id
from django_manta.states import When

if TYPE_CHECKING:
    from django_manta.conf import Config


class NotGiven(enum.Enum):
    """The absence of an option. None cannot say it: ``timeout=None`` means "no timeout"."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return "NOT_GIVEN"

    def __bool__(self) -> Literal[False]:
        return False


NOT_GIVEN: Final = NotGiven.NOT_GIVEN

type Moment = datetime | timedelta


@dataclass(frozen=True, slots=True)
class Option:
    """One keyword of a task."""

    name: str
    parse: Callable[[Any], Any]
    default: Any
    accepts: str
    help: str
    #: Fixed when the run is enqueued; the others are read from code at each attempt.
    at_enqueue: bool = False
    in_decorator: bool = True
    in_using: bool = True
    in_settings: bool = True
    to_json: Callable[[Any], Any] = staticmethod(lambda value: value)
    from_json: Callable[[Any], Any] = staticmethod(lambda value: value)


def _whole_number(least: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError("must be a whole number")
        if not least <= value <= 32_767:
            raise ValueError(f"must be between {least} and 32767")
        return value

    return parse


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("must be True or False")
    return value


def _duration(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("must be seconds, a timedelta or None")
    if not 0 < value <= backoffs.LONGEST_SECONDS:
        raise ValueError(f"must be a finite number of seconds above 0 and at most {backoffs.LONGEST_SECONDS:,}")
    return float(value)


def _moment(value: Any) -> Moment:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, datetime):
        if timezone.is_naive(value):
            raise ValueError("must be an aware datetime")
        return value
    raise TypeError("must be an aware datetime, or a timedelta counted from enqueue")


def _moment_or_none(value: Any) -> Moment | None:
    return None if value is None else _moment(value)


def _exceptions(value: Any) -> tuple[str, ...]:
    """Exception classes or dotted paths, kept as dotted paths: they must survive storage."""
    if isinstance(value, (str, type)) or not isinstance(value, Iterable):
        raise TypeError("must be a list of exception classes or of their dotted paths")
    paths = []
    for item in value:
        if isinstance(item, type) and issubclass(item, BaseException):
            paths.append(f"{item.__module__}.{item.__qualname__}")
        elif isinstance(item, str) and item and not item.isspace():
            paths.append(item if "." in item else f"builtins.{item}")
        else:
            raise TypeError(f"must hold exception classes or their dotted paths, not {item!r}")
    return tuple(paths)


def _exceptions_or_none(value: Any) -> tuple[str, ...] | None:
    return None if value is None else _exceptions(value)


def _metadata(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("must be a mapping")
    kept: dict[str, Any] = payload.normalize(value, "metadata")
    # Kept as jsonb, which writes numbers its own way; so that they come back as they went in, ours too.
    plain: dict[str, Any] = payload.plain_numbers(kept)
    return plain


def _paths(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError("must be a list of dotted paths")
    paths = tuple(value)
    for path in paths:
        if not isinstance(path, str) or "." not in path:
            raise TypeError(f"must hold dotted paths such as 'app.tasks.old_name', not {path!r}")
    return paths


def _runs(value: Any) -> tuple[UUID, ...]:
    """Results, groups of results and ids, flattened to ids, each once."""
    if payload.references_in(value) is not None or isinstance(value, (str, UUID)):
        value = [value]
    if not isinstance(value, Iterable):
        raise TypeError("must be a list of results, groups of results, or ids of runs")
    found: dict[UUID, None] = {}
    for item in value:
        referred = payload.references_in(item)
        for each in [item] if referred is None else [referred] if isinstance(referred, str) else referred:
            run_id = parse_run_id(each)
            if run_id is None:
                raise TypeError(f"must hold results, groups of results, or ids of runs, not {each!r}")
            found[run_id] = None
    return tuple(found)


def _when(value: Any) -> When:
    try:
        return When(value)
    except ValueError:
        raise ValueError(f"must be one of {', '.join(map(repr, When.values))}") from None


def _tuple_or_none(value: Any) -> tuple[str, ...] | None:
    return None if value is None else tuple(value)


OPTIONS: Final[dict[str, Option]] = {
    option.name: option
    for option in [
        Option(
            "max_attempts",
            _whole_number(1),
            1,
            "whole number from 1",
            "How many attempts may fail or time out before the run is FAILED.",
        ),
        Option(
            "max_losses",
            _whole_number(0),
            3,
            "whole number from 0",
            "How many executions may vanish before the run is LOST. With 0, one that vanished, crashed or was "
            "interrupted is not started again; with `max_attempts=1` as well, the run never starts twice.",
        ),
        Option(
            "backoff",
            backoffs.parse,
            backoffs.Exponential(),
            "seconds, timedelta, `'exponential'`, `exponential(first=, limit=)` or a function",
            "The wait before the next attempt. A function gets `(exception, task_result)` and returns "
            "seconds, or None to give up.",
            to_json=backoffs.to_json,
            from_json=backoffs.from_json,
        ),
        Option(
            "retry_on",
            _exceptions_or_none,
            None,
            "exception classes or dotted paths, or None",
            "Retry only these and their subclasses. None: every exception.",
            from_json=_tuple_or_none,
        ),
        Option(
            "no_retry_on",
            _exceptions,
            (),
            "exception classes or dotted paths",
            "Never retry these and their subclasses; wins over `retry_on`.",
            from_json=_tuple_or_none,
        ),
        Option(
            "atomic",
            _boolean,
            False,
            "True or False",
            "The task's writes and its success commit in one transaction.",
        ),
        Option(
            "timeout",
            _duration,
            None,
            "seconds, timedelta or None",
            "The longest one attempt may execute. `atomic` tasks have 60 seconds unless told otherwise.",
        ),
        Option(
            "expires",
            _moment_or_none,
            None,
            "aware datetime, timedelta or None",
            "A run that has not started by then is EXPIRED.",
            at_enqueue=True,
        ),
        Option(
            "deadline",
            _moment,
            timedelta(days=7),
            "aware datetime or timedelta",
            "Among runs of equal priority the nearer deadline goes first. It orders, it never kills.",
            at_enqueue=True,
        ),
        Option(
            "metadata",
            _metadata,
            {},
            "mapping of JSON values",
            "Kept with the run; `context.metadata` and `result.metadata` show it.",
            at_enqueue=True,
        ),
        Option(
            "aliases",
            _paths,
            (),
            "dotted paths",
            "Old paths of a function that moved: runs enqueued under them still find it.",
            in_using=False,
            in_settings=False,
        ),
        Option(
            "hold",
            _boolean,
            False,
            "True or False",
            "Enqueue the run HELD: it waits until a person releases it.",
            at_enqueue=True,
            in_decorator=False,
            in_settings=False,
        ),
        Option(
            "after",
            _runs,
            (),
            "results, groups of results, or ids of runs",
            "The runs it waits for beside those whose results it is given.",
            at_enqueue=True,
            in_decorator=False,
            in_settings=False,
        ),
        Option(
            "when",
            _when,
            When.ALL_SUCCESSFUL,
            "`'all_successful'`, `'all_finished'`, `'any_successful'` or `'any_finished'`",
            "What must be true of the runs in `after` before it is ready.",
            at_enqueue=True,
            in_decorator=False,
            in_settings=False,
        ),
        Option(
            "max_laters",
            _whole_number(0),
            100,
            "whole number from 0",
            "How often a run may ask to be called again with `Later` before it is FAILED.",
        ),
        Option(
            "ray",
            resources.parse,
            {},
            "dict with " + ", ".join(f"`{name}`" for name in resources.KEYS),
            "What it needs on Ray. Other runners pay no attention to it.",
        ),
    ]
}

#: Keywords that belong to features which do not exist yet: refused, never ignored.
NOT_BUILT: Final = frozenset({"unique", "http", "redact", "limit", "limits", "rate"})

#: `atomic` tasks hold a transaction open, so they get a timeout of their own.
ATOMIC_TIMEOUT: Final = 60.0


def parse(name: str, value: Any) -> Any:
    """The kept form of an option's value. Raise TypeError or ValueError naming option and value."""
    option = OPTIONS.get(name)
    if option is None:
        raise TypeError(unknown(name, value))
    try:
        return option.parse(value)
    except (TypeError, ValueError) as error:
        sentence = str(error).rstrip(".")
        if sentence.startswith("must "):
            sentence = f"{name} {sentence}"
            if ", not " not in sentence:
                sentence += f", not {value!r}"
        raise type(error)(f"Task option {sentence}.") from None


def unknown(name: str, value: Any) -> str:
    """The sentence that refuses an option."""
    if name in NOT_BUILT:
        return f"Task option {name!r} (given as {value!r}) is not supported by this version of django-manta."
    close = difflib.get_close_matches(name, OPTIONS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else f" Known options: {', '.join(OPTIONS)}."
    return f"Unknown task option {name!r} (given as {value!r}).{hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The options that hold for a task or one of its runs, every layer considered."""

    max_attempts: int
    max_losses: int
    backoff: backoffs.Backoff
    retry_on: tuple[str, ...] | None
    no_retry_on: tuple[str, ...]
    timeout: float | None
    expires: Moment | None
    deadline: Moment
    atomic: bool
    metadata: dict[str, Any]
    aliases: tuple[str, ...]
    hold: bool
    after: tuple[UUID, ...]
    when: When
    max_laters: int
    ray: dict[str, Any]


def effective(task: Any, config: "Config", overrides: str = "") -> Effective:
    """
    Resolve the options of ``task`` (a plain Django Task has none of its own) against ``config``.

    ``overrides`` is the stored text of what one run was given by ``.using()``.
    """
    layers: list[Mapping[str, Any]] = []
    if overrides:
        layers.append(decode_overrides(overrides))
    layers.append(given(task))
    layers.append(config.task_options.get(task.module_path, {}))
    layers.append(config.queue_options.get(task.queue_name, {}))
    layers.append(config.task_defaults)
    chosen = {}
    for name, option in OPTIONS.items():
        for layer in layers:
            if name in layer:
                chosen[name] = layer[name]
                break
        else:
            if name == "timeout" and chosen.get("atomic"):
                chosen[name] = ATOMIC_TIMEOUT
            else:
                chosen[name] = option.default
    return Effective(**chosen)


def given(task: Any) -> dict[str, Any]:
    """The options that the decorator or ``.using()`` set on ``task``."""
    return {name: value for name in OPTIONS if (value := getattr(task, name, NOT_GIVEN)) is not NOT_GIVEN}


def encode_overrides(task: Any) -> str:
    """What ``.using()`` changed of the options that are read at each attempt, as stored and signed."""
    names: Iterable[str] = sorted(getattr(task, "overridden", ()))
    kept = {name: OPTIONS[name].to_json(getattr(task, name)) for name in names if not OPTIONS[name].at_enqueue}
    return payload.encode(kept, "overrides") if kept else ""


def decode_overrides(text: str) -> dict[str, Any]:
    stored: dict[str, Any] = payload.decode(text)
    return {name: OPTIONS[name].from_json(value) for name, value in stored.items() if name in OPTIONS}
