"""``enqueue()`` against Django's own ``create()`` of the same row."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta

from django.db import transaction

from benchmarks import scratch
from benchmarks.measure import Contender, Figure, Stopwatch, compared, in_turns
from benchmarks.tasks import PLAIN, arguments, resize
from django_manta.models import Run
from django_manta.payload import dump

TITLE = "enqueue() against Model.objects.create() of the same row"


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = 200 if quick else 1_000
    ways: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "all in one transaction": transaction.atomic,
        "each in its own": nullcontext,
    }
    for how, block in ways.items():
        taken = in_turns(rounds, ours=timed(enqueue, block, count), limit=timed(create, block, count))
        yield compared(f"{count:,} runs, {how}", count, taken["ours"], taken["limit"], at_least=0.7)


def timed(insert: Callable[[int], None], block: Callable[[], AbstractContextManager[None]], count: int) -> Contender:
    def contend(watch: Stopwatch) -> None:
        scratch.empty()
        with watch.running(), block():
            insert(count)

    return contend


def enqueue(count: int) -> None:
    for number in range(count):
        args, kwargs = arguments(number)
        resize.enqueue(*args, **kwargs)


def create(count: int) -> None:
    """What a project would write that keeps jobs in a table of its own. It validates and signs nothing."""
    deadline = datetime.now(UTC) + timedelta(days=7)
    for number in range(count):
        Run.objects.create(**PLAIN, arguments=dump(arguments(number)), deadline=deadline)
