"""``enqueue_many()`` against COPY and ``bulk_create()`` of the same rows, prepared beforehand."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction

from benchmarks import scratch
from benchmarks.measure import Contender, Figure, Stopwatch, compared, in_turns
from benchmarks.tasks import PLAIN, arguments, resize
from django_manta.ids import new_run_id
from django_manta.models import Run
from django_manta.payload import dump

TITLE = "enqueue_many() against COPY and bulk_create() of the same rows"

COUNT = 10_000

#: The fastest of 500, 1,000, 2,000, 5,000 and all at once, for this row.
BULK_CREATE_BATCH = 1_000

COLUMNS = (*PLAIN, "deadline", "id", "arguments", "metadata")
COPY = f"COPY manta_run ({', '.join(COLUMNS)}) FROM STDIN"


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    calls = [arguments(number) for number in range(COUNT)]
    taken = in_turns(
        rounds,
        ours=timed(lambda: calls, resize.enqueue_many),
        copy=timed(lambda: copied(prepared()), copy),
        bulk_create=timed(prepared, bulk_create),
    )
    yield compared(f"{COUNT:,} runs, against COPY", COUNT, taken["ours"], taken["copy"], at_least=0.2)
    yield compared(f"{COUNT:,} runs, against bulk_create()", COUNT, taken["ours"], taken["bulk_create"], at_least=2)


def timed(prepare: Callable[[], list[Any]], insert: Callable[[list[Any]], Any]) -> Contender:
    def contend(watch: Stopwatch) -> None:
        scratch.empty()
        given = prepare()
        with watch.running():
            insert(given)

    return contend


def prepared() -> list[dict[str, Any]]:
    """Rows that need nothing any more: no validation, no encoding, no signature."""
    now = datetime.now(UTC)
    shared = {**PLAIN, "deadline": now + timedelta(days=7)}
    return [
        {**shared, "id": new_run_id(), "arguments": dump(arguments(number)), "metadata": {}} for number in range(COUNT)
    ]


def copied(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The same for COPY, which wants tuples, and JSON as text."""
    return [tuple("{}" if name == "metadata" else row[name] for name in COLUMNS) for row in rows]


def copy(rows: list[tuple[Any, ...]]) -> None:
    with transaction.atomic(), connection.cursor() as cursor, cursor.copy(COPY) as sink:
        for row in rows:
            sink.write_row(row)


def bulk_create(rows: list[dict[str, Any]]) -> None:
    Run.objects.bulk_create([Run(**row) for row in rows], batch_size=BULK_CREATE_BATCH)
