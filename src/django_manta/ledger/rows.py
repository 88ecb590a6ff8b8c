"""Between rows and records. The order of the columns is that of the statements' RETURNING and SELECT."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from django_manta import text
from django_manta.exceptions import TaskLost, UnstorableOutcome
from django_manta.ledger.records import (
    AttemptRecord,
    Claimed,
    Enqueued,
    NewRun,
    Orphan,
    RunRecord,
    Settlement,
)
from django_manta.ledger.session import Dialect, Row
from django_manta.states import Outcome, State


def new_row(dialect: Dialect, run: NewRun) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": run.id.hex,
        "task": run.task,
        "backend": run.backend,
        "queue": run.queue,
        "priority": run.priority,
        "hold": run.hold,
        "arguments": run.arguments,
        "overrides": run.overrides,
        "signature": run.signature,
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
        row[f"{name}_in"] = value.total_seconds()
    else:
        row[f"{name}_at"] = dialect.moment(value)


def enqueued(dialect: Dialect, row: Row) -> Enqueued:
    return Enqueued(
        id=dialect.read_id(row[0]),
        state=State(row[1]),
        enqueued_at=dialect.read_moment(row[2]),
        run_after=moment_or_none(dialect, row[3]),
        deadline=dialect.read_moment(row[4]),
        expires_at=moment_or_none(dialect, row[5]),
    )


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
    )


def run_record(dialect: Dialect, row: Row) -> RunRecord:
    return RunRecord(
        id=dialect.read_id(row[0]),
        task=row[1],
        backend=row[2],
        queue=row[3],
        priority=row[4],
        state=State(row[5]),
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


def settlement_row(settlement: Settlement) -> dict[str, Any]:
    return {
        "run_id": settlement.run_id.hex,
        "token": settlement.token,
        "outcome": settlement.outcome.value,
        "next_state": settlement.next_state.value,
        "delay": settlement.delay,
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
    }


def unstorable(settlement: Settlement, error: Exception) -> Settlement:
    """The failure that takes the place of an outcome the database refuses to store."""
    said = text.storable(str(error), text.MESSAGE_LIMIT)
    message = f"The attempt ended {settlement.outcome}, but the database refused to store it: {said}"
    return Settlement(
        run_id=settlement.run_id,
        token=settlement.token,
        outcome=Outcome.FAILED,
        next_state=State.FAILED,
        duration=settlement.duration,
        reason=message,
        error_class=f"{UnstorableOutcome.__module__}.{UnstorableOutcome.__qualname__}",
        error_message=message,
        traceback=text.storable(settlement.traceback, text.TRACEBACK_LIMIT),
    )


def loss(orphan: Orphan, max_losses: int) -> Settlement:
    """How the execution of a lost worker is settled: again, or for good when it vanished too often."""
    message = f"Worker {orphan.worker} was lost while it held the run."
    for_good = orphan.losses + 1 > max_losses
    return Settlement(
        run_id=orphan.id,
        token=orphan.token,
        outcome=Outcome.LOST,
        next_state=State.LOST if for_good else State.READY,
        reason=f"{message} Its executions vanished {orphan.losses + 1} times." if for_good else "",
        error_class=f"{TaskLost.__module__}.{TaskLost.__qualname__}",
        error_message=message,
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
