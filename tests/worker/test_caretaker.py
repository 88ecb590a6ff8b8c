"""When the caretaker keeps the house: in time, and after those who have something to do."""

import time
from contextlib import closing
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS
from django.tasks import task_backends

from django_manta.ledger import DjangoSession, Ledger, graph, own_session
from django_manta.models import Cluster
from django_manta.states import Role, State
from django_manta.worker.caretaker import LATE_SECONDS, PRUNE_SECONDS, Caretaker
from tests.ledger.given import claimed, enqueue, run_in_state, sql, state_of, worker_record

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


@pytest.mark.postgres  # which locks rows
@pytest.mark.django_db(transaction=True, available_apps=["django_manta"])
def test_what_lost_workers_held_is_recovered_between_two_steps_of_another_duty(
    caretaker: Caretaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many gates cannot be counted."""
    ledger = Ledger()
    seen_at = ledger.register(worker_record("lost"))
    [claim] = claimed(ledger, worker="lost")
    awaited = run_in_state(ledger, State.HELD)
    for waiting in enqueue(ledger, 3, waits=True):
        graph.add(ledger, [graph.NewGate(waiting)], [graph.Edge(waiting, awaited, Role.AFTER)])
    sql(ledger, "UPDATE manta_gate SET made_at = made_at - interval '1 minute'")
    arm_leftovers = graph.arm_leftovers
    seen: list[State] = []

    def one_at_a_time(given: Ledger, **asked: Any) -> graph.Passed:
        if not seen:
            assert ledger.mark_lost("lost", seen_at)
            caretaker.recover_soon()
        seen.append(state_of(ledger, claim.id))
        return arm_leftovers(given, limit=1, **asked)

    monkeypatch.setattr(graph, "arm_leftovers", one_at_a_time)
    caretaker.tell_soon()
    with closing(own_session()) as mine, closing(own_session()) as another, another.transaction():
        sql(Ledger(another), "SELECT FROM manta_run WHERE id = %s FOR UPDATE", [awaited])
        caretaker._do_duties(Ledger(mine))
    assert seen[:2] == [State.RUNNING, State.READY]
    assert len(seen) == 4
