"""Between rows and records. The order of the columns is that of the statements' RETURNING and SELECT."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from itertools import zip_longest
from json import dumps, loads
from json.encoder import encode_basestring_ascii
from math import isfinite
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any
from uuid import UUID

from django_manta import text
from django_manta.exceptions import TaskLost, UnstorableOutcome
from django_manta.ids import read_id
from django_manta.ledger.records import (
    AttemptRecord,
    Claimed,
    Enqueued,
    NewRun,
    Orphan,
    RunRecord,
    Settleable,
    Settlement,
    Value,
    Written,
)
from django_manta.ledger.session import Dialect, Row
from django_manta.moments import FIRST, LAST
from django_manta.states import Outcome, State, may_start_again, read_state

#: A text as JSON.
_quoted: Callable[[str], str] = encode_basestring_ascii

#: Moments beyond this would leave the calendars of Python and SQLite, which end with the year 9999.
FARTHEST = timedelta(days=365_250)


#: What the runs of one task have in common, as a rule: all but their id, arguments and signature.
_kind = attrgetter(
    "task",
    "backend",
    "queue",
    "priority",
    "hold",
    "waits",
    "workflow",
    "overrides",
    "metadata",
    "deadline",
    "run_after",
    "expires",
    "enqueued",
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
        # As many as the longest of the lists, all of them empty: one is enough.
        "refs": dumps([run.references for run in runs]) if any(run.references for run in runs) else "[]",
    }, places


def is_plain(run: NewRun) -> bool:
    """Whether it is ready at once, and for ever."""
    return not (run.waits or run.references) and has_no_dates(run)


def has_no_dates(run: NewRun) -> bool:
    """Whether nothing but other runs may keep it from being ready, and for ever, and all its moments count from now."""
    return not run.hold and run.run_after is None and run.expires is None and run.enqueued is None


def plain_run(dialect: Dialect, run: NewRun) -> dict[str, Any]:
    """The parameters of an enqueue of such a run, to PostgreSQL."""
    params: dict[str, Any] = {
        "id": run.id.hex,
        "task": run.task,
        "backend": run.backend,
        "queue": run.queue,
        "priority": run.priority,
        "arguments": run.arguments,
        "overrides": run.overrides,
        "signature": run.signature,
        "workflow": run.workflow.hex if run.workflow else None,
        "metadata": run.metadata,
        "deadline_at": None,
        "deadline_in": None,
    }
    _put_moment(dialect, params, "deadline", run.deadline)
    return params


def enqueued(dialect: Dialect, run: NewRun, state: State, enqueued_at: Any, deadline: Any) -> Enqueued:
    """What became of a run that has no other dates."""
    return Enqueued(
        id=run.id,
        state=state,
        enqueued_at=dialect.read_moment(enqueued_at),
        run_after=None,
        deadline=dialect.read_moment(deadline),
        expires_at=None,
    )


def _own(run: NewRun) -> dict[str, Any]:
    return {"id": run.id.hex, "arguments": run.arguments, "signature": run.signature, "refs": run.references}


def _shared(dialect: Dialect, run: NewRun) -> dict[str, Any]:
    row: dict[str, Any] = {
        "task": run.task,
        "backend": run.backend,
        "queue": run.queue,
        "priority": run.priority,
        "hold": run.hold,
        "waits": run.waits,
        "workflow": run.workflow.hex if run.workflow else None,
        "overrides": run.overrides,
        "metadata": run.metadata,
    }
    _put_moment(dialect, row, "deadline", run.deadline)
    if run.run_after is not None:
        _put_moment(dialect, row, "run_after", run.run_after)
    if run.expires is not None:
        _put_moment(dialect, row, "expires", run.expires)
    if run.enqueued is not None:
        _put_moment(dialect, row, "enqueued", run.enqueued)
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


def claims(dialect: Dialect, taken: list[Row], bad: list[tuple[Row, Exception]]) -> list[Claimed]:
    """
    What one statement has claimed, in the order in which to start it: by priority, then deadline, then id. The rows
    that cannot be read go to ``bad``.
    """
    try:
        return _claims(dialect, taken)
    except Exception:
        read = []
        for row in taken:
            try:
                read += _claims(dialect, [row])
            except Exception as error:
                bad.append((row, error))
        return in_line(read)


def _claims(dialect: Dialect, taken: list[Row]) -> list[Claimed]:
    # The rows, because what they hold can be compared without a line of Python. They are of one priority, as a rule.
    taken.sort(key=_DEADLINE_AND_ID)
    is_kept = bool(taken) and type(taken[0][0]) is bytes
    if is_kept and (taken[0][_DEADLINE] < FIRST or taken[-1][_DEADLINE] > LAST):
        raise ValueError("Its deadline is outside of the calendar.")
    if any(row[_PRIORITY] != taken[0][_PRIORITY] for row in taken):
        taken.sort(key=itemgetter(_PRIORITY), reverse=True)
    if is_kept:
        return [_claimed_as_kept(row) for row in taken]
    return [_claimed(dialect, row) for row in taken]


_PRIORITY, _DEADLINE = Claimed._fields.index("priority"), Claimed._fields.index("deadline")
_DEADLINE_AND_ID = itemgetter(Claimed._fields.index("deadline"), 0)

#: ``Claimed._make`` for as many values as there are fields, which is not looked at again.
make_claimed: Callable[[tuple[Any, ...]], Claimed] = partial(tuple.__new__, Claimed)


def _claimed_as_kept(row: Row) -> Claimed:
    """Of a row that a worker's own connection has read (direct.py): nothing has to be made of it but the id."""
    return make_claimed((read_id(row[0]), *row[1:_VALUES], (), _values(row[_VALUES]) if row[_VALUES] else {}, 0))


