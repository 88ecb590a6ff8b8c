"""What children write for their worker, in memory that both hold."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from django_manta.execution.runners.processes import (
    NAP_RUNS,
    NAP_SECONDS,
    START_SECONDS,
    STIR_SECONDS,
    Child,
    Pool,
    Recycle,
)
from django_manta.execution.runners.slate import (
    ASLEEP,
    AWAKE,
    CAPACITY,
    MOST_DOUBTS,
    NAPPING,
    PIECE_BYTES,
    Slate,
    new_slate,
)
from django_manta.execution.runners.wire import Kind
from django_manta.states import Outcome

type Ends = tuple[Slate, Slate]


@pytest.fixture
def place() -> Iterator[int]:
    """The descriptor of a slate."""
    descriptor = new_slate()
    yield descriptor
    os.close(descriptor)


@contextmanager
def another_process(place: int, code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child that has a slate, and does with it what ``code`` says."""
    begin = "import os, signal, sys, time\n"
    begin += "from django_manta.execution.runners.slate import Slate\n"
    begin += "from django_manta.execution.runners.wire import Kind\n"
    begin += "child = Slate(int(sys.argv[1]))\n"
    command = [sys.executable, "-c", begin + code, str(place)]
    with subprocess.Popen(command, pass_fds=[place]) as process:
        yield process


@pytest.fixture
def ends(place: int) -> Iterator[Ends]:
    """The child's and the worker's."""
    child, worker = Slate(os.dup(place)), Slate(os.dup(place))
    yield child, worker
    child.close()
    worker.close()


def full() -> None:
    pytest.fail("There should have been room.")


