"""
Many at a time: writers add edges to runs that workers are finishing, each on a connection of its own.

``python -m chaos --only edges`` does the same with processes, and 20,000 edges.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from django.db import connection

from django_manta.ledger import Claimed, Ledger, Settlement, fsck, graph, own_session
from django_manta.models import Dependency, Gate, Herald, Run
from django_manta.states import BAD_ENDS, ENDS, Outcome, State, When
from tests.ledger.given import settlement
from tests.workflow.tasks import same

pytestmark = pytest.mark.django_db(transaction=True)

#: What a writer waits for is chosen among so many of the youngest runs: most of them are being finished.
YOUNGEST = 80

EXECUTED = frozenset({State.SUCCESSFUL, State.FAILED})


@pytest.fixture(autouse=True)
def ending() -> str:
    """Everything here is committed."""
    return "committed"


@dataclass(slots=True)
class Traffic:
    """Writers and workers on one ledger."""

    edges: int
    writers: int
    workers: int
    young: deque[UUID] = field(default_factory=lambda: deque(maxlen=YOUNGEST))
    errors: list[BaseException] = field(default_factory=list)
    written: threading.Event = field(default_factory=threading.Event)

    def flow(self) -> None:
        """Until everything is written and nothing is ready any more."""
        self.young += [UUID(result.id) for result in same.map(range(YOUNGEST))]
        writers = self._threads(self._write, self.writers)
        workers = self._threads(self._work, self.workers)
        for thread in writers:
            thread.join()
        self.written.set()
        for thread in workers:
            thread.join()

    def _threads(self, act: Callable[[int], None], count: int) -> list[threading.Thread]:
        def guarded(number: int) -> None:
            try:
                act(number)
            except BaseException as error:
                self.errors.append(error)
            finally:
                connection.close()

        threads = [threading.Thread(target=guarded, args=[number], daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        return threads

    def _write(self, number: int) -> None:
        """Runs that wait for up to ten others, among them some that wait themselves, and some that wait for none."""
        dice = random.Random(number)
        left = self.edges // self.writers
        while left > 0:
            self.young.append(UUID(same.enqueue().id))
            after = set(dice.choices(list(self.young), k=min(left, 10)))
            several = 1 + dice.randrange(4)
            made = same.using(after=list(after), when=dice.choice(list(When))).map(range(several))
            self.young += [UUID(result.id) for result in made]
            left -= several * len(after)

    def _work(self, number: int) -> None:
        dice = random.Random(-1 - number)
        with closing(own_session()) as session:
            ledger = Ledger(session)
            while True:
                last = self.written.is_set()
                claims = ledger.claim(f"worker-{number}", ["default"], 5)
                if not claims and not last:
                    time.sleep(0.002)
                elif not claims and not _spread_the_word(ledger):
                    return
                waiting = [self._outcome(claim, dice) for claim in claims]
                while waiting:
                    busy = ledger.settle(waiting, f"worker-{number}").busy
                    waiting = [each for each in waiting if each.token in busy]

    def _outcome(self, claim: Claimed, dice: random.Random) -> Settlement:
        """Mostly success; now and then a failure, or the wish to be called again after others."""
        fate = dice.random()
        if fate < 0.03:
            return settlement(claim, Outcome.FAILED, State.FAILED)
        if fate < 0.1 and claim.attempts == 1:
            after = tuple(set(dice.choices(list(self.young), k=3)))
            return settlement(claim, Outcome.DEFERRED, State.WAITING, after=after)
        return settlement(claim)


def _spread_the_word(ledger: Ledger) -> int:
    """What somebody who was in another's way left lying, as a worker's caretaker does it."""
    passed = graph.tell_leftovers(ledger)
    passed |= graph.arm_leftovers(ledger)
    return passed.seen


def _may_be_executed(mode: str, ends: list[State]) -> bool:
    """Whether a run with this ``when`` may be executed, given how all that it waits for ended."""
    if mode == When.ALL_SUCCESSFUL:
        return not BAD_ENDS & set(ends)
    if mode == When.ANY_SUCCESSFUL:
        return State.SUCCESSFUL in ends
    return True


@pytest.mark.parametrize(
    ("edges", "writers", "workers"),
    [
        pytest.param(6_000, 8, 4, marks=pytest.mark.postgres, id="postgres"),
        pytest.param(4_000, 8, 4, marks=pytest.mark.sqlite, id="sqlite"),
    ],
)
def test_edges_added_while_preconditions_end_lose_no_wake_up(
    edges: int, writers: int, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    traffic = Traffic(edges, writers, workers)
    with caplog.at_level(logging.WARNING):
        traffic.flow()
    assert traffic.errors == []
    # Not even one that Django or we caught and logged, instead of raising it to who enqueued or settled.
    assert [record.getMessage() for record in caplog.records] == []
    assert Dependency.objects.count() >= edges
    states = {run_id: State(state) for run_id, state in Run.objects.values_list("id", "state")}
    assert set(states.values()) <= ENDS
    assert not Herald.objects.exists()
    ends: dict[UUID, list[State]] = {}
    for run_id, on_id in Dependency.objects.values_list("run_id", "on_id"):
        ends.setdefault(run_id, []).append(states[on_id])
    # Who asked, with Later, to wait for somebody that waits for it was told so and has ended.
    gates = Gate.objects.exclude(run__reason__startswith="It asked to wait for")
    wrong = [
        run_id
        for run_id, mode in gates.values_list("run_id", "mode")
        if (states[run_id] in EXECUTED) != _may_be_executed(mode, ends.get(run_id, []))
    ]
    assert wrong == []
    assert fsck.check(Ledger()) == []
