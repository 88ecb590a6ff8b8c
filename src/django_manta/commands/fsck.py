"""
Check that the ledger's invariants hold; with --repair, put right what can be put right by rule.

Reads one snapshot of all runs and takes no locks: on a large table it takes its time, and nobody
waits for it. Exit code 1 when findings remain.
"""

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from django_manta.commands import choosing
from django_manta.commands.printing import Printer, add_format
from django_manta.ledger import Finding, Ledger, fsck
from django_manta.result import seal_of

HELP = "check the ledger, and repair it"

_BY_A_WORKER = "a worker recovers it: start one"
_BY_ITS_RAY = "a worker of that Ray takes it over: `manta doctor` says which, and what to do if that Ray is gone"
_BY_REPAIR = "`manta fsck --repair` puts it right"
_BY_A_PERSON = "a person must look: `manta show ID`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repair", action="store_true", help="Put right what can be put right by rule.")
    parser.add_argument("--limit", default=1_000, metavar="N", help="Findings to look for (default: 1000).")
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> int:
    printer = Printer(command, options)
    ledger = choosing.backend_of(options).ledger
    limit = choosing.positive(options["limit"], "--limit")
    findings = _repair(ledger, limit) if options["repair"] else fsck.check(ledger, limit, seal_of)
    remain = [finding for finding in findings if not finding.repaired]
    if printer.wants_json:
        printer.data({"clean": not remain, "capped": len(findings) >= limit, "findings": findings})
        return 1 if remain else 0
    if findings:
        printer.table(
            ["check", "run", "detail", "what to do"],
            [[each.check, each.run_id, each.detail, remedy(each)] for each in findings],
        )
    if len(findings) >= limit:
        printer.line(f"There may be more than these {limit}: --limit looks for more.")
    if remain:
        printer.line(f"{len(remain)} of {len(findings)} findings remain.")
    elif findings:
        printer.line(f"The ledger is clean: {len(findings)} repaired.")
    else:
        printer.line("The ledger is clean.")
    return 1 if remain else 0


def _repair(ledger: Ledger, limit: int) -> list[Finding]:
    """Repair as long as there may be more than were looked for."""
    repaired: list[Finding] = []
    while True:
        findings = fsck.repair(ledger, limit, seal_of)
        mended = [finding for finding in findings if finding.repaired]
        repaired += mended
        if len(findings) < limit or not mended:
            return repaired + [finding for finding in findings if not finding.repaired]


def remedy(finding: Finding) -> str:
    if finding.repaired:
        return "repaired"
    if finding.check == "orphaned":
        return _BY_A_WORKER
    if finding.check == "stranded":
        return _BY_ITS_RAY
    repairable = finding.check in fsck.REPAIRABLE or finding.check == fsck.BEHIND
    return _BY_REPAIR if repairable else _BY_A_PERSON
