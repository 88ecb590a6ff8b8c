"""
Settlements: what became of executions is written down, and who waited is told.

A batch is one statement, and for what went well a shorter one (settle_well.sql). What the database refuses is found by
halving: it is settled as a failure, and if that is refused as well the caller keeps it and tries again later. What
somebody holds is left to the caller, who tries again. A few can be settled along with a claim,
in one transaction that is sent at once: a step of a chain waits for the disk once.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import DatabaseError
from django.db import Error as AnyDatabaseError

from django_manta.ledger import claiming, conflicts, graph, rows, tokens
from django_manta.ledger.marks import Marks
from django_manta.ledger.records import Claimed, Settleable, Settled, Written
from django_manta.ledger.session import Request, Row
from django_manta.ledger.values import delegates_of
from django_manta.states import ENDS, WAITING_OUTCOMES, Outcome, State

if TYPE_CHECKING:
    from django_manta.ledger.book import Ledger

logger = logging.getLogger("django_manta")


@dataclass(slots=True)
class _Batch:
    """What settling a batch, or its halves, has done."""

    moved: dict[int, State] = field(default_factory=dict)
    heralds: list[UUID] = field(default_factory=list)
    waiting: list[UUID] = field(default_factory=list)
    #: What the database refuses to settle, with its words.
    refused: dict[int, str] = field(default_factory=dict)


def settle(ledger: "Ledger", settlements: Iterable[Settleable], worker: str | None, recovering: bool) -> Settled:
    """See Ledger.settle()."""
    batch = _each_once(settlements)
    if not batch:
        return Settled()
    done = _Batch()
    _settle_or_halve(ledger, batch, worker, recovering, done)
    return _spread(ledger, done) | _missing(ledger, batch, done, worker, recovering)


def request(batch: list[Settleable], worker: str | None, recovering: bool = False) -> dict[str, Any]:
    """What to say to settle.sql, or settle_well.sql."""
    settlements = rows.settlement_rows(batch)
    return {"settlements": settlements, "worker": worker, "recovering": recovering, "quietly": False}


def _each_once(settlements: Iterable[Settleable]) -> list[Settleable]:
    """Of two settlements of one execution, the later."""
    batch = list(settlements)
    if len({each.token for each in batch}) == len(batch):
        return batch
    return list({each.execution: each for each in batch}.values())


# -- a batch -------------------------------------------------------------------------------------


def _settle_or_halve(
    ledger: "Ledger", batch: list[Settleable], worker: str | None, recovering: bool, done: _Batch
) -> None:
    try:
        _settle(ledger, batch, worker, recovering, done)
    except (AnyDatabaseError, ValueError, OverflowError) as error:
        if not conflicts.is_refusal(error):
            raise
        if len(batch) == 1:
            _settle_alone(ledger, batch[0], error, worker, recovering, done)
            return
        half = len(batch) // 2
        _settle_or_halve(ledger, batch[:half], worker, recovering, done)
        _settle_or_halve(ledger, batch[half:], worker, recovering, done)


def _settle_alone(
    ledger: "Ledger", one: Settleable, refusal: Exception, worker: str | None, recovering: bool, done: _Batch
) -> None:
    """The one that was refused: under another token if that was the reason, and otherwise as a failure."""
    try:
        if conflicts.is_taken_token(refusal):
            _settle_renumbered(ledger, one, worker, recovering, done)
        else:
            _settle(ledger, [rows.unstorable(one, refusal)], worker, recovering, done)
    except _NotMoved:
        pass
    except (AnyDatabaseError, ValueError, OverflowError) as error:
        if not conflicts.is_refusal(error):
            raise
        done.refused[one.token] = str(error).strip()


class _NotMoved(Exception):
    """The execution is not theirs any more, or somebody holds its run."""


def _settle_renumbered(ledger: "Ledger", one: Settleable, worker: str | None, recovering: bool, done: _Batch) -> None:
    """
    Another execution was settled under this token, as can be where tables were restored, or a replica promoted, without
    their sequences. The sequence goes on behind the table, and this execution is settled under a token of its own.
    """
    part = _Batch()
    with ledger.session.transaction():
        tokens.advance(ledger)
        found = ledger.session.rows("renumber", {"id": one.run_id.hex, "token": one.token})
        if not found:
            raise _NotMoved
        token: int = found[0][0]
        _settle(ledger, [rows.renumbered(one, token)], worker, recovering, part)
        if token not in part.moved:
            raise _NotMoved
    logger.warning(
        "Token %s of run %s was given twice: the sequence of tokens was behind the table of attempts, and goes on "
        "behind it now. The attempt has token %s.",
        one.token,
        one.run_id,
        token,
    )
    done.moved[one.token] = part.moved[token]
    done.heralds += part.heralds
    done.waiting += part.waiting


def _settle(ledger: "Ledger", batch: list[Settleable], worker: str | None, recovering: bool, done: _Batch) -> None:
    params, session = request(batch, worker, recovering), ledger.session
    if _are_well(ledger, batch):
        with session.step():
            found = session.rows("settle_well", params)
        done.heralds += _moved_well(found, done)
        return
    # By execution: of two settlements with one token, only one can be of the run that it moved.
    waits = {each.execution: each for each in batch if each.outcome in WAITING_OUTCOMES}
    with session.transaction() if waits else session.step():
        if ledger.dialect.name == "sqlite":
            session.run("settle_attempts", params)
        found = session.rows("settle", params)
        read_id = ledger.dialect.read_id
        moved = {(read_id(run_id), token): State(state) for token, state, _, run_id in found}
        heralds = [read_id(run_id) for _, _, is_herald, run_id in found if is_herald]
        if heralds and ledger.dialect.name == "sqlite":
            session.run("add_heralds", {"ids": ledger.listed(heralds)})
        waiting = [waits[each] for each, state in moved.items() if each in waits and state not in ENDS]
        if waiting:
            graph.wait(ledger, waiting)
        cancelled = [each for execution, each in waits.items() if moved.get(execution) is State.CANCELLED]
        unwanted = {UUID(child) for each in cancelled for child in delegates_of(each.delegate)}
        if unwanted:
            heralds += ledger.cancel_only(unwanted, "What had delegated to it was cancelled.")[1]
    done.moved |= {token: state for (_, token), state in moved.items()}
    done.heralds += heralds
    done.waiting += [each.run_id for each in waiting]


def _are_well(ledger: "Ledger", batch: Sequence[Settleable]) -> bool:
    """Whether they can be settled by the statement for what went well."""
    return ledger.dialect.name == "postgres" and all(isinstance(each, Written) and each.is_well for each in batch)


def _moved_well(found: list[Row], done: _Batch) -> list[UUID]:
    """Note what settle_well.sql has moved. Those that somebody waits for."""
    done.moved |= dict.fromkeys((token for token, _ in found), State.SUCCESSFUL)
    return [run_id for _, run_id in found if run_id is not None]


# -- together with a claim -----------------------------------------------------------------------


def settle_and_claim(
    ledger: "Ledger", settlements: Sequence[Settleable], worker: str, along: claiming.Along, marks: Marks | None
) -> Settled | None:
    """See Ledger.settle_and_claim()."""
    if ledger.dialect.name != "postgres" or ledger.session.in_transaction():
        return None
    batch = _each_once(settlements)
    if any(each.outcome in WAITING_OUTCOMES for each in batch):
        return None
    done, passed = _Batch(), graph.Passed()
    well = _are_well(ledger, batch)
    began = time.monotonic()

    def read(answers: list[list[Row]]) -> None:
        seconds = time.monotonic() - began
        settled, told, *taken = answers
        if well:
            ended = _moved_well(settled, done)
        else:
            done.moved |= {token: State(state) for token, state, _, _ in settled}
            ended = [run_id for _, _, is_herald, run_id in settled if is_herald]
        done.heralds += graph.told_own(ended, told, passed)
        try:
            along.read(ledger, taken, seconds)
        except Exception:
            logger.exception("Could not read what was claimed: it is committed all the same, and given back.")

    try:
        asked = _requests(ledger, batch, worker, along, "settle_well" if well else "settle")
        ledger.session.at_once(*asked, meanwhile=read)
    except (AnyDatabaseError, ValueError) as error:
        # One by one: what is refused is found by halving, and what is in the way of others by those.
        if isinstance(error, AnyDatabaseError) and not conflicts.is_answer(error):
            raise
        along.undone()
        return None
    claims = _conclude(ledger, along, marks)
    left = passed.ready.difference(each.id for each in claims or ())
    settled = Settled(ready=frozenset(passed.queues if left else ()), claims=claims)
    settled |= _spread(ledger, done)
    try:
        return settled | _missing(ledger, batch, done, worker, recovering=False)
    except DatabaseError:
        # The others are settled, whatever became of these: they are tried again.
        logger.warning("Could not ask what became of some runs.", exc_info=True)
        return settled | Settled(busy=frozenset(each.token for each in batch if each.token not in done.moved))


def _requests(
    ledger: "Ledger", batch: list[Settleable], worker: str, along: claiming.Along, statement: str
) -> tuple[Request, ...]:
    """Settle, tell who waited for what went well, and claim."""
    good = [each.run_id for each in batch if each.outcome is Outcome.SUCCESSFUL]
    quietly = {**request(batch, worker), "quietly": True}
    return (statement, quietly), ("tell_own", graph.telling_own(ledger, good)), *along.requests(ledger)


def _conclude(ledger: "Ledger", along: claiming.Along, marks: Marks | None) -> list[Claimed] | None:
    try:
        return along.conclude(ledger, marks)
    except DatabaseError:
        logger.warning("Could not read what belongs to claimed runs: they are given back.", exc_info=True)
        return None


# -- afterwards ----------------------------------------------------------------------------------


def _spread(ledger: "Ledger", done: _Batch) -> Settled:
    """
    Arm what waits from now on, and tell who waited. In a caller's transaction both have to wait for
    its commit; and what goes wrong here is settled all the same: the caretaker sees to the rest.
    """
    if not (done.heralds or done.waiting):
        return Settled(done.moved)
    if ledger.session.in_transaction():
        return Settled(done.moved, heralds=(*done.heralds, *done.waiting))
    try:
        # First who may go on, then who must wait: what asks to wait for the former does not wait for itself.
        passed = graph.tell(ledger, done.heralds)
        passed |= graph.arm(ledger, done.waiting)
    except DatabaseError:
        logger.warning("Could not tell who waits for what was settled; the caretaker will.", exc_info=True)
        return Settled(done.moved)
    return Settled(done.moved, ready=frozenset(passed.queues), ended=tuple(passed.ended), untold=passed.untold)


def _missing(ledger: "Ledger", batch: list[Settleable], done: _Batch, worker: str | None, recovering: bool) -> Settled:
    """What did not move: because somebody holds it, or because it is no longer theirs."""
    missing = [one for one in batch if one.token not in done.moved and one.token not in done.refused]
    if not missing:
        return Settled(refused=done.refused)
    standing = _standing(ledger, missing, worker, recovering)
    busy = frozenset(settlement.token for settlement in missing if settlement.execution in standing)
    gone = frozenset(settlement.token for settlement in missing if settlement.execution not in standing)
    return Settled({}, gone, busy, refused=done.refused)


def _standing(
    ledger: "Ledger", settlements: list[Settleable], worker: str | None, recovering: bool
) -> set[tuple[UUID, int]]:
    """The executions that still are theirs to settle, now that the batch has been tried."""
    ids = ledger.listed(settlement.run_id for settlement in settlements)
    standing = ledger.session.rows("standing", {"ids": ids, "worker": worker, "recovering": recovering})
    return {(ledger.dialect.read_id(run_id), token) for run_id, token in standing}