def test_what_is_written_is_read_in_order_however_often_it_goes_round(ends: Ends) -> None:
    child, worker = ends
    written = read = 0
    for size in range(3 * CAPACITY // 1_000):
        for _ in range(5):
            child.write(Kind.ENDED, (written, "x" * (size % 997)), full)
            written += 1
        assert worker.has_news
        for kind, (number, _text) in worker.read():
            assert (kind, number) == (Kind.ENDED, read)
            read += 1
        assert not worker.has_news
    assert read == written


def test_what_is_larger_than_the_slate_passes_in_pieces(ends: Ends) -> None:
    child, worker = ends
    large = os.urandom(3 * CAPACITY + 17)
    heard: list[tuple[Kind, Any]] = []
    child.write(Kind.STARTED, 1, full)
    child.write(Kind.ENDED, large, lambda: heard.extend(worker.read()))
    child.write(Kind.ENDED, large[:PIECE_BYTES], lambda: heard.extend(worker.read()))
    heard.extend(worker.read())
    assert heard == [(Kind.STARTED, 1), (Kind.ENDED, large), (Kind.ENDED, large[:PIECE_BYTES])]


def test_who_finds_no_room_waits_and_writes_over_nothing(ends: Ends) -> None:
    child, worker = ends
    waits = 0

    def wait() -> None:
        nonlocal waits
        waits += 1
        if waits % 3 == 0:
            heard.extend(worker.read())

    heard: list[tuple[Kind, Any]] = []
    sent = [(number, "x" * 1_000) for number in range(2 * CAPACITY // 1_000)]
    for body in sent:
        child.write(Kind.ENDED, body, wait)
    heard.extend(worker.read())
    assert waits >= 3
    assert [body for _, body in heard] == sent


def test_what_a_killed_process_has_written_is_there(ends: Ends, place: int) -> None:
    _, worker = ends
    code = "for number in range(100): child.write(Kind.STARTED, number, None)\nos.kill(os.getpid(), signal.SIGKILL)"
    with another_process(place, code) as process:
        assert process.wait(30) == -signal.SIGKILL
    assert [number for _, number in worker.read()] == list(range(100))


def test_a_frame_that_is_not_all_there_is_read_later(ends: Ends) -> None:
    child, worker = ends
    child.write(Kind.STARTED, 1, full)
    child.write(Kind.STARTED, 2, full)
    # As a processor might let another one see it: the last byte of the second frame is not there yet.
    last = worker._written = child._written
    kept, worker._bytes[last - 1] = worker._bytes[last - 1], 255
    assert list(worker.read()) == [(Kind.STARTED, 1)]
    assert list(worker.read()) == []
    worker._bytes[last - 1] = kept
    assert list(worker.read()) == [(Kind.STARTED, 2)]


def test_nothing_is_taken_for_a_frame_before_it_is_there(ends: Ends) -> None:
    child, worker = ends
    child.write(Kind.STARTED, 12345, full)
    # Its number is seen, and nothing of it: a slate is full of zeros at first.
    kept = bytes(worker._bytes[: child._written])
    worker._bytes[: child._written] = bytes(len(kept))
    assert list(worker.read()) == []
    worker._bytes[: len(kept)] = kept
    assert list(worker.read()) == [(Kind.STARTED, 12345)]


def test_a_frame_of_the_last_round_is_not_taken_for_one_of_this(ends: Ends) -> None:
    child, worker = ends
    size = CAPACITY // 8
    overhead = _written_by(child, b"")
    body = bytes(size - overhead)
    list(worker.read())
    child.write(Kind.ENDED, bytes(size - 2 * overhead), full)
    for _ in range(7):
        child.write(Kind.ENDED, body, full)
    assert len(list(worker.read())) == 8
    assert child._written == CAPACITY
    old = bytes(worker._bytes[:overhead])
    child.write(Kind.ENDED, b"", full)
    new = bytes(worker._bytes[:overhead])
    worker._bytes[:overhead] = old
    assert list(worker.read()) == []
    worker._bytes[:overhead] = new
    assert list(worker.read()) == [(Kind.ENDED, b"")]


def _written_by(child: Slate, body: bytes) -> int:
    before = child._written
    child.write(Kind.ENDED, body, full)
    return child._written - before


def test_who_reads_while_another_process_writes_hears_everything(ends: Ends, place: int) -> None:
    _, worker = ends
    count = 20_000
    code = f"""
for number in range({count}):
    child.write(Kind.ENDED, (number, "x" * (number % 701)), lambda: time.sleep(0.0001))
"""
    heard: list[int] = []
    deadline = time.monotonic() + 60
    with another_process(place, code) as process:
        while len(heard) < count and time.monotonic() < deadline:
            heard += [body[0] for _, body in worker.read()]
        assert process.wait(30) == 0
    assert heard == list(range(count))


def test_a_frame_that_never_makes_sense_is_not_looked_at_for_ever(ends: Ends) -> None:
    child, worker = ends
    child.write(Kind.STARTED, 1, full)
    worker._bytes[child._written - 1] ^= 255
    for _ in range(MOST_DOUBTS):
        assert list(worker.read()) == []
    with pytest.raises(ValueError, match="is not what was written there"):
        list(worker.read())


def test_who_has_given_its_slate_up_writes_nothing(ends: Ends) -> None:
    child, worker = ends
    child.close()
    with pytest.raises(ValueError, match="released memoryview"):
        child.write(Kind.STARTED, 1, full)
    assert not worker.has_news


@pytest.mark.parametrize(
    ("level", "start", "next_one", "last"),
    [(AWAKE, False, False, False), (NAPPING, False, False, True), (ASLEEP, False, True, True)],
)
def test_a_worker_is_woken_as_it_wants_and_once(
    ends: Ends, level: int, start: bool, next_one: bool, last: bool
) -> None:
    child, worker = ends
    for wakes_from, wanted in ((ASLEEP + 1, start), (ASLEEP, next_one), (NAPPING, last)):
        worker.level = level
        assert child.must_wake(wakes_from) is wanted
        assert child.must_wake(wakes_from) is False or not wanted


# -- how long a worker may rest ----------------------------------------------------------------------


class Flight:
    started_at: float | None = None


@pytest.fixture
def pool() -> Iterator[tuple[Pool, Child, Slate]]:
    import selectors

    def unheard(*args: Any) -> None:
        raise AssertionError(args)

    made = Pool(
        selectors.DefaultSelector(),
        1,
        1,
        Recycle(),
        on_started=unheard,
        on_ended=unheard,
        on_returned=unheard,
        on_died=unheard,
    )
    ours, theirs = socket.socketpair()
    descriptor = new_slate()
    far, near = Slate(os.dup(descriptor)), Slate(descriptor)
    child = Child(1, ours, os.open(os.devnull, os.O_RDWR), near, 0, ready=True)
    made.children[1] = child
    yield made, child, far
    ours.close()
    theirs.close()
    os.close(child.output)
    near.close()
    far.close()
    made.selector.close()


def test_who_has_nothing_to_do_sleeps_as_long_as_it_likes(pool: tuple[Pool, Child, Slate]) -> None:
    made, child, _ = pool
    assert made.rest(0.0) == 0.0
    # Until the child has certainly seen that it sleeps, it looks once more.
    assert made.rest(30.0) == START_SECONDS
    assert made.rest(30.0) == 30.0
    assert child.slate is not None
    assert child.slate.level == ASLEEP


def test_who_has_handed_something_out_looks_soon_whether_it_has_begun(pool: tuple[Pool, Child, Slate]) -> None:
    made, child, _ = pool
    flight: Any = Flight()
    child.held[1] = flight
    child.stirred_at = time.monotonic()
    made.rest(30.0)
    assert made.rest(30.0) == START_SECONDS
    flight.started_at = 1.0
    assert made.rest(30.0) == 30.0


def test_who_has_handed_many_out_naps(pool: tuple[Pool, Child, Slate]) -> None:
    made, child, far = pool
    child.held |= {number: Flight() for number in range(NAP_RUNS)}  # type: ignore[misc]
    child.stirred_at = time.monotonic()
    assert made.rest(30.0) == NAP_SECONDS
    assert made.rest(NAP_SECONDS / 2) == NAP_SECONDS / 2
    assert not far.must_wake(ASLEEP)
    assert far.must_wake(NAPPING)


def test_who_has_heard_nothing_for_long_naps_no_more(pool: tuple[Pool, Child, Slate]) -> None:
    made, child, far = pool
    child.held |= {number: Flight() for number in range(NAP_RUNS)}  # type: ignore[misc]
    child.stirred_at = time.monotonic() - STIR_SECONDS
    made.rest(30.0)
    assert made.rest(30.0) == 30.0
    assert far.must_wake(ASLEEP)


def test_a_child_that_makes_no_sense_is_heard_no_more(
    pool: tuple[Pool, Child, Slate], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, child, far = pool
    killed: list[Child] = []
    monkeypatch.setattr(made, "_kill", killed.append)
    far.write(Kind.GIVEN_BACK, None, full)
    made.hear()
    far.write(Kind.GIVEN_BACK, None, full)
    made.hear()
    assert killed == [child]
    assert made.rest(30.0) > 0.0


def test_who_has_no_room_for_more_ends_hears_none_and_kills_nobody_for_that(
    pool: tuple[Pool, Child, Slate], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, child, far = pool
    killed: list[Child] = []
    monkeypatch.setattr(made, "_kill", killed.append)
    flight: Any = SimpleNamespace(
        kill_at=1.0, doomed=(Outcome.TIMED_OUT, ""), returned=False, excused=False, started_at=1.0, claim=None
    )
    child.held[1] = flight
    is_full = True
    monkeypatch.setattr(made, "_is_full", lambda: is_full)
    far.write(Kind.GIVEN_BACK, [], full)
    # It is not woken by what it does not hear.
    assert made.rest(30.0) == 30.0
    assert not far.must_wake(NAPPING)
    made.hear()
    made.tend(100.0)
    assert far.has_news
    assert killed == []
    is_full = False
    returned: list[Any] = []
    monkeypatch.setattr(made, "_on_returned", returned.append)
    assert made.rest(30.0) == 0.0
    made.hear()
    assert returned == [[]]
    flight.claim = SimpleNamespace(token=7)
    far.tell_returned(7)
    made.tend(100.0)
    assert killed == []
    flight.kill_at, flight.doomed = 1.0, (Outcome.CANCELLED, "")
    made.tend(100.0)
    assert killed == [child]


def test_who_has_something_to_hear_does_not_rest(pool: tuple[Pool, Child, Slate]) -> None:
    made, _, far = pool
    far.write(Kind.HELLO, 1, full)
    assert made.rest(30.0) == 0.0
    made.hear()
    assert made.rest(30.0) > 0.0