def _values(given: list[tuple[str, str, str]]) -> dict[str, Value]:
    return {run_id: Value(result, signature) for run_id, result, signature in given}


#: Where a row has the values that the run is given; before it all is as in Claimed.
_VALUES = Claimed._fields.index("history")


def _claimed(dialect: Dialect, row: Row) -> Claimed:
    if not all(map(isinstance, row, _KINDS)):
        # SQLite keeps what it is given, whatever a column's type is.
        wrong = [Claimed._fields[place] for place, kind in enumerate(_KINDS) if not isinstance(row[place], kind)]
        raise TypeError(f"{', '.join(wrong)}: not of the column's type.")
    read = dialect.read_microseconds
    run_after, expires_at = row[11], row[13]
    return Claimed._make(
        (
            dialect.read_id(row[0]),
            *row[1:10],
            read(row[10]),
            None if run_after is None else read(run_after),
            read(row[12]),
            None if expires_at is None else read(expires_at),
            read(row[14]),
            read(row[15]),
            *row[16:22],
            bool(row[22]),
            row[23],
            row[24],
            bool(row[25]),
            (),
            _values(row[_VALUES]) if row[_VALUES] else {},
            0,
        )
    )


#: What a row of a claim may hold where Django's connection has read it, up to what it is given.
_KINDS: tuple[Any, ...] = (
    (str, UUID),
    *(int, str, str, str, int, str, str, str, str),
    *((str, datetime), (str, datetime, NoneType), (str, datetime), (str, datetime, NoneType)),
    *((str, datetime), (str, datetime)),
    *(int, int, int, int, str),
    (float, int, NoneType),
    *(int, (str, NoneType), (str, UUID, NoneType), int),
)


def run_record(dialect: Dialect, row: Row) -> RunRecord:
    return RunRecord(
        id=dialect.read_id(row[0]),
        task=row[1],
        backend=row[2],
        queue=row[3],
        priority=row[4],
        state=read_state(row[5]),
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
        references=row[27],
        delegate=row[28],
        workflow=None if row[29] is None else dialect.read_id(row[29]),
        signature=row[30],
    )


