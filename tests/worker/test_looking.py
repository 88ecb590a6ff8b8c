"""When a worker looks at the database: after a ring, but not where there is enough to do already."""

import logging
import time
from collections.abc import Iterator

import pytest

from django_manta.ringing import CANCEL, DEBOUNCE_SECONDS, UNKNOWN
from django_manta.worker.ear import Ear
from django_manta.worker.given import WorkerOptions
from django_manta.worker.lookout import PUT_OFF_SECONDS
from django_manta.worker.loop import Worker

pytestmark = pytest.mark.django_db(transaction=True)


class Bell:
    """What was rung is put here by hand."""

    name = "by hand"

    def __init__(self) -> None:
        self.words: list[str] = []

    def rang(self) -> list[str]:
        words, self.words = self.words, []
        return words

    def patience(self) -> float | None:
        return 0.0

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        pass


class Watched(Worker):
    """A worker that goes nowhere: its looks are counted, by a clock of the test's."""

    def __init__(self) -> None:
        super().__init__(WorkerOptions())
        self.bell = Bell()
        self.ear = Ear(self.bell, self.selector)
        self.looks: list[float] = []

    def _look(self, now: float) -> None:
        self.looks.append(round(now - self.began, 3))
        self.lookout.looked(now)

    def live(self, *, until: float, rings: dict[float, str] | None = None, busy: bool = True) -> list[float]:
        """From now on, a step every 5 ms. When it looked."""
        waiting = dict(rings or {})
        for step in range(int(until * 200) + 1):
            now = self.began + step / 200
            for moment in [moment for moment in waiting if moment <= step / 200]:
                self.bell.words.append(waiting.pop(moment))
            self._hear_the_bell(now)
            self.prospects.more = busy
            self._look_if_due(now)
        return self.looks

    began = 1_000.0


@pytest.fixture
def worker() -> Iterator[Watched]:
    worker = Watched()
    worker._look(worker.began)
    worker.looks.clear()
    yield worker
    worker._session.close()


def test_it_looks_once_a_second_whether_it_has_much_to_do_or_not(worker: Watched) -> None:
    assert worker.live(until=2.5) == [1.0, 2.0]


@pytest.mark.parametrize("busy", [True, False])
def test_a_ring_is_a_reason_to_look_at_once_unless_there_is_enough_to_do(worker: Watched, busy: bool) -> None:
    looks = worker.live(until=0.5, rings={0.1: "default"}, busy=busy)
    # And once more when the debounce window is over.
    assert looks == ([0.1, round(0.1 + DEBOUNCE_SECONDS, 3)] if not busy else [round(0.1 + PUT_OFF_SECONDS, 3)])


def test_who_is_rung_for_all_the_time_still_looks(worker: Watched) -> None:
    looks = worker.live(until=1.0, rings={number / 100: "default" for number in range(1, 100)})
    assert 5 <= len(looks) <= 10


@pytest.mark.parametrize("word", [CANCEL, UNKNOWN])
def test_a_cancel_does_not_wait_nor_one_that_was_left_out_because_another_was_rung(worker: Watched, word: str) -> None:
    """On SQLite nobody says which it is."""
    assert worker.live(until=0.5, rings={0.1: word}) == [0.1, round(0.1 + DEBOUNCE_SECONDS, 3)]


def test_what_is_due_does_not_wait(worker: Watched) -> None:
    worker.lookout.falls_due(worker.began + 0.15)
    assert worker.live(until=0.16, rings={0.1: "default"})[0] == 0.15


def test_what_came_while_it_was_stopped_is_heard_first(worker: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """The kernel may say that the time is over, and nothing else."""
    import selectors
    import socket

    here, there = socket.socketpair()
    caplog.set_level(logging.DEBUG)

    class Late(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout:
                # As after a SIGSTOP in the middle of it: something has arrived, and the time is over.
                there.send(b"!")
                time.sleep(timeout)
                return []
            return super().select(timeout)

    with here, there:
        worker.selector.close()
        worker.selector = Late()
        worker.selector.register(here, selectors.EVENT_READ, None)
        assert [key.fileobj for key, _ in worker._arrived(0.01)] == [here]


def test_who_was_stopped_claims_before_it_looks(worker: Watched) -> None:
    worker.began += 60.0
    assert worker.live(until=1.5) == [pytest.approx(PUT_OFF_SECONDS, abs=0.011), pytest.approx(1.1, abs=0.02)]


def test_who_was_stopped_and_has_nothing_to_do_looks_at_once(worker: Watched) -> None:
    worker.began += 60.0
    assert worker.live(until=0.5, busy=False) == [0.0]


def test_a_look_is_put_off_but_once_however_slow_the_database_is(worker: Watched) -> None:
    for seconds in (60.0, 62.0, 64.0):
        worker.prospects.more = True
        worker._look_if_due(worker.began + seconds)
    assert worker.looks == [62.0]
