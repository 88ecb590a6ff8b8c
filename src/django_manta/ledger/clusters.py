"""
The cluster that a database belongs to: one, by the name and the key that its processes sign with.

The first worker leaves both. A process with another name, or another key, could verify nothing that is there.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django_manta.exceptions import WrongCluster, WrongKey
from django_manta.payload import Seal

if TYPE_CHECKING:
    from django_manta.ledger.book import Ledger


def known(ledger: "Ledger") -> dict[str, str]:
    """The fingerprint of the key of each cluster: of one, unless the tables are older than that rule."""
    return dict(ledger.session.rows("clusters", {}))


def alive(ledger: "Ledger", clusters: Iterable[str]) -> list[str]:
    """The workers of these clusters whose leases are in force and fresh."""
    [[now]] = ledger.session.rows("clock", {})
    now, wanted = ledger.dialect.read_moment(now), set(clusters)
    return [
        worker
        for worker, cluster, seen_at, lease in ledger.session.rows("cluster_workers", {})
        if cluster in wanted and (now - ledger.dialect.read_moment(seen_at)).total_seconds() < lease
    ]


def join(ledger: "Ledger", seal: Seal) -> str:
    """Make sure that the database belongs to our cluster: the fingerprint of its key. Raise WrongCluster."""
    found = known(ledger)
    if list(found) != [seal.cluster]:
        with ledger.session.transaction():
            _lock(ledger)
            found = known(ledger)
            others = found.keys() - {seal.cluster}
            living = alive(ledger, others)
            if others and (seal.cluster not in found or living):
                raise WrongCluster(_refusal(seal.cluster, sorted(others), living))
            found = _take(ledger, seal)
    return found[seal.cluster]


def rename(ledger: "Ledger", seal: Seal) -> list[str]:
    """Give the database to another cluster, of which no worker lives yet: what it was called. Raise WrongCluster."""
    with ledger.session.transaction():
        _lock(ledger)
        found = known(ledger)
        living = alive(ledger, found.keys() - {seal.cluster})
        if living:
            raise WrongCluster(f"Workers of the former name live: {', '.join(living[:3])}. Stop them first.")
        for name, fingerprint in found.items():
            if fingerprint not in Seal(name).accepted_fingerprints:
                raise WrongKey(f"Cluster {name!r} signs with key {fingerprint}, which this process does not have.")
        _take(ledger, seal)
    return sorted(found.keys() - {seal.cluster})


def _take(ledger: "Ledger", seal: Seal) -> dict[str, str]:
    ledger.session.run("forget_clusters", {"cluster": seal.cluster})
    ledger.session.run("remember_key", {"cluster": seal.cluster, "fingerprint": seal.fingerprint})
    return known(ledger)


def _lock(ledger: "Ledger") -> None:
    """Two first workers must not both leave their names. SQLite has one writer at a time anyway."""
    if ledger.dialect.name == "postgres":
        ledger.session.run("lock_clusters", {})


def _refusal(cluster: str, others: list[str], living: list[str]) -> str:
    names = ", ".join(map(repr, others))
    if living:
        also = f" Workers of it live: {', '.join(living[:3])}."
    else:
        also = f" To rename it: manage.py manta cluster --rename {cluster}"
    return (
        f"This database belongs to the cluster {names}, and CLUSTER is {cluster!r}. One database holds one cluster: "
        f"set CLUSTER as it was, or use another database.{also}"
    )
