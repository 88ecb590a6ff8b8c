"""
Claims: of whole queues in one statement, or of each queue from behind what was taken before (marks.py).

A claim that is one statement, as it is wherever there is no backlog, can be sent along with the settlement that makes
something ready: nobody waits for the answer to one before the other is sent.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError
from django.db import Error as AnyDatabaseError

from django_manta.ledger import bad_rows, conflicts, rows, values
from django_manta.ledger.marks import QUEUES, Marks
from django_manta.ledger.records import Claimed
from django_manta.ledger.session import Request, Row
from django_manta.payload import size_of
from django_manta.states import Outcome, State

if TYPE_CHECKING:
    from django_manta.ledger.book import Ledger

logger = logging.getLogger("django_manta")

#: A claim takes no more once the arguments that it has taken have so many bytes: they pass through the worker's memory.
CLAIM_BYTES = 16 * 1024 * 1024

#: PostgreSQL has given a statement up, because it took too long.
_CANCELED = "57014"


class Wanted(NamedTuple):
    """What a worker would like to have: up to ``limit`` runs of ``queues``, see Ledger.claim()."""

    worker: str
    queues: Sequence[str]
    limit: int
    horizon: float | None = None
    not_tasks: Sequence[str] = ()
    #: Runs that the database lets nobody change.
    not_ids: Sequence[str] = ()
    #: Bytes of arguments.
    budget: int = CLAIM_BYTES

    def is_filled_by(self, claims: Sequence[Claimed]) -> bool:
        """Whether no more was to be claimed than this, so that there may be more."""
        return len(claims) >= self.limit or self.is_outweighed_by(claims)

    def is_outweighed_by(self, claims: Sequence[Claimed]) -> bool:
        """Whether their arguments use up the budget."""
        # Characters are counted first, which is quick: one has four bytes at most.
        characters = sum([len(claim.arguments) for claim in claims])
        return 4 * characters >= self.budget and weight_of(claims) >= self.budget


def weight_of(claims: Sequence[Claimed]) -> int:
    """The bytes of their arguments."""
    return sum(size_of(claim.arguments) for claim in claims)


def claim(ledger: "Ledger", wanted: Wanted, marks: Marks | None) -> list[Claimed]:
    """Take what is wanted, and all that its executors need."""
    if not wanted.queues or wanted.limit < 1:
        return []
    if marks is not None and marks.stuck:
        wanted = wanted._replace(not_ids=marks.still_stuck())
    try:
        return _claim_once(ledger, wanted, marks)
    except AnyDatabaseError as error:
        if not conflicts.is_refusal(error) or ledger.session.in_transaction():
            raise
        stuck = _put_away_the_reason(ledger, wanted, error)
        if stuck is None or (stuck and marks is None):
            raise
        if marks is not None:
            marks.are_stuck(stuck)
        # The next claim takes the others.
        return []


def _put_away_the_reason(ledger: "Ledger", wanted: Wanted, error: Exception) -> list[str] | None:
    """Something in a row keeps it, and so its neighbours, from being claimed. What could not be put away; see there."""
    params = {
        "queues": ledger.dialect.listing(wanted.queues),
        "limit": wanted.limit * (len(wanted.queues) + 1),
        "not_ids": ledger.dialect.listing(wanted.not_ids),
    }
    return bad_rows.put_away_among(ledger, "heads_ready", params, State.RUNNING.value, error)


def _claim_once(ledger: "Ledger", wanted: Wanted, marks: Marks | None) -> list[Claimed]:
    if marks is None or not _keeps_marks(ledger, wanted):
        claims = _claim(ledger, wanted)
    else:
        claims = _claim_behind(ledger, wanted, marks)
    return _completed(ledger, wanted, claims)


def _keeps_marks(ledger: "Ledger", wanted: Wanted) -> bool:
    """Of what is passed over something is still there: no mark may go behind it."""
    return (
        wanted.horizon is None
        and not wanted.not_tasks
        and not wanted.not_ids
        and len(wanted.queues) <= QUEUES
        and ledger.dialect.name == "postgres"
    )


def _completed(ledger: "Ledger", wanted: Wanted, claims: list[Claimed]) -> list[Claimed]:
    """With the history of those that have any, and what they are given; in the order in which to start them."""
    if any(claim.references for claim in claims):
        claims = _without_bad(ledger, wanted.worker, claims, values.with_values)
    tried = [claim.id for claim in claims if claim.attempts > 1]
    if tried:
        claims = _with_history(ledger, wanted.worker, claims, tried)
    return rows.in_turns(claims, wanted.queues)


def _without_bad(
    ledger: "Ledger", worker: str, claims: list[Claimed], read: Callable[["Ledger", list[Claimed]], list[Claimed]]
) -> list[Claimed]:
    """What ``read`` makes of claims. A run of which nothing can be read ends, and keeps no other from starting."""
    if not ledger.session.in_transaction():
        try:
            return read(ledger, claims)
        except Exception as error:
            if isinstance(error, AnyDatabaseError) and not conflicts.is_refusal(error):
                raise
    bad: list[tuple[Claimed, Exception]] = []
    found = bad_rows.one_by_one(ledger, claims, lambda some: read(ledger, list(some)), bad)
    for claim, reason in bad:
        bad_rows.put_away(ledger, claim.id.hex, worker, reason, "read with what it refers to")
    return found


def _with_history(ledger: "Ledger", worker: str, claims: list[Claimed], tried: list[UUID]) -> list[Claimed]:
    bad: list[tuple[UUID, Exception]] = []
    found = bad_rows.one_by_one(ledger, tried, lambda ids: list(ledger.history(ids).items()), bad)
    claims = rows.with_history(claims, dict(found))
    for run_id, error in bad:
        bad_rows.put_away(ledger, run_id.hex, worker, error, "read with its history")
    if bad:
        unread = {run_id for run_id, _ in bad}
        claims = [claim for claim in claims if claim.id not in unread]
    called_again = [claim.id for claim in claims if any(each.outcome is Outcome.DEFERRED for each in claim.history)]
    return values.with_laters(ledger, claims, called_again) if called_again else claims


def _lacks(claim: Claimed) -> bool:
    """Whether its executor needs more than the claim has brought."""
    return claim.attempts > 1 or (claim.references is not None and not values.has_values(claim))


# -- in one statement ----------------------------------------------------------------------------


def _request(ledger: "Ledger", wanted: Wanted) -> Request:
    params: dict[str, Any] = {
        "worker": wanted.worker,
        "limit": wanted.limit,
        "horizon": wanted.horizon,
        "not_tasks": ledger.dialect.listing(wanted.not_tasks),
        "not_ids": ledger.dialect.listing(wanted.not_ids),
        "budget": wanted.budget,
    }
    if len(wanted.queues) == 1 and ledger.dialect.name == "postgres":
        return "claim_line", {**params, "queue": wanted.queues[0]}
    return "claim", {**params, "queues": ledger.dialect.listing(wanted.queues)}


def _claim(ledger: "Ledger", wanted: Wanted) -> list[Claimed]:
    return _read(ledger, wanted.worker, ledger.session.rows(*_request(ledger, wanted)))


def _read(ledger: "Ledger", worker: str, taken: list[Row]) -> list[Claimed]:
    """What was claimed, and is ours; those that cannot be read are ended."""
    bad: list[tuple[Row, Exception]] = []
    claims = rows.claims(ledger.dialect, taken, bad)
    for row, error in bad:
        bad_rows.put_away(ledger, row[0], worker, error, "read")
    return claims


class _Brought(NamedTuple):
    claims: list[Claimed]
    #: Their executors need more than these have.
    is_lacking: bool
    #: Rows that cannot be read.
    bad: Sequence[tuple[Row, Exception]]


@dataclass(slots=True)
class Along:
    """Claims that are sent along with something else, see Ledger.settle_and_claim()."""

    wanted: Sequence[Wanted]
    #: They were sent, and nobody knows what they brought.
    is_open: bool = False
    #: What each has brought, once that is ours.
    claims: list[list[Claimed]] | None = None
    _brought: list[_Brought] | None = None
    #: How long they took, and a little more: what they were sent along with.
    _seconds: float = 0.0

    @classmethod
    def of(cls, wanted: Sequence[Wanted], marks: Marks) -> "Along | None":
        """These claims; None where they would take more than a statement each, or long."""
        wanted = [each for each in wanted if each.queues and each.limit > 0]
        queues = {queue for each in wanted for queue in each.queues}
        if not wanted or marks.stuck:
            return None
        if any(marks.hold(each) or marks.is_dear(each) or marks.is_in_doubt(each) for each in queues):
            return None
        return cls(wanted)

    def requests(self, ledger: "Ledger") -> list[Request]:
        self.is_open = True
        return [_request(ledger, each) for each in self.wanted]

    def read(self, ledger: "Ledger", answers: Sequence[list[Row]], seconds: float) -> None:
        """What they have brought, as far as that can be known before they are committed."""
        brought = []
        for each, answer in zip(self.wanted, answers, strict=True):
            bad: list[tuple[Row, Exception]] = []
            claims = rows.in_turns(rows.claims(ledger.dialect, answer, bad), each.queues)
            brought.append(_Brought(claims, any(map(_lacks, claims)), bad))
        self._brought, self._seconds = brought, seconds

    def undone(self) -> None:
        """They have brought nothing: all of it was rolled back."""
        self.is_open = False

    def conclude(self, ledger: "Ledger", marks: Marks | None) -> list[Claimed] | None:
        """They are committed: what is ours."""
        if self._brought is None:
            return None
        self.claims = [
            _completed(ledger, each, claims) if is_lacking else claims
            for each, (claims, is_lacking, _) in zip(self.wanted, self._brought, strict=True)
        ]
        for each, brought in zip(self.wanted, self._brought, strict=True):
            for row, error in brought.bad:
                bad_rows.put_away(ledger, row[0], each.worker, error, "read")
        self.is_open = False
        if marks is not None:
            marks.look_at = None
            for each, claims in zip(self.wanted, self.claims, strict=True):
                if _keeps_marks(ledger, each):
                    full = each.is_filled_by(claims)
                    _note(marks, each.queues, claims, self._seconds, full=full, in_company=True)
        return [claim for claims in self.claims for claim in claims]


# -- behind marks --------------------------------------------------------------------------------


def _claim_behind(ledger: "Ledger", wanted: Wanted, marks: Marks) -> list[Claimed]:
    """
    One queue after the other, each from behind its mark, or all of it when that is due. They share limit and budget.
    """
    claims: list[Claimed] = []
    marks.look_at = None
    if not any(map(marks.hold, wanted.queues)):
        _look_through(ledger, wanted, marks, claims)
        return claims
    #: How many statements have brought something.
    brought = 0
    #: What one queue cannot fill is left to the others.
    queues = list(wanted.queues)
    budget = wanted.budget
    while queues and len(claims) < wanted.limit and budget > 0:
        queue = queues.pop(0)
        share = math.ceil((wanted.limit - len(claims)) / (len(queues) + 1))
        mine = wanted._replace(queues=[queue], limit=share, budget=budget)
        found: list[Claimed] = []
        if marks.hold(queue):
            asked = {
                "worker": wanted.worker,
                "queue": queue,
                "limit": share,
                "budget": budget,
                "parts": marks.parts(queue),
            }
            found = _read(ledger, wanted.worker, ledger.session.rows("claim_behind", asked))
            marks.took(queue, found, full=mine.is_filled_by(found))
            claims += found
            brought += bool(found)
            if not mine.is_filled_by(found) and marks.is_dear(queue):
                marks.put_off(queue)
                budget -= weight_of(found)
                continue
        if not mine.is_filled_by(found):
            rest = mine._replace(limit=share - len(found), budget=budget - weight_of(found))
            more = _look_through(ledger, rest, marks, claims)
            found += more
            brought += bool(more)
        if mine.is_filled_by(found):
            queues.append(queue)
        budget -= weight_of(found)
    return rows.in_line(claims) if brought > 1 else claims


def _look_through(ledger: "Ledger", wanted: Wanted, marks: Marks, claims: list[Claimed]) -> list[Claimed]:
    """Claim from all of some queues, from their beginning. Adds to ``claims``."""
    began = time.monotonic()
    try:
        found = _claim(ledger, wanted)
    except DatabaseError as error:
        for queue in wanted.queues:
            marks.looked(queue, (), time.monotonic() - began, full=False)
        # It took longer than a statement may, and has done nothing: what was claimed behind the marks is ours all
        # the same, unless it goes with the transaction. After anything else nobody knows what it did, and whoever
        # called has to find out.
        if not claims or conflicts.code_of(error) != _CANCELED or ledger.session.in_transaction():
            raise
        logger.warning("Could not look through all of %s; once more in a while.", wanted.queues, exc_info=True)
        return []
    _note(marks, wanted.queues, found, time.monotonic() - began, full=wanted.is_filled_by(found))
    claims += found
    return found


def _note(
    marks: Marks,
    queues: Sequence[str],
    found: Sequence[Claimed],
    seconds: float,
    *,
    full: bool,
    in_company: bool = False,
) -> None:
    for queue in queues:
        of_it = [claim for claim in found if claim.queue == queue]
        if of_it or not full:
            marks.looked(queue, of_it, seconds, full=full, in_company=in_company)
