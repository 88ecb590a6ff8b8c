"""
Checks that the ledger's invariants hold, and repairs what can be repaired by rule.

Reading takes one snapshot and no locks. Repairing goes check by check, each a statement named
after it that looks again before it changes anything: between the look and the repair the row may
have moved on.
"""

from dataclasses import replace
from typing import Any
from uuid import UUID

from django_manta.ledger import graph, tokens
from django_manta.ledger.book import Ledger
from django_manta.ledger.records import Finding

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
)

#: Two executions would get one token: put right by setting the sequence (tokens.py).
BEHIND = "tokens-behind"

#: What is put right by counting the edges of the run anew.
RECOUNTED = frozenset(
    {"waiting-without-gate", "untold-without-herald", "waiting-for-nothing", "gate-miscounted", "gate-ignored"}
)


def check(ledger: Ledger, limit: int = 1_000) -> list[Finding]:
    """Every broken invariant, up to ``limit``. An empty list is a clean ledger."""
    rows = ledger.session.rows("fsck", {"limit": limit})
    found = [_finding(ledger, *row) for row in rows]
    if missing := tokens.behind(ledger):
        found.append(Finding(BEHIND, None, f"the sequence of tokens is {missing} behind those that were given"))
    return found


def _finding(ledger: Ledger, name: str, run_id: Any, detail: str) -> Finding:
    try:
        return Finding(name, ledger.dialect.read_id(run_id), detail)
    except (ValueError, TypeError, AttributeError):
        return Finding(name, None, f"of a run whose id is {run_id!r}: {detail}")


def repair(ledger: Ledger, limit: int = 1_000) -> list[Finding]:
    """Check, repair what can be, and tell of each finding whether it was."""
    findings = check(ledger, limit)
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
    if tokens.advance(ledger):
        findings = [replace(each, repaired=each.check == BEHIND or each.repaired) for each in findings]
    for name in (*RECOUNTED, "edge-without-run"):
        mended[name] = {*recount, *gone}
    return [replace(each, repaired=each.repaired or each.run_id in mended.get(each.check, set())) for each in findings]
