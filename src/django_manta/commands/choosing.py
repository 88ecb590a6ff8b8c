"""Which backend, and which runs: what the flags that the verbs share mean."""

import argparse
import difflib
import re
from collections.abc import Container, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections
from django.tasks import task_backends
from django.tasks.exceptions import InvalidTaskBackend
from django.utils import timezone

from django_manta.backend import MantaBackend
from django_manta.checks import without_autocommit
from django_manta.ids import parse_run_id
from django_manta.ledger import house
from django_manta.models import Run, RunQuerySet
from django_manta.states import State

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

#: Ids begin with the time at which they were made, by the clock of the machine that enqueued. This
#: much wrong it may be and ``--since`` still finds its runs, without reading all that came before.
_CLOCK_TOLERANCE = timedelta(days=1)


# -- the backend -----------------------------------------------------------------------------------


def backend_of(options: dict[str, Any], *, configured: bool = True) -> MantaBackend:
    """The backend that ``--backend`` names; its settings can be read if it is to be ``configured``."""
    alias = options["backend"]
    try:
        backend = task_backends[alias]
    except InvalidTaskBackend:
        known = ", ".join(sorted(task_backends.settings))
        raise CommandError(f"There is no backend {alias!r} in TASKS. --backend takes one of: {known}.") from None
    if not isinstance(backend, MantaBackend):
        raise CommandError(
            f"TASKS[{alias!r}] is a {type(backend).__name__}, which has no ledger. Name an alias of "
            "django_manta.MantaBackend with --backend."
        )
    if configured:
        try:
            _ = backend.config
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        if not connections[backend.database].settings_dict["AUTOCOMMIT"]:
            raise CommandError(without_autocommit(backend.database))
    return backend


def clusters_of(database: str) -> list[str]:
    """The clusters whose runs are in ``database``: their workers listen each to a bell of its own."""
    backends = [task_backends[alias] for alias in task_backends.settings]
    return sorted(
        {each.config.cluster for each in backends if isinstance(each, MantaBackend) and each.database == database}
    )


# -- values ----------------------------------------------------------------------------------------


def run_ids(texts: Iterable[str]) -> list[UUID]:
    """The ids that ``texts`` spell, each once, in their order."""
    ids: dict[UUID, None] = {}
    for text in texts:
        run_id = parse_run_id(text)
        if run_id is None:
            raise CommandError(
                f"{text!r} is not the id of a run. An id looks like 019a8f3e-5c1b-7d42-9a60-3f1c2b4d5e6f; "
                "`manta list` shows them."
            )
        ids[run_id] = None
    return list(ids)


def no_run(run_id: UUID) -> CommandError:
    """The answer to whoever asks for a run that is not there."""
    return CommandError(f"There is no run {run_id}: it never was, or retention removed it. See `manta list`.")


def states(texts: Sequence[str], allowed: Container[str] = frozenset(State), verb: str = "") -> list[State]:
    """The states that ``--state`` names, in any case, one or several with commas between them."""
    chosen = []
    for name in names(texts, "--state"):
        state = name.upper().replace("-", "_")
        if state not in State.values:
            close = difflib.get_close_matches(state, State.values, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"The states: {', '.join(State.values)}."
            raise CommandError(f"There is no state {name!r}. {hint}")
        if state not in allowed:
            fitting = ", ".join(each for each in State if each in allowed)
            raise CommandError(f"`{verb}` moves no run that is {state}. --state can be: {fitting}.")
        chosen.append(State(state))
    return chosen


def names(texts: Sequence[str], flag: str) -> list[str]:
    """What was given in several flags, or in one with commas between them."""
    found = [name.strip() for text in texts for name in text.split(",")]
    if not all(found):
        # An empty filter would let everything through, which a shell variable that is not set cannot mean.
        raise CommandError(f"{flag} was given an empty name.")
    return found


def since(text: str, now: datetime) -> datetime:
    """The moment that ``--since`` names: so long before ``now``, or a date."""
    found = _DURATION.fullmatch(text.strip())
    try:
        if found is not None:
            number, unit = found.groups()
            return now - timedelta(**{_UNITS[unit]: float(number)})
        moment = datetime.fromisoformat(text.strip())
        return (moment if timezone.is_aware(moment) else timezone.make_aware(moment)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise CommandError(
            f"--since {text!r} is no time. Give a duration such as 90s, 10m, 2h, 3d or 1w, or a date such as "
            "2026-11-15 or 2026-11-15T09:30:00+01:00."
        ) from None


def positive(text: Any, flag: str) -> int:
    if not str(text).isdigit() or int(text) < 1:
        raise CommandError(f"{flag} is {text!r}, but it takes a whole number above 0.")
    return int(text)


# -- filters ---------------------------------------------------------------------------------------

FILTERS = ("state", "queue", "task", "since")


def add_filters(parser: argparse.ArgumentParser) -> None:
    several: Any = {"action": "append", "default": []}
    parser.add_argument("--state", metavar="STATE", **several, help="Only in this state; repeatable, or with commas.")
    parser.add_argument("--queue", metavar="QUEUE", **several, help="Only of this queue; repeatable, or with commas.")
    parser.add_argument(
        "--task",
        metavar="PATH",
        **several,
        help="Only of this task, by its dotted path; repeatable, or with commas.",
    )
    parser.add_argument(
        "--since",
        metavar="TIME",
        help="Only what was enqueued since then: so long ago (10m, 2h, 3d), or a date in ISO format.",
    )


def has_filters(options: dict[str, Any]) -> bool:
    return any(options[name] not in (None, []) for name in FILTERS)


def filtered(backend: MantaBackend, options: dict[str, Any], in_states: Sequence[State]) -> RunQuerySet:
    """The runs that the filters leave, whatever their order."""
    runs: RunQuerySet = Run.objects.using(backend.database)
    if in_states:
        runs = runs.filter(state__in=in_states)
    if queues := names(options["queue"], "--queue"):
        runs = runs.filter(queue__in=queues)
    if tasks := names(options["task"], "--task"):
        runs = runs.filter(task__in=tasks)
    if options["since"] is not None:
        start = since(options["since"], house.clock(backend.ledger))
        runs = runs.filter(enqueued_at__gte=start, pk__gte=_first_id_near(start))
    return runs


def _first_id_near(moment: datetime) -> UUID:
    """The smallest id that a machine whose clock is tolerably right can have made at ``moment``."""
    milliseconds = (moment - datetime.fromtimestamp(0, UTC) - _CLOCK_TOLERANCE) // timedelta(milliseconds=1)
    return UUID(int=max(0, milliseconds) << 80)
