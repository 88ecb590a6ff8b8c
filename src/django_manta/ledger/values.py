"""
What runs are given: the values of other runs, by way of those that these delegated to.

Small values come with the claim itself, on PostgreSQL. The others are fetched for all claims of a batch at once; what
is very much is left to the executors, each of whom fetches its own.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from django_manta.ledger.records import Claimed, Value
from django_manta.payload import decode

if TYPE_CHECKING:
    from django_manta.ledger.book import Ledger

_ID = re.compile("[0-9a-f]{32}")

#: More than so many bytes of values are not fetched for others to carry along.
VALUES_LIMIT = 4 * 1024 * 1024


def fetch(ledger: "Ledger", ids: Iterable[str], *, limit: int | None = VALUES_LIMIT) -> dict[str, Value]:
    """
    The values of successful runs and of those that they delegated to, by id, which is 32 digits here and there.
    None of them, if they weigh more than ``limit`` bytes together.
    """
    params = {"ids": ledger.dialect.listing(list(ids)), "limit": limit}
    return {
        run_id: Value(result, signature, delegate)
        for run_id, result, signature, delegate in ledger.session.rows("values", params)
    }


def with_values(ledger: "Ledger", claims: list[Claimed]) -> list[Claimed]:
    """Claims with what their references refer to; those whose executors shall fetch it themselves without."""
    referred: dict[UUID, list[str]] = {}
    for claim in claims:
        if claim.references and not has_values(claim):
            referred[claim.id] = referred_to(claim.references)
    if not referred:
        return claims
    found = fetch(ledger, {run_id for ids in referred.values() for run_id in ids})
    return [
        claim._replace(values=_needed(referred[claim.id], found)) if claim.id in referred else claim for claim in claims
    ]


def has_values(claim: Claimed) -> bool:
    """
    Whether what its references refer to came with a claim, as what is little does. Nothing belongs to what somebody has
    altered so that it cannot be read: its executor refuses it.
    """
    try:
        return claim.references is None or claim.values.keys() >= set(referred_to(claim.references))
    except (ValueError, TypeError, AttributeError):
        return True


def referred_to(references: str) -> list[str]:
    """The ids in a list of references, as 32 digits each. Raise ValueError, TypeError, AttributeError of others."""
    return [_digits(run_id) for _, run_id in decode(references)]


def _digits(run_id: str) -> str:
    digits = run_id.replace("-", "")
    if not _ID.fullmatch(digits):
        raise ValueError(f"{run_id!r} is no id of a run.")
    return digits


def _needed(ids: list[str], found: dict[str, Value]) -> dict[str, Value]:
    needed: dict[str, Value] = {}
    wanted = list(ids)
    while wanted:
        run_id = wanted.pop()
        if run_id in found and run_id not in needed:
            needed[run_id] = found[run_id]
            wanted += delegates_of(found[run_id].delegate)
    return needed


def with_laters(ledger: "Ledger", claims: list[Claimed], ids: Iterable[UUID]) -> list[Claimed]:
    """Claims with how often their runs asked to be called again."""
    rows = ledger.session.rows("laters", {"ids": ledger.dialect.listing([run_id.hex for run_id in ids])})
    counted = {ledger.dialect.read_id(run_id): laters for run_id, laters in rows}
    return [claim._replace(laters=counted[claim.id]) if claim.id in counted else claim for claim in claims]


def delegates_of(delegate: str | None) -> list[str]:
    """The ids in a delegate, one or those of a group, as 32 digits each. None in one that was altered to be no such."""
    if delegate is None:
        return []
    try:
        listed = decode(delegate)
        return [UUID(each).hex for each in ([listed] if isinstance(listed, str) else listed)]
    except (ValueError, TypeError, AttributeError):
        # Whoever is given its value finds that it is not what its executor signed.
        return []
