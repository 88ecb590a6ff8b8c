"""
The tokens of executions: a sequence in the database, which must be ahead of all that it has given.

It can be behind: where tables were restored without their sequences, or a logical replica was promoted, which are not
told of them. Then two executions get one token, and the second cannot be settled.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_manta.ledger.book import Ledger


def behind(ledger: "Ledger") -> int:
    """By how many tokens the sequence is behind the highest that was given."""
    if ledger.dialect.name == "sqlite":
        # A claim goes on from the highest token that it finds.
        return 0
    [[missing]] = ledger.session.rows("tokens_behind", {})
    return max(0, missing or 0)


def advance(ledger: "Ledger") -> bool:
    """Have the sequence go on behind the highest token. Whether it was behind."""
    if ledger.dialect.name == "sqlite":
        return False
    with ledger.session.transaction():
        # One at a time: whoever comes second finds that nothing is to be done.
        ledger.session.rows("lock_tokens", {})
        return bool(ledger.session.rows("advance_tokens", {}))
