"""How much a foreman reads, and what it makes of what cannot be read: real connections, no Ray."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from django_manta.execution.runners.ray import intake, messages
from django_manta.execution.runners.ray.chunk import Executor
from django_manta.execution.runners.ray.connection import Connection
from django_manta.execution.runners.ray.foreman import Foreman
from django_manta.execution.runners.ray.held import ANSWER_CHARACTERS, Chunk, Held, Kind, Outbox

KIND = Kind({}, {}, True, [])
LIMIT_SECONDS = 20.0
LARGE = 4 * 1024 * 1024


class Process:
    """What a process on Ray says, without executing anything."""

    def __init__(self, foreman: Foreman, number: int, address: tuple[str, int]) -> None:
        run = f"{number:032x}"
        self.held = Held(messages.key_of(run, number), run, "task", "worker", "[]", None, KIND)
        foreman.held[self.held.key] = self.held
        self.chunk = Chunk(f"chunk {number}", {self.held.key: self.held})
        self.held.chunk = self.chunk
        foreman.chunks[self.chunk.id] = self.chunk
        self.foreman, self.address = foreman, address
        self.said = 0

    async def connect(self) -> None:
        _, self.writer = await asyncio.open_connection(*self.address)
        hello = [self.foreman.secret, self.chunk.id, 1, f"h:{self.held.key}", ""]
        self.say(messages.line("hello", messages.dump(hello)), messages.line("started", self.held.key, ""))

    def say(self, *data: bytes) -> None:
        for each in data:
            self.writer.write(each)

    def end(self, characters: int) -> bytes:
        event = messages.dump(["ended", self.held.key, False, [0.1, True, "x" * characters]])
        return messages.line("ended", self.held.key, "0.1", "", event)

    @property
    def is_heard(self) -> bool:
        return bool(self.held.end)


@asynccontextmanager
async def listening(foreman: Foreman) -> Any:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(foreman), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()


async def becomes(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


async def processes(foreman: Foreman, address: tuple[str, int], count: int) -> list[Process]:
    foreman._speak(messages.say("attach", worker="worker"))
    found = [Process(foreman, number, address) for number in range(1, count + 1)]
    for process in found:
        await process.connect()
    await becomes(lambda: all(process.held.started_at is not None for process in found))
    return found


def settle(foreman: Foreman, *settled: Process) -> None:
    foreman._speak(messages.say("settled", worker="worker", keys=[each.held.key for each in settled]))


def run(test: Callable[[Foreman, tuple[str, int]], Awaitable[None]]) -> None:
    async def in_a_loop() -> None:
        foreman = Foreman("home")
        async with listening(foreman) as address:
            await test(foreman, address)
            # Nobody is looked for when their connections end.
            foreman.chunks.clear()

    asyncio.run(in_a_loop())


def test_outcomes_wait_in_their_processes_until_those_before_them_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "KEPT_BYTES", 2 * LARGE)

    async def test(foreman: Foreman, address: tuple[str, int]) -> None:
        talkers = await processes(foreman, address, 12)
        left = set(talkers)
        for talker in talkers:
            talker.say(talker.end(LARGE))
        while left:
            await becomes(lambda: foreman.intake.is_full or all(talker.is_heard for talker in left))
            assert foreman.intake.kept < 4 * LARGE
            heard = [talker for talker in left if talker.is_heard]
            settle(foreman, *heard)
            left.difference_update(heard)
        assert (foreman.intake.kept, foreman.intake.holds_back) == (0, False)

    run(test)


def test_outcomes_of_a_dead_worker_keep_no_outcome_of_a_living_one_from_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "KEPT_BYTES", LARGE)

    async def test(foreman: Foreman, address: tuple[str, int]) -> None:
        dead, late, living = await processes(foreman, address, 3)
        dead.say(dead.end(LARGE))
        await becomes(lambda: dead.is_heard)
        for each in (dead, late):
            each.held.worker = "dead"
        foreman._count_kept()
        living.say(living.end(10))
        await becomes(lambda: living.is_heard)
        # But what nobody asks for is bounded, too, until another worker takes it over.
        late.say(messages.line("output", '"words"'))
        await becomes(lambda: foreman.intake.holds_back)
        late.say(late.end(10))
        living.say(messages.line("output", '"words"'))
        await becomes(lambda: living.chunk.output == "words")
        assert not late.is_heard
        foreman._speak(messages.say("adopt", worker="worker", keys=[late.held.key]))
        await becomes(lambda: late.is_heard)
        settle(foreman, dead, living, late)
        assert (foreman.intake.kept, foreman.intake.abandoned) == (0, 0)

    run(test)


def test_what_is_large_is_read_one_after_the_other_and_what_is_small_beside_it() -> None:
    async def test(foreman: Foreman, address: tuple[str, int]) -> None:
        first, second, small = await processes(foreman, address, 3)
        for talker in (first, second):
            talker.say(talker.end(LARGE)[:LARGE])
        connections = [talker.chunk.connection for talker in (first, second)]
        await becomes(lambda: foreman.intake.holds_back and max(each.unread for each in connections if each) == LARGE)
        assert min(each.unread for each in connections if each) <= 256 * 1024
        small.say(small.end(10))
        await becomes(lambda: small.is_heard)
        for talker in (first, second):
            talker.say(talker.end(LARGE)[LARGE:])
        await becomes(lambda: first.is_heard and second.is_heard)

    run(test)


def test_one_that_says_half_and_no_more_does_not_keep_others_from_being_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "STALL_SECONDS", 0.2)

    async def test(foreman: Foreman, address: tuple[str, int]) -> None:
        stalled, other = await processes(foreman, address, 2)
        stalled.say(stalled.end(LARGE)[:LARGE])
        connection = stalled.chunk.connection
        assert connection is not None
        await becomes(lambda: connection.unread == LARGE)
        other.say(other.end(LARGE))
        await becomes(lambda: other.is_heard)
        # It has nothing to wait for, and may be killed when its time is over.
        await becomes(lambda: not connection.is_waiting)
        stalled.writer.close()
        await becomes(stalled.chunk.over.is_set)
        assert not foreman.intake.holds_back

    run(test)


def test_what_waits_to_be_read_is_not_killed_for_being_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "KEPT_BYTES", LARGE)

    async def test(foreman: Foreman, address: tuple[str, int]) -> None:
        first, second = await processes(foreman, address, 2)
        first.say(first.end(LARGE))
        await becomes(lambda: first.is_heard)
        second.say(second.end(LARGE))
        connection = second.chunk.connection
        assert connection is not None
        await becomes(lambda: connection.is_waiting)
        foreman._kill(second.held)
        assert second.chunk.killed_for is None
        settle(foreman, first)
        await becomes(lambda: second.is_heard)

    run(test)


def test_a_chunk_that_never_said_hello_waits_once_for_each_connection_that_was_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "KEPT_BYTES", LARGE)
    a_little_more = messages.line("output", '"words"')

    async def test(foreman: Foreman, address: tuple[str, int]) -> None:
        full, first, second = await processes(foreman, address, 3)
        full.say(full.end(LARGE))
        await becomes(lambda: foreman.intake.is_full)
        first.say(a_little_more)
        await becomes(lambda: foreman.intake.holds_back)
        mute = Chunk("mute", {})
        ending = asyncio.create_task(foreman._hear_out(mute, 0.05))
        await asyncio.sleep(0.2)
        assert not ending.done()
        # It is read, and has to wait again, as others have from then on.
        foreman.intake.count(0, 0)
        foreman.intake.count(LARGE, 0)
        for each in (first, second):
            each.say(a_little_more)
        await becomes(lambda: len(foreman.intake.waits) > 1)
        await becomes(ending.done)
        assert foreman.intake.holds_back

    run(test)


@pytest.mark.parametrize(
    "garbage",
    [
        b"Fatal Python error: Segmentation fault\n",
        b"ended\t{key}\n",
        b'ended\t{key}\t0.1\t\t["ended","{key}",false,[0.1,true,"xxFatal Python error: Segmentation fault\n',
        b'ended\t{key}\t0.1\t\t["ended","another:1",false,null]\n',
        b"ended\t{key}\tmany\t\t[]\n",
        b"output\tno JSON\n",
        b"given back\t7\n",
        b"\xff\xfe\n",
        b"\n",
    ],
)
def test_garbage_is_the_fault_of_the_process_that_sent_it_and_of_no_other(
    garbage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    killed: list[Any] = []
    monkeypatch.setattr(ray, "cancel", lambda ref, force: killed.append((ref, force)))

    async def test(foreman: Foreman, address: tuple[str, int]) -> None:
        garbler, other = await processes(foreman, address, 2)
        garbler.chunk.ref = "its Ray task"
        garbler.say(garbage.replace(b"{key}", garbler.held.key.encode()))
        await becomes(lambda: bool(garbler.chunk.fault))
        assert killed == [("its Ray task", True)]
        # Nothing that follows is believed, and it is known when the process is dead.
        garbler.say(garbler.end(10), b"words")
        other.say(other.end(10))
        await becomes(lambda: other.is_heard and "words" in garbler.chunk.output)
        assert not garbler.is_heard
        garbler.writer.close()
        await becomes(garbler.chunk.over.is_set)

    run(test)


@pytest.mark.parametrize(
    ("said", "died"),
    [(b"started\tx\n\xff\n", 1), (b'next\t{second}\t\t{first}\t0.1\t\t["ended"\n', 2)],
)
def test_what_may_have_begun_after_a_message_that_cannot_be_read_is_never_given_back(
    said: bytes, died: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray, "cancel", lambda ref, force: None)

    async def test(foreman: Foreman, address: tuple[str, int]) -> None:
        [process] = await processes(foreman, address, 1)
        chunk = process.chunk
        for number in (2, 3):
            other = Process(foreman, number, address).held
            foreman.chunks.pop(f"chunk {number}")
            other.chunk, chunk.held[other.key] = chunk, other
        first, second, _ = chunk.held
        process.say(said.replace(b"{first}", first.encode()).replace(b"{second}", second.encode()))
        await becomes(lambda: bool(chunk.fault))
        foreman._bury(chunk, list(chunk.held.values()), None)
        kinds = [json.loads(held.end)[0] for held in foreman.held.values()]
        assert kinds == ["died"] * died + ["lost"] * (3 - died)

    run(test)


def test_an_answer_holds_as_many_events_as_fit_into_it_and_one_at_least() -> None:
    async def take() -> list[list[str]]:
        outbox = Outbox()
        for number, characters in enumerate((ANSWER_CHARACTERS * 2, 10, 10, ANSWER_CHARACTERS, 10)):
            held = Held(f"{number}", "", "task", "worker", "[]", None, KIND)
            held.end = "x" * characters
            # Named again by the roll call, it is not told twice.
            outbox.ended(held)
            outbox.ended(held)
        return [await outbox.take(0, 0) for _ in range(4)]

    assert [list(map(len, answer)) for answer in asyncio.run(take())] == [
        [ANSWER_CHARACTERS * 2],
        [10, 10],
        [ANSWER_CHARACTERS],
        [10],
    ]


def test_a_message_that_a_foreman_cannot_read_is_refused_and_the_next_one_heard() -> None:
    foreman = Foreman("home")
    for verb, facts in (("submit", {}), ("settled", {"keys": 7}), ("cancel", {"keys": ["a"]}), ("fence", {})):
        answer = messages.hear(foreman._speak(messages.say(verb, worker="worker", **facts)))
        assert ("refused" in answer) == (verb != "cancel"), verb
    assert "refused" not in messages.hear(foreman._speak(messages.say("attach", worker="worker")))


def test_a_foreman_that_cannot_count_the_cluster_says_so_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    foreman = Foreman("home")
    foreman.cpus = 8.0

    def fail() -> Any:
        raise RuntimeError("no answer")

    monkeypatch.setattr(ray, "nodes", fail)
    asyncio.run(foreman._count())
    assert "RuntimeError: no answer" in json.loads(foreman._answer())["trouble"]
    assert foreman.cpus == 8.0
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 3.0}}])
    asyncio.run(foreman._count())
    assert "trouble" not in json.loads(foreman._answer())
    assert foreman.cpus == 3.0


def test_a_foreman_that_cannot_be_understood_is_hung_up_on() -> None:
    ours, theirs = socket.socketpair()
    hung_up = []

    class Listening:
        _connection = ours

        def _obey(self, kind: str, *body: str) -> None:
            raise TypeError(kind)

        def _hang_up(self) -> None:
            hung_up.append(True)

    theirs.sendall(b'["heard"]\n')
    Executor._read(Listening(), ours)  # type: ignore[arg-type]
    theirs.sendall(b"{\n")
    Executor._read(Listening(), ours)  # type: ignore[arg-type]
    assert hung_up == [True, True]
    ours.close()
    theirs.close()
