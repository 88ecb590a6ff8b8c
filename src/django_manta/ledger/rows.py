"""Between rows and records. The order of the columns is that of the statements' RETURNING and SELECT."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import zip_longest
from json import dumps
from math import isfinite
from operator import attrgetter
from typing import Any

from django_manta import text
from django_manta.exceptions import TaskLost, UnstorableOutcome
from django_manta.ledger.records import (
    AttemptRecord,
    Claimed,
    NewRun,
    Orphan,
    RunRecord,
    Settlement,
)
from django_manta.ledger.session import Dialect, Row
from django_manta.states import Outcome, State

#: Moments beyond this would leave the calendars of Python and SQLite, which end with the year 9999.
FARTHEST = timedelta(days=365_250)


#: What the runs of one task have in common, as a rule: all but their id, arguments and signature.
_kind = attrgetter(
    "task",
    "backend",
    "queue",
    "priority",
    "hold",
    "overrides",
    "metadata",
    "deadline",
    "run_after",
    "expires",
)


def new_runs(dialect: Dialect, runs: Sequence[NewRun]) -> tuple[dict[str, str], Sequence[Any]]:
    """
    The parameters of an enqueue, and for each run by what to find it in the answer.

    SQLite takes a list of rows and answers each, by its id. PostgreSQL takes a list a column, and
    takes and answers what the runs of one kind have in common once, by the place of the kind.
    """
    ids = [run.id.hex for run in runs]
    if dialect.name == "sqlite":
        return {"runs": dumps([_own(run) | _shared(dialect, run) for run in runs])}, ids
    kinds: dict[Any, int] = {}
    places = [kinds.setdefault(_kind(run), len(kinds)) for run in runs]
    samples = dict(zip(places, runs, strict=True))
    return {
        "kinds": dumps([{"place": place} | _shared(dialect, run) for place, run in samples.items()]),
        "places": dumps(places),
        "ids": dumps(ids),
        "arguments": dumps([run.arguments for run in runs]),
        "signatures": dumps([run.signature for run in runs]),
    }, places


def _own(run: NewRun) -> dict[str, Any]:
    return {"id": run.id.hex, "arguments": run.arguments, "signature": run.signature}


def _shared(dialect: Dialect, run: NewRun) -> dict[str, Any]:
    row: dict[str, Any] = {
        "task": run.task,
        "backend": run.backend,
        "queue": run.queue,
        "priority": run.priority,
        "hold": run.hold,
        "overrides": run.overrides,
        "metadata": run.metadata,
    }
    _put_moment(dialect, row, "deadline", run.deadline)
    if run.run_after is not None:
        _put_moment(dialect, row, "run_after", run.run_after)
    if run.expires is not None:
        _put_moment(dialect, row, "expires", run.expires)
    return row


def _put_moment(dialect: Dialect, row: dict[str, Any], name: str, value: datetime | timedelta) -> None:
    """A moment travels as a date, or as seconds that the database counts from its own now."""
    if isinstance(value, timedelta):
        if abs(value) > FARTHEST:
            raise ValueError(f"{name} is {value}, more than a thousand years away: no database keeps such dates.")
        row[f"{name}_in"] = value.total_seconds()
    else:
        row[f"{name}_at"] = dialect.moment(value)


def made(dialect: Dialect, row: Row) -> dict[str, Any]:
    """What the database made of a new run, as the fields of Enqueued."""
    return {
        "state": State(row[1]),
        "enqueued_at": dialect.read_moment(row[2]),
        "run_after": moment_or_none(dialect, row[3]),
        "deadline": dialect.read_moment(row[4]),
        "expires_at": moment_or_none(dialect, row[5]),
    }


def claimed(dialect: Dialect, row: Row) -> Claimed:
    refused_for = row[21]
    return Claimed(
        id=dialect.read_id(row[0]),
        token=row[1],
        task=row[2],
        backend=row[3],
        queue=row[4],
        priority=row[5],
        arguments=row[6],
        overrides=row[7],
        signature=row[8],
        metadata=row[9],
        enqueued_at=dialect.read_moment(row[10]),
        run_after=moment_or_none(dialect, row[11]),
        deadline=dialect.read_moment(row[12]),
        expires_at=moment_or_none(dialect, row[13]),
        started_at=dialect.read_moment(row[14]),
        last_attempted_at=dialect.read_moment(row[15]),
        attempts=row[16],
        failures=row[17],
        crashes=row[18],
        losses=row[19],
        worker=row[20],
        refused_for=None if refused_for is None else timedelta(seconds=refused_for),
        suspect=bool(row[22]),
    )


def run_record(dialect: Dialect, row: Row) -> RunRecord:
    return RunRecord(
        id=dialect.read_id(row[0]),
        task=row[1],
        backend=row[2],
        queue=row[3],
        priority=row[4],
        state=_state(row[5]),
        arguments=row[6],
        overrides=row[7],
        metadata=row[8],
        progress=row[9],
        result=row[10],
        result_signature=row[11],
        reason=row[12],
        enqueued_at=dialect.read_moment(row[13]),
        run_after=moment_or_none(dialect, row[14]),
        due_at=moment_or_none(dialect, row[15]),
        deadline=dialect.read_moment(row[16]),
        expires_at=moment_or_none(dialect, row[17]),
        started_at=moment_or_none(dialect, row[18]),
        last_attempted_at=moment_or_none(dialect, row[19]),
        finished_at=moment_or_none(dialect, row[20]),
        worker=row[21],
        token=row[22],
        attempts=row[23],
        failures=row[24],
        crashes=row[25],
        losses=row[26],
    )


def _state(stored: str) -> State:
    """A state written by hand that does not exist moves nothing; ``fsck`` names it, and it is shown as held."""
    try:
        return State(stored)
    except ValueError:
        return State.HELD


def attempt_record(dialect: Dialect, row: Row) -> AttemptRecord:
    return AttemptRecord(
        token=row[1],
        number=row[2],
        outcome=Outcome(row[3]),
        worker=row[4],
        executor=row[5],
        started_at=dialect.read_moment(row[6]),
        finished_at=dialect.read_moment(row[7]),
        error_class=row[8],
        error_message=row[9],
        traceback=row[10],
        output=row[11],
        log_ref=row[12],
        peak_memory=row[13],
    )


def moment_or_none(dialect: Dialect, value: Any) -> datetime | None:
    return None if value is None else dialect.read_moment(value)


def settlement_rows(settlements: Sequence[Settlement]) -> str:
    """Settlements as JSON. Raise ValueError for what not every database takes and gives back."""
    listed = [settlement_row(settlement) for settlement in settlements]
    written = dumps(listed, allow_nan=False)
    # Escaped NULs and surrogates, or what looks like them: one look at all, a closer one if need be.
    if r"\u0000" in written or r"\ud" in written:
        for row in listed:
            _refuse_unstorable(row)
    return written


def settlement_row(settlement: Settlement) -> dict[str, Any]:
    delay = settlement.delay
    if delay is not None and abs(delay) > FARTHEST.total_seconds():
        raise ValueError(f"a delay of {delay} seconds ends after the year 9999")
    row = {
        "run_id": settlement.run_id.hex,
        "token": settlement.token,
        "outcome": settlement.outcome.value,
        "next_state": settlement.next_state.value,
        "delay": delay,
        "duration": round(settlement.duration, 6),
        "result": settlement.result,
        "result_signature": settlement.result_signature,
        "reason": settlement.reason,
        "executor": settlement.executor,
        "error_class": settlement.error_class,
        "error_message": settlement.error_message,
        "traceback": settlement.traceback,
        "output": settlement.output,
        "log_ref": settlement.log_ref,
        "peak_memory": settlement.peak_memory,
        "refused": settlement.refused,
        "suspect": settlement.suspect,
    }
    return {name: value for name, value in row.items() if value is not None and value != ""}


def _refuse_unstorable(row: dict[str, Any]) -> None:
    for name, value in row.items():
        if isinstance(value, str) and not text.is_storable(value):
            raise ValueError(f"{name} holds NUL characters or lone surrogates")


def unstorable(settlement: Settlement, error: Exception) -> Settlement:
    """The failure that takes the place of an outcome the database refuses to store."""
    said = text.storable(str(error), text.MESSAGE_LIMIT)
    message = f"The attempt ended {settlement.outcome}, but the database refused to store it: {said}"
    return Settlement(
        run_id=settlement.run_id,
        token=settlement.token,
        outcome=Outcome.FAILED,
        next_state=State.FAILED,
        duration=settlement.duration if isfinite(settlement.duration) else 0.0,
        reason=message,
        error_class=f"{UnstorableOutcome.__module__}.{UnstorableOutcome.__qualname__}",
        error_message=message,
        traceback=text.storable(settlement.traceback, text.TRACEBACK_LIMIT),
    )


def loss(orphan: Orphan, max_losses: int) -> Settlement:
    """
    How the execution of a lost worker is settled: again, or for good when it vanished too often.

    Nobody knows which of its runs a worker died of, if of any. So none is charged the first time; all
    travel alone the next time, and a run that loses a worker then pays for it. Only what must never
    start twice is not given a second chance.
    """
    message = f"Worker {orphan.worker} was lost while it held the run."
    charged = orphan.suspect
    for_good = max_losses == 0 or (charged and orphan.losses + 1 > max_losses)
    return Settlement(
        run_id=orphan.id,
        token=orphan.token,
        outcome=Outcome.LOST,
        next_state=State.LOST if for_good else State.READY,
        reason=f"{message} It has no chance left: max_losses is {max_losses}." if for_good else "",
        error_class=f"{TaskLost.__module__}.{TaskLost.__qualname__}",
        error_message=message,
        suspect=not charged,
    )


def in_turns(claims: list[Claimed], queues: Sequence[str]) -> list[Claimed]:
    """One of each queue, then the second of each, and so on: the order in which to start them."""
    by_queue: dict[str, list[Claimed]] = {queue: [] for queue in queues}
    for claim in sorted(claims, key=lambda claim: (-claim.priority, claim.deadline, claim.id)):
        by_queue[claim.queue].append(claim)
    turns = zip_longest(*by_queue.values())
    return [claim for turn in turns for claim in turn if claim is not None]


def with_history(claims: list[Claimed], histories: dict[Any, tuple[AttemptRecord, ...]]) -> list[Claimed]:
    return [replace(claim, history=histories.get(claim.id, ())) for claim in claims]
