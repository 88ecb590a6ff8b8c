"""A claim takes as many runs as are asked for, and no more than so many bytes of arguments."""

import random
from string import ascii_letters

import pytest

from django_manta.ledger import Claimed, Ledger, marks
from django_manta.ledger.claiming import CLAIM_BYTES
from django_manta.ledger.marks import Marks
from tests.ledger.given import enqueue, worker_record

MIB = 2**20


def arguments(size: int, *, noise: bool = False) -> str:
    """JSON of so many bytes; ``noise`` is what no database can compress."""
    rest = size - len('[[""],{}]')
    return '[["' + ("".join(random.choices(ascii_letters, k=rest)) if noise else "x" * rest) + '"],{}]'


@pytest.fixture
def worker(ledger: Ledger) -> str:
    ledger.register(worker_record("worker"))
    return "worker"


def weights(claims: list[Claimed]) -> list[int]:
    return [len(claim.arguments) for claim in claims]


@pytest.mark.parametrize("queues", [["default"], ["default", "other"]])
@pytest.mark.parametrize("noise", [False, True])
def test_a_claim_stops_where_its_budget_of_bytes_is_used_up(
    ledger: Ledger, worker: str, queues: list[str], noise: bool
) -> None:
    runs = [enqueue(ledger, arguments=arguments(100_000, noise=noise))[0] for _ in range(7)]
    first = ledger.claim(worker, queues, 100, budget=250_000)
    assert [claim.id for claim in first] == runs[:3]
    assert weights(first) == [100_000] * 3
    second = ledger.claim(worker, queues, 100, budget=300_000)
    assert [claim.id for claim in second] == runs[3:6]
    assert [claim.id for claim in ledger.claim(worker, queues, 100)] == runs[6:]


@pytest.mark.parametrize("queues", [["default"], ["default", "other"]])
def test_one_run_is_claimed_whatever_it_weighs(ledger: Ledger, worker: str, queues: list[str]) -> None:
    heavy, light = enqueue(ledger, arguments=arguments(3 * MIB)) + enqueue(ledger)
    assert [claim.id for claim in ledger.claim(worker, queues, 100, budget=1)] == [heavy]
    assert [claim.id for claim in ledger.claim(worker, queues, 100, budget=1)] == [light]


def test_bytes_count_and_not_characters(ledger: Ledger, worker: str) -> None:
    text = '[["' + "\U0001f600" * 25_000 + '"],{}]'
    enqueue(ledger, 4, arguments=text)
    assert len(ledger.claim(worker, ["default"], 100, budget=150_000)) == 2


def test_queues_take_turns_by_weight_as_well(ledger: Ledger, worker: str) -> None:
    for queue in ("a", "b"):
        enqueue(ledger, 5, queue, arguments=arguments(100_000))
    found = ledger.claim(worker, ["a", "b"], 100, budget=350_000)
    assert sorted(claim.queue for claim in found) == ["a", "a", "b", "b"]
    # The queue that is named first is served first, whatever its name.
    assert [claim.queue for claim in ledger.claim(worker, ["b", "a"], 100, budget=1)] == ["b"]


def test_a_plain_claim_is_bounded_as_well(ledger: Ledger, worker: str) -> None:
    enqueue(ledger, 20, arguments=arguments(MIB))
    assert sum(weights(ledger.claim(worker, ["default"], 100))) == CLAIM_BYTES


@pytest.mark.parametrize("queues", [["default"], ["default", "other"]])
def test_nothing_is_passed_over_behind_marks(ledger: Ledger, worker: str, queues: list[str]) -> None:
    marks, expected = Marks(), []
    for number in range(40):
        size = 60_000 if number % 3 else 200
        expected += enqueue(ledger, queue=queues[number % len(queues)], arguments=arguments(size))
    found: list[Claimed] = []
    for _ in range(60):
        claims = ledger.claim(worker, queues, 5, marks=marks, budget=100_000)
        assert len(claims) <= 5
        assert sum(weights(claims)) < 100_000 + 60_000
        found += claims
    assert sorted(claim.id for claim in found) == sorted(expected)


@pytest.mark.postgres
def test_what_a_queue_has_given_counts_although_all_of_it_is_looked_at_later(
    ledger: Ledger, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "REST_SECONDS", 1_000.0)
    monkeypatch.setattr(marks, "LONGEST_SECONDS", 1_000.0)
    # Each look at all of a queue takes so long that it is put off.
    monkeypatch.setattr(marks, "CHEAP_SECONDS", -1.0)
    mine = Marks()
    for queue in ("a", "b"):
        enqueue(ledger, queue=queue)
        assert len(ledger.claim(worker, [queue], 1, marks=mine)) == 1
    for queue, count in (("a", 2), ("b", 5)):
        enqueue(ledger, count, queue, arguments=arguments(100_000))
    claims = ledger.claim(worker, ["a", "b"], 100, marks=mine, budget=250_000)
    assert [claim.queue for claim in claims] == ["a", "b", "a"]