def attempt_record(dialect: Dialect, row: Row, read: Callable[[str], Outcome] = Outcome) -> AttemptRecord:
    return AttemptRecord(
        token=row[1],
        number=row[2],
        outcome=read(row[3]),
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


#: What most settlements leave empty does not travel.
_OFTEN_EMPTY = (
    "result",
    "result_signature",
    "delegate",
    "reason",
    "executor",
    "error_class",
    "error_message",
    "traceback",
    "output",
    "log_ref",
)
_often_empty = attrgetter(*_OFTEN_EMPTY)

#: What a settlement leaves empty if all went well.
_empty_if_well = attrgetter(
    "delegate",
    "reason",
    "error_class",
    "error_message",
    "traceback",
    "output",
    "log_ref",
    "delay",
    "peak_memory",
    "refused",
    "suspect",
)


def settlement_rows(settlements: Iterable[Settleable]) -> str:
    """Settlements as JSON. Raise ValueError for what not every database takes and gives back."""
    return f"[{','.join(each.text if isinstance(each, Written) else settlement_text(each) for each in settlements)}]"


def settlement_text(settlement: Settlement) -> str:
    """A settlement as JSON. Raise ValueError for what not every database takes and gives back."""
    return _well(settlement) or _whole(settlement)


def _well(settlement: Settlement) -> str:
    """
    The same of one that went well and has nothing more to say, as most have; "" of others.

    Put together by hand, for speed: all that needs escaping are the texts. What is left out is the same for everything
    that went well (settle.sql).
    """
    result, signature, executor = settlement.result, settlement.result_signature, settlement.executor
    if (
        settlement.outcome is not Outcome.SUCCESSFUL
        or not (result and signature and executor)
        or any(_empty_if_well(settlement))
        or not (text.is_storable(f"{result}{signature}{executor}") and isfinite(settlement.duration))
    ):
        return ""
    return (
        f'{{"run_id":"{settlement.run_id.hex}","token":{settlement.token},"duration":{settlement.duration:.6f},'
        f'"result":{_quoted(result)},"result_signature":{_quoted(signature)},"executor":{_quoted(executor)}}}'
    )


def _whole(settlement: Settlement) -> str:
    duration = settlement.duration
    if not isfinite(duration):
        raise ValueError(f"a duration of {duration} seconds")
    begin = (
        f'{{"run_id":"{settlement.run_id.hex}","token":{settlement.token},"outcome":"{settlement.outcome._value_}",'
        f'"next_state":"{settlement.next_state._value_}","duration":{duration:.6f},'
        f'"refused":{_JSON[settlement.refused]},"suspect":{_JSON[settlement.suspect]}'
    )
    return ",".join([begin, *_unusual(settlement)]) + "}"


def _unusual(settlement: Settlement) -> Iterator[str]:
    """What a settlement has besides what each of them has."""
    delay, peak = settlement.delay, settlement.peak_memory
    if delay is not None:
        if not abs(delay) <= FARTHEST.total_seconds():
            raise ValueError(f"a delay of {delay} seconds ends after the year 9999")
        yield f'"delay":{delay:.6f}'
    if peak is not None:
        yield f'"peak_memory":{peak:d}'
    for name, value in zip(_OFTEN_EMPTY, _often_empty(settlement), strict=True):
        if value:
            if not text.is_storable(value):
                raise ValueError(f"{name} holds NUL characters or lone surrogates")
            yield f'"{name}":{_quoted(value)}'


_JSON = {True: "true", False: "false"}


def written(settlement: Settlement) -> Written:
    """The settlement as its executor writes it down; a failure if it cannot be stored."""
    is_well = bool(text := _well(settlement))
    if not is_well:
        try:
            text = _whole(settlement)
        except ValueError as error:
            settlement = unstorable(settlement, error)
            text = _whole(settlement)
    return Written(
        settlement.run_id,
        settlement.token,
        settlement.outcome,
        settlement.next_state,
        settlement.duration,
        settlement.told,
        text,
        is_well,
        settlement.delegate,
        settlement.after,
        settlement.at_once,
    )


def written_well(
    run_id: UUID, name: str, token: int, duration: float, result: str, signature: str, executor: str
) -> Written:
    """
    The same of a success, for an executor in a hurry: what ``written()`` would make of its settlement. ``name`` is the
    run's id as text. ``result`` is what payload.dump() returned and ``signature`` ours: both can be stored.
    """
    text = (
        f'{{"run_id":"{name.replace("-", "")}","token":{token},"duration":{duration:.6f},'
        f'"result":{_quoted(result)},"result_signature":"{signature}","executor":{_quoted_name(executor)}}}'
    )
    return Written(run_id, token, Outcome.SUCCESSFUL, State.SUCCESSFUL, duration, True, text, True)


@lru_cache(maxsize=64)
def _quoted_name(executor: str) -> str:
    """Of an executor, who writes down very many."""
    return _quoted(text.clean(executor))


def unstorable(settlement: Settleable, error: Exception) -> Settlement:
    """The failure that takes the place of an outcome the database refuses to store."""
    said = text.storable(str(error), text.MESSAGE_LIMIT)
    return failed_instead(
        settlement, f"The attempt ended {settlement.outcome}, but the database refused to store it: {said}"
    )


def failed_instead(settlement: Settleable, message: str) -> Settlement:
    """The failure that takes the place of an outcome that cannot be stored, for the reason in ``message``."""
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


def renumbered(settlement: Settleable, token: int) -> Settleable:
    """The same, of an execution that has another token."""
    if isinstance(settlement, Settlement):
        return replace(settlement, token=token)
    return replace(settlement, token=token, text=dumps({**loads(settlement.text), "token": token}))


def loss(orphan: Orphan, max_losses: int, *, alone: bool, words: str = "") -> Settlement:
    """
    How the execution of a lost worker is settled: again, or for good when it vanished too often.

    Nobody knows which of its runs a worker died of, if of any. So none is charged the first time; all
    travel ``alone`` the next time, and a run that loses a worker then pays for it. Only what must never
    start twice is not given a second chance.
    """
    message = words or f"Worker {orphan.worker} was lost while it held the run."
    charged = orphan.suspect and alone
    for_good = not may_start_again(max_losses, orphan.losses + 1 if charged else 0)
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


def in_line(claims: list[Claimed]) -> list[Claimed]:
    """What several statements have claimed, in the order of claims()."""
    return sorted(claims, key=_place_in_line)


def in_turns(claims: list[Claimed], queues: Sequence[str]) -> list[Claimed]:
    """One of each queue, then the second of each, and so on: the order in which to start what stands in line."""
    if len(queues) == 1:
        return claims
    by_queue: dict[str, list[Claimed]] = {queue: [] for queue in queues}
    for claim in claims:
        by_queue[claim.queue].append(claim)
    turns = zip_longest(*by_queue.values())
    return [claim for turn in turns for claim in turn if claim is not None]


def _place_in_line(claim: Claimed) -> tuple[int, int, int]:
    # As a number: UUIDs are compared by a function of Python's.
    return -claim.priority, claim.deadline, claim.id.int


def with_history(claims: list[Claimed], histories: dict[Any, tuple[AttemptRecord, ...]]) -> list[Claimed]:
    return [claim._replace(history=histories.get(claim.id, ())) for claim in claims]
