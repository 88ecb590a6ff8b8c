"""All the ways to look at rows: none may raise anything but a documented error, however the rows were altered."""

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.tasks.exceptions import TaskResultDoesNotExist
from django.test import Client
from django.urls import reverse

from chaos.row_values import Combination
from django_manta.models import Attempt, Run, Worker
from django_manta.result import get_result

#: What went wrong, and how.
type Failure = tuple[str, BaseException]

#: Verbs that show one run.
_OF_A_RUN = ("show", "explain", "graph", "logs")

#: Verbs that show a picture of all, with what they are given.
_OF_ALL = (
    ("list", "--limit", "1000"),
    ("info",),
    ("doctor",),
    ("health",),
    ("fsck",),
    ("prune", "--dry-run"),
    ("cluster",),
)


def browser() -> Client:
    client = Client(raise_request_exception=True)
    client.force_login(User.objects.filter(is_superuser=True).first() or User.objects.create_superuser("admin"))
    return client


def look_at(altered: Combination, key: str | int, client: Client) -> Iterator[Failure]:
    """Look at one altered row, in every way that it can be shown."""
    model = {"manta_run": Run, "manta_attempt": Attempt, "manta_worker": Worker}.get(altered.column.table)
    # The row of an empty key has no page of its own.
    if model is not None and key != "":
        page = reverse(f"admin:manta_{model._meta.model_name}_change", args=[quote(key)])
        yield from _tried(f"admin {model._meta.model_name}", lambda: client.get(page))
    run_id = run_of(altered, key)
    if run_id is None:
        return
    yield from _tried("get_result", lambda: get_result(run_id).history)
    for verb in _OF_A_RUN:
        yield from _told(verb, run_id)
    yield from _tried("manta show --format json", lambda: json.loads(manta("show", run_id, "--format", "json")))


def look_at_all(client: Client) -> Iterator[Failure]:
    """The pictures of everything, in which one altered row must not hide the others."""
    for given in _OF_ALL:
        yield from _told(*given)
        yield from _told(*given, "--format", "json")
    for model in (Run, Attempt, Worker):
        page = reverse(f"admin:manta_{model._meta.model_name}_changelist")
        yield from _tried(f"admin {model._meta.model_name} list", partial(client.get, page))


def move(run_id: str) -> Iterator[Failure]:
    """What people do with a run."""
    for verb in ("hold", "release", "cancel", "retry"):
        yield from _told(verb, run_id)


def prune() -> Iterator[Failure]:
    yield from _told("prune")


def run_of(altered: Combination, key: str | int) -> str | None:
    """The run that an altered row is, or belongs to."""
    table = altered.column.table
    if table == "manta_attempt":
        with connection.cursor() as cursor:
            cursor.execute("SELECT run_id FROM manta_attempt WHERE token = %s", [key])
            found = cursor.fetchall()
        key = str(found[0][0]) if found else ""
    elif table not in ("manta_run", "manta_gate", "manta_herald", "manta_promise"):
        return None
    try:
        return str(UUID(str(key)))
    except ValueError:
        return None


def manta(*arguments: str) -> str:
    """A command, in this process. What it printed; its exit code is its answer, and no error."""
    out = io.StringIO()
    try:
        call_command("manta", *arguments, stdout=out, stderr=io.StringIO())
    except SystemExit as left:
        if left.code not in (0, 1, None):
            raise
    return out.getvalue()


def _told(*arguments: str) -> Iterator[Failure]:
    yield from _tried(f"manta {' '.join(arguments)}", partial(manta, *arguments))


def _tried(what: str, look: Callable[[], object]) -> Iterator[Failure]:
    try:
        look()
    except (CommandError, TaskResultDoesNotExist):
        return
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        yield what, failure
