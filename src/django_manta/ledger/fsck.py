"""
Checks that the ledger's invariants hold, and repairs what can be repaired by rule.

Reading takes one snapshot and no locks. Repairing goes check by check, each a statement named
after it that looks again before it changes anything: between the look and the repair the row may
have moved on.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any
from uuid import UUID

from django_manta.ledger import graph, tokens
from django_manta.ledger.book import Ledger
from django_manta.ledger.records import Finding
from django_manta.ledger.session import Row
from django_manta.payload import Seal, decode

#: What can be put right by a statement named after the check; the rest needs a person.
REPAIRABLE = (
    "owned-without-token",
    "token-without-owner",
    "end-without-finish",
    "finish-without-end",
    "scheduled-without-date",
    "date-without-schedule",
    "attempts-miscounted",
    "attempt-without-run",
    "gate-without-run",
    "promise-without-run",
)

#: Two executions would get one token: put right by setting the sequence (tokens.py).
BEHIND = "tokens-behind"

#: What a run is, or what it delegated to, is not what was signed.
UNSIGNED = "signature-invalid"

#: Found by reading what the database takes for a text.
IMPOSSIBLE = "impossible-value"

#: Unfinished runs that are read together to be verified: each may have large arguments.
_PAGE = 100

#: The seal of the backend of an alias; None if this process does not have it.
type Seals = Callable[[str], Seal | None]

#: What is put right by counting the edges of the run anew.
RECOUNTED = frozenset(
    {"waiting-without-gate", "untold-without-herald", "waiting-for-nothing", "gate-miscounted", "gate-ignored"}
)


def check(ledger: Ledger, limit: int = 1_000, seals: Seals | None = None) -> list[Finding]:
    """
    Every broken invariant, up to ``limit``. An empty list is a clean ledger.

    With ``seals``, the signatures of unfinished runs are verified. Those of finished ones are not: the key that made
    them may be gone.
    """
    found = [_finding(ledger, *row) for row in ledger.session.rows("fsck", {"limit": limit})]
    found += [_finding(ledger, *row) for row in ledger.session.rows("fsck_values", {"limit": limit})]
    found += islice(_unreadable_workers(ledger), limit)
    if seals is not None:
        found += islice(_unsigned(ledger, seals), limit)
    if missing := tokens.behind(ledger):
        found.append(Finding(BEHIND, None, f"the sequence of tokens is {missing} behind those that were given"))
    return found


def _finding(ledger: Ledger, name: str, run_id: Any, detail: str) -> Finding:
    if run_id is None:
        return Finding(name, None, detail)
    try:
        return Finding(name, ledger.dialect.read_id(run_id), detail)
    except (ValueError, TypeError, AttributeError):
        return Finding(name, None, f"of a run whose id is {run_id!r}: {detail}")


def _unreadable_workers(ledger: Ledger) -> Iterator[Finding]:
    for worker, foremen, troubles in ledger.session.rows("fsck_workers", {}):
        wrong = [
            name
            for name, stored, kind in (("foremen", foremen, list), ("troubles", troubles, dict))
            if not isinstance(_decoded(stored), kind)
        ]
        if wrong:
            yield Finding(IMPOSSIBLE, None, f"worker {worker} cannot have such {' '.join(wrong)}")


def _decoded(stored: str) -> Any:
    try:
        return decode(stored)
    except ValueError:
        return None


def _unsigned(ledger: Ledger, seals: Seals) -> Iterator[Finding]:
    """Unfinished runs that no worker with these keys would execute."""
    after: str | None = None
    while True:
        page = ledger.session.rows("fsck_unfinished", {"after": after, "limit": _PAGE})
        for row in page:
            if (seal := seals(row[1])) and (words := _forged(ledger, seal, row)):
                yield _finding(ledger, UNSIGNED, row[0], words)
        if len(page) < _PAGE:
            return
        after = ledger.dialect.read_id(page[-1][0]).hex


def _forged(ledger: Ledger, seal: Seal, row: Row) -> str:
    run_id, _, task, arguments, overrides, references, signature, delegate, result_signature = row
    name = str(ledger.dialect.read_id(run_id))
    if not seal.run_is_genuine(signature, name, task, arguments, overrides, references):
        return "the signature does not match its task, arguments and overrides: no worker executes it"
    if delegate is not None and not seal.delegate_is_genuine(result_signature, name, delegate):
        return "the signature does not match what it delegated to"
    return ""


def repair(ledger: Ledger, limit: int = 1_000, seals: Seals | None = None) -> list[Finding]:
    """Check, repair what can be, and tell of each finding whether it was."""
    findings = check(ledger, limit, seals)
    mended: dict[str, set[UUID]] = {}
    for name in REPAIRABLE:
        ids = sorted({finding.run_id for finding in findings if finding.check == name and finding.run_id})
        if ids:
            rows = ledger.session.rows(
                "repair_" + name.replace("-", "_"),
                {"ids": ledger.dialect.listing([run_id.hex for run_id in ids])},
            )
            mended[name] = {ledger.dialect.read_id(row[0]) for row in rows}
    recount = sorted({finding.run_id for finding in findings if finding.check in RECOUNTED and finding.run_id})
    if recount:
        # A gate that is lost took its ``when`` with it: the strictest is assumed.
        graph.add(ledger, [graph.NewGate(run_id) for run_id in recount], [])
        graph.arm(ledger, recount)
        # Somebody may hold what one of them waits for: then it is for another time.
        broken = {finding.run_id for finding in check(ledger, limit) if finding.check in RECOUNTED}
        recount = [run_id for run_id in recount if run_id not in broken]
    gone = sorted({finding.run_id for finding in findings if finding.check == "edge-without-run" and finding.run_id})
    if gone:
        graph.forget(ledger, gone)
        ledger.session.run("repair_gate_without_run", {"ids": ledger.listed(gone)})
    if tokens.advance(ledger):
        findings = [replace(each, repaired=each.check == BEHIND or each.repaired) for each in findings]
    for name in (*RECOUNTED, "edge-without-run"):
        mended[name] = {*recount, *gone}
    return [replace(each, repaired=each.repaired or each.run_id in mended.get(each.check, set())) for each in findings]
