"""When the caretaker keeps the house: in time, and after those who have something to do."""

import time
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS
from django.tasks import task_backends

from django_manta.ledger import DjangoSession, Ledger
from django_manta.models import Cluster
from django_manta.worker.caretaker import LATE_SECONDS, PRUNE_SECONDS, Caretaker

pytestmark = pytest.mark.django_db


@pytest.fixture
def caretaker(db: None) -> Caretaker:
    backend: Any = task_backends["default"]
    Cluster.objects.create(name=backend.config.cluster, key_fingerprint="")
    return Caretaker(backend, "worker-1", "processes", on_death=lambda: None)


def keep_house(caretaker: Caretaker) -> bool:
    """Do what is due. Whether retention was: who looks after it leads."""
    caretaker._do_duties(Ledger(DjangoSession(DEFAULT_DB_ALIAS)))
    return Cluster.objects.filter(leader="worker-1").exists()


def test_retention_is_looked_after_when_its_time_has_come(caretaker: Caretaker) -> None:
    assert not keep_house(caretaker)
    caretaker._prune_at = time.monotonic()
    assert keep_house(caretaker)
    assert caretaker._prune_at > time.monotonic() + PRUNE_SECONDS / 2


def test_who_was_stopped_lets_others_go_first_but_once(caretaker: Caretaker) -> None:
    caretaker._prune_at = time.monotonic() - 2 * LATE_SECONDS
    assert not keep_house(caretaker)
    assert time.monotonic() < caretaker._prune_at <= time.monotonic() + LATE_SECONDS
    caretaker._prune_at = time.monotonic() - 2 * LATE_SECONDS
    assert keep_house(caretaker)
    caretaker._prune_at = time.monotonic() - 2 * LATE_SECONDS
    Cluster.objects.update(leader="")
    assert not keep_house(caretaker), "the next time it was stopped is another one"
