"""Whose lease is lost: what was watched decides, not what dates say."""

from django_manta.ledger.house import Lease
from django_manta.worker.watch import Watch


def leases(*renewals: tuple[str, int], seconds: float = 10.0) -> list[Lease]:
    return [Lease(worker, f"2026-11-16 00:00:{moment:02}", seconds) for worker, moment in renewals]


def watched(watch: Watch, *moments: float, seconds: float = 10.0) -> list[Lease]:
    """What is overdue at the last of ``moments``, at which an unchanged lease was looked at."""
    overdue: list[Lease] = []
    for moment in moments:
        overdue = watch.look(leases(("other", 0), seconds=seconds), moment)
    return overdue


def test_a_lease_is_overdue_when_it_was_seen_unchanged_for_its_full_length() -> None:
    watch = Watch()
    assert not watched(watch, 100, 103, 106, 109.9)
    assert [lease.worker for lease in watched(watch, 110)] == ["other"]


def test_a_renewal_begins_the_watch_anew() -> None:
    watch = Watch()
    assert not watched(watch, 100, 104, 108)
    assert not watch.look(leases(("other", 9)), 109)
    assert not watch.look(leases(("other", 9)), 113)
    assert not watch.look(leases(("other", 9)), 117)
    assert watch.look(leases(("other", 9)), 119)


def test_a_gap_in_the_watch_proves_nothing() -> None:
    # We were stopped for a minute. So may the other have been.
    watch = Watch()
    assert not watched(watch, 100, 160)
    assert watched(watch, 165)


def test_an_outage_of_the_database_begins_the_watch_anew() -> None:
    watch = Watch()
    assert not watched(watch, 100, 105, 109)
    watch.forget()
    assert not watched(watch, 110, 115, 119)
    assert watched(watch, 120)


def test_the_length_of_the_other_s_lease_counts_not_ours() -> None:
    watch = Watch()
    for moment in (100.0, 101.0):
        assert not watch.look([*leases(("quick", 0), seconds=2.0), *leases(("slow", 0), seconds=60.0)], moment)
    overdue = watch.look([*leases(("quick", 0), seconds=2.0), *leases(("slow", 0), seconds=60.0)], 102.0)
    assert [lease.worker for lease in overdue] == ["quick"]


def test_it_knows_when_to_look_again() -> None:
    watch = Watch()
    assert watch.next_time() is None
    watch.look(leases(("other", 0)), 100)
    assert watch.next_time() == 110
    watch.look(leases(("other", 0)), 104)
    assert watch.next_time() == 110
    watch.look(leases(("other", 5)), 105)
    assert watch.next_time() == 115


def test_who_left_is_forgotten() -> None:
    watch = Watch()
    watch.look(leases(("other", 0)), 100)
    assert not watch.look([], 101)
    assert watch.next_time() is None
