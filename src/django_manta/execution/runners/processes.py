"""
The runner ``processes``: children of a fork server, and the worker as their sentinel.

The pool starts children, hands them orders, hears what they tell, kills those that do not obey, and
replaces those that died. It knows which run a child was at when it died, because a child says so
before it begins. What a dead or retired child had not started goes back to the worker.
"""

import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_manta.execution.output import tail_of
from django_manta.execution.runners.flights import GRACE_SECONDS, STORE_SECONDS, Died, Flight
from django_manta.execution.runners.forkserver import MESSAGE_BYTES, python
from django_manta.execution.runners.slate import ASLEEP, AWAKE, NAPPING, Slate, new_file, new_slate
from django_manta.execution.runners.wire import End, Inbox, Kind, frame, orders, read_end
from django_manta.ledger import Written
from django_manta.states import Outcome

logger = logging.getLogger("django_manta")

READ_BYTES = 256 * 1024

#: While a child holds so many, which are short then, its worker does not wait for each of its ends, but looks after so
#: long at what there is.
NAP_RUNS = 16
NAP_SECONDS = 0.001

#: But not if nothing was heard of it for so long: then they are not short, or it is stopped.
STIR_SECONDS = 0.1

#: Nobody is woken because something has started: it is heard of so long after it was handed out, at the latest.
START_SECONDS = 0.01

#: A fork server that cannot load the project is tried again after so long.
RESTART_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class Child:
    """A child process, seen from the worker."""

    pid: int
    channel: socket.socket
    output: int
    #: Where it tells what it does. One that does many things at a time tells it by the channel.
    slate: Slate | None
    slots: int
    #: Its place among the children for plain functions, which its successor inherits.
    lane: int = 0
    #: The fork server it comes from, by number: another one cannot tell how it ended.
    server: int = 0
    inbox: Inbox = field(default_factory=Inbox)
    outbox: bytearray = field(default_factory=bytearray)
    #: What it holds, in the order it was given.
    held: dict[int, Flight] = field(default_factory=dict)
    ready: bool = False
    executed: int = 0
    peak_memory: int | None = None
    retiring: bool = False
    killed: bool = False
    closed: bool = False
    code: int | None = None
    asked_back: bool = False
    #: When it was last given something, or heard of.
    stirred_at: float = 0.0
    #: What it tells makes no sense any more.
    senseless: bool = False

    @property
    def head(self) -> Flight | None:
        """What it executes now, or will next: it keeps the order in which it was given runs."""
        for flight in self.held.values():
            return flight
        return None

    @property
    def under_way(self) -> Iterable[Flight]:
        """What may be executing: of many at a time each, else only the head."""
        if self.slots:
            return self.held.values()
        head = self.head
        return () if head is None else (head,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recycle:
    """When a child is replaced: after so many runs, or when it has needed so much memory."""

    runs: int | None = None
    memory: int | None = None
    #: Beyond this an allocation inside the child fails.
    memory_limit: int | None = None


class _Asked(NamedTuple):
    """What the worker has of a child that is being forked."""

    channel: socket.socket
    output: int
    slate: Slate | None
    slots: int
    lane: int

    def close(self) -> None:
        self.channel.close()
        os.close(self.output)
        if self.slate is not None:
            self.slate.close()


class Pool:
    """The children of one worker."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        processes: int,
        async_slots: int,
        recycle: Recycle,
        *,
        on_started: Callable[[Flight], None],
        on_ended: Callable[[Flight, Written | None, bool], None],
        on_returned: Callable[[list[Flight]], None],
        on_died: Callable[[Died], None],
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self.selector = selector
        self.processes = processes
        self.async_slots = async_slots
        self.recycle = recycle
        self._recycles = recycle.runs is not None or recycle.memory is not None
        self.children: dict[int, Child] = {}
        self.stopping = False
        self._on_started = on_started
        self._on_ended = on_ended
        self._on_returned = on_returned
        self._on_died = on_died
        self._is_full = is_full
        self._control: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._server_ready = False
        self._asked: dict[int, _Asked] = {}
        self._requests = 0
        self._servers = 0
        self._restart_at = 0.0
        self._ask_at = 0.0
        self._wants_async = False

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the fork server; the children follow when it has loaded Django."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._servers += 1
        with theirs:
            self._server = subprocess.Popen(
                python("django_manta.execution.runners.forkserver", theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        ours.setblocking(False)
        self._control = ours
        self.selector.register(ours, selectors.EVENT_READ, self._hear_server)

    def stop(self) -> None:
        """Ask every child to leave when it is done; start no more."""
        self.stopping = True
        for child in self.children.values():
            self._retire(child)

    def kill(self) -> None:
        """End every child now."""
        self.stopping = True
        for child in list(self.children.values()):
            self._kill(child)

    def drop(self) -> None:
        """End every child now and forget what it held: nothing of it is ours any more. Others follow."""
        for child in list(self.children.values()):
            child.held.clear()
            self._kill(child)

    def close(self) -> None:
        """End the fork server, and with it whatever is left."""
        self.stopping = True
        for child in list(self.children.values()):
            self._kill(child)
            self._forget(child)
        self._close_server()

    def _close_server(self) -> None:
        if self._control is not None:
            self.selector.unregister(self._control)
            self._control.close()
            self._control = None
        self._server_ready = False
        for asked in self._asked.values():
            asked.close()
        self._asked.clear()
        if self._server is not None:
            try:
                self._server.wait(1)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None

    # -- what the worker asks --------------------------------------------------------------------

    @property
    def has_async_child(self) -> bool:
        """Whether there is one that takes orders of coroutines."""
        return any(child.slots and self._takes_orders(child) for child in self.children.values())

    def sync_children(self) -> list[Child]:
        """The children that take orders of plain functions."""
        return [child for child in self.children.values() if self._takes_orders(child) and not child.slots]

    def async_child(self) -> Child | None:
        """The child that takes orders of coroutines, started when it is first asked for."""
        self._wants_async = True
        for child in self.children.values():
            if child.slots and self._takes_orders(child):
                return child
        return None

    def _takes_orders(self, child: Child) -> bool:
        return child.ready and not child.retiring and not child.killed and not child.closed

    def left(self, child: Child) -> int | None:
        """How many more it may be given before it is replaced; None without a limit."""
        runs = self.recycle.runs
        return None if runs is None or child.slots else max(0, runs - child.executed - len(child.held))

    def give(self, child: Child, flights: list[Flight]) -> None:
        child.stirred_at = time.monotonic()
        for flight in flights:
            child.held[flight.claim.token] = flight
        self._send(child, orders([flight.claim for flight in flights]))

    def take_back(self, child: Child) -> None:
        """Ask for what it has not started; the answer comes by ``on_returned``."""
        if not child.asked_back:
            child.asked_back = True
            self._send(child, frame(Kind.TAKE_BACK))

    def interrupt(self, child: Child, flight: Flight, outcome: Outcome, reason: str) -> None:
        """Raise inside an execution; kill its process if that does not end it in time."""
        # Its time limit dooms it from the start, and must not keep anybody from ending it sooner.
        if flight.doomed is None or flight.doomed[0] is Outcome.TIMED_OUT:
            flight.doomed = outcome, reason
            flight.kill_at = time.monotonic() + GRACE_SECONDS
            self._send(child, frame(Kind.INTERRUPT, (flight.claim.token, outcome.value, reason)))

    @property
    def _is_deaf(self) -> bool:
        """
        The worker takes no more ends: a child that has filled its slate waits. The child for coroutines, which has no
        slate, is heard all the same; it has no more ends than slots.
        """
        return not self.stopping and self._is_full()

    def hear(self) -> None:
        """What the children have written since."""
        if self._is_deaf:
            return
        for child in list(self.children.values()):
            self._read_slate(child)

    def rest(self, patience: float) -> float:
        """The worker is going to wait for so long. How long it may: nobody wakes it for everything."""
        if patience <= 0:
            return patience
        if self._is_deaf:
            for child in self.children.values():
                if child.slate is not None:
                    # It need not wake who does not listen.
                    child.slate.level = AWAKE
            return patience
        now = time.monotonic()
        for child in self.children.values():
            slate, head = child.slate, child.head
            if slate is None or child.closed or child.senseless:
                continue
            stirs = now - child.stirred_at < STIR_SECONDS
            level = NAPPING if stirs and len(child.held) >= NAP_RUNS else ASLEEP
            if level is NAPPING:
                patience = min(patience, NAP_SECONDS)
            if slate.level != level:
                slate.level = level
                # As long as that it may take until it is seen by everybody, on any processor.
                patience = min(patience, START_SECONDS)
            elif stirs and head is not None and head.started_at is None:
                patience = min(patience, START_SECONDS)
        # Not sooner: who wrote something before it saw that we sleep wakes nobody.
        return 0.0 if any(map(_has_news, self.children.values())) else patience

    def tend(self, now: float) -> float | None:
        """Start what is missing, kill what is overdue. When to come again."""
        next_time = None
        # A run that should have ended may have, and its end is not read yet. Its child has an alarm of its own.
        may_kill = not self._is_deaf
        for child in list(self.children.values()):
            for flight in child.under_way:
                if flight.kill_at is None or not may_kill:
                    continue
                if now >= flight.kill_at and _is_excused(child, flight):
                    _excuse(flight, now)
                if now < flight.kill_at:
                    next_time = flight.kill_at if next_time is None else min(next_time, flight.kill_at)
                elif not child.killed:
                    self._kill(child)
        self._keep_complete(now)
        if self._control is None and not self.stopping:
            next_time = self._restart_at if next_time is None else min(next_time, self._restart_at)
        return next_time

    def _keep_complete(self, now: float) -> None:
        if self.stopping:
            return
        if self._control is None:
            if now >= self._restart_at:
                self._restart_at = now + RESTART_SECONDS
                self.start()
            return
        if not self._server_ready or now < self._ask_at:
            return
        present = [
            (child.slots, child.lane) for child in self.children.values() if not child.retiring and not child.killed
        ]
        present += [(asked.slots, asked.lane) for asked in self._asked.values()]
        taken = {lane for slots, lane in present if not slots}
        for lane in range(self.processes):
            if lane not in taken:
                self._ask_for_child(0, lane)
        if self._wants_async and not any(slots for slots, _ in present):
            self._ask_for_child(self.async_slots, 0)

    # -- the fork server -------------------------------------------------------------------------

    def _ask_for_child(self, slots: int, lane: int) -> None:
        """What it needs may not be to be had: then it is asked for again in a while."""
        assert self._control is not None
        self._requests += 1
        request = {"request": self._requests, "slots": slots, "memory_limit": self.recycle.memory_limit}
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            try:
                channel, far = socket.socketpair()
                ours.callback(channel.close)
                theirs.callback(far.close)
                channel.setblocking(False)
                output = new_file("output")
                ours.callback(os.close, output)
                descriptors = [far.fileno(), output]
                slate = None
                if not slots:
                    descriptors.append(new_slate())
                    theirs.callback(os.close, descriptors[-1])
                    slate = Slate(os.dup(descriptors[-1]))
                    slate.level = ASLEEP
                    ours.callback(slate.close)
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            except OSError as error:
                logger.warning("A child could not be asked for: %s", error)
                self._ask_at = time.monotonic() + RESTART_SECONDS
                return
            ours.pop_all()
        self._asked[self._requests] = _Asked(channel, output, slate, slots, lane)

    def _hear_server(self) -> None:
        assert self._control is not None
        while True:
            try:
                message = self._control.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self._server_died()
                return
            told = json.loads(message)
            if "ready" in told:
                self._server_ready = True
                self._keep_complete(time.monotonic())
            elif "forked" in told:
                self._adopt(told["request"], told["forked"])
            elif (child := self.children.get(told["died"])) is not None:
                child.code = told["code"]
                child.peak_memory = told["peak_memory"]
                if not child.closed:
                    # What it said last is still to be read; a process that it forked may keep the channel open.
                    self._hear(child)
                if not child.closed:
                    self._hang_up(child)
                elif child.pid in self.children:
                    self._bury(child)

    def _server_died(self) -> None:
        if not self.stopping:
            logger.error("The fork server ended; starting another.")
        self._close_server()
        self._restart_at = time.monotonic() + RESTART_SECONDS
        # The kernel ends its children; nobody will tell us how.
        for child in list(self.children.values()):
            if child.closed:
                self._bury(child)

    def _adopt(self, request: int, pid: int) -> None:
        asked = self._asked.pop(request)
        child = Child(pid, *asked, self._servers)
        self.children[pid] = child
        self.selector.register(asked.channel, selectors.EVENT_READ, lambda: self._hear(child))
        if self.stopping:
            self._retire(child)

    # -- the children ----------------------------------------------------------------------------

    def _hear(self, child: Child) -> None:
        """Something came by its channel. Of one with a slate that is only a sign to look there."""
        if child.closed:
            # Its fork server told of its end in the same moment, and was heard first.
            return
        if child.outbox:
            self._flush(child)
        while True:
            try:
                data = child.channel.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._read_slate(child)
                self._hang_up(child)
                return
            if child.slate is None and not self._listen(child, child.inbox.feed(data)):
                return
            if len(data) < READ_BYTES:
                break
        if not self._is_deaf:
            self._read_slate(child)

    def _read_slate(self, child: Child) -> None:
        if child.slate is not None and _has_news(child):
            child.stirred_at = time.monotonic()
            # It need not wake who is awake.
            child.slate.level = AWAKE
            self._listen(child, child.slate.read())

    def _listen(self, child: Child, messages: Iterable[tuple[Kind, Any]]) -> bool:
        """Whether it makes sense."""
        try:
            for kind, body in messages:
                self._heed(child, kind, body)
        except (KeyError, ValueError, EOFError, TypeError):
            # A task has written to the channel, or over it: nothing that follows makes sense.
            logger.exception("Child %s does not make sense any more.", child.pid)
            child.senseless = True
            self._kill(child)
            return False
        return True

    def _heed(self, child: Child, kind: Kind, body: Any) -> None:
        if kind is Kind.NEXT:
            ended, token = body
            self._hear_of_end(child, ended)
            self._hear_of_start(child, token)
        elif kind is Kind.ENDED:
            self._hear_of_end(child, body)
        elif kind is Kind.STARTED:
            self._hear_of_start(child, body)
        elif kind is Kind.GIVEN_BACK:
            child.asked_back = False
            self._on_returned([child.held.pop(token) for token in body if token in child.held])
        elif kind is Kind.RETURNED:
            if (flight := child.held.get(body)) is not None:
                flight.returned = True
        elif kind is Kind.HELLO:
            child.ready = True

    def _hear_of_start(self, child: Child, token: int) -> None:
        flight = child.held.get(token)
        if flight is None:
            return
        now = flight.started_at = time.monotonic()
        if flight.timeout is not None:
            flight.kill_at = now + flight.timeout + GRACE_SECONDS
            flight.doomed = Outcome.TIMED_OUT, f"The task ran longer than its timeout of {flight.timeout:g} s."
        self._on_started(flight)

    def _hear_of_end(self, child: Child, end: End) -> None:
        token, settled, child.peak_memory = end[:3]
        flight = child.held.get(token)
        if flight is None:
            # The lease under which it was given was lost meanwhile: nobody waits for its end.
            return
        # Before it is let go of: what makes no sense is the end of the child, and of what it held.
        row = read_end(flight.claim.id, end)
        del child.held[token]
        child.executed += 1
        self._on_ended(flight, row, settled)
        if self._recycles:
            self._retire_if_worn(child)

    def _retire_if_worn(self, child: Child) -> None:
        worn = self.recycle.runs is not None and child.executed >= self.recycle.runs
        fat = (
            self.recycle.memory is not None
            and child.peak_memory is not None
            and child.peak_memory > self.recycle.memory
        )
        if (worn or fat) and not child.retiring:
            logger.info("Child %s has executed %s runs; replacing it.", child.pid, child.executed)
            self._retire(child)

    def _retire(self, child: Child) -> None:
        if not child.retiring:
            child.retiring = True
            if child.held:
                self.take_back(child)
            self._send(child, frame(Kind.STOP))

    def _kill(self, child: Child) -> None:
        if child.code is not None:
            # It is dead, and its number may be another's.
            return
        child.killed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)

    def _hang_up(self, child: Child) -> None:
        """Its end of the channel closed. How it ended is told by the fork server, presently."""
        if not child.closed:
            child.closed = True
            self.selector.unregister(child.channel)
            child.channel.close()
            if child.slate is not None:
                # If it is still there, it cannot wake us any more, and leaves.
                child.slate.level = ASLEEP
        if child.code is not None or self._control is None or child.server != self._servers:
            self._bury(child)

    def _bury(self, child: Child) -> None:
        if self.children.get(child.pid) is not child:
            return
        # What it said last.
        self._read_slate(child)
        output = tail_of(child.output)
        flights = list(child.held.values())
        self._forget(child)
        started = [flight for flight in flights if flight.started_at is not None]
        presumed = bool(flights) and not started and child.code not in (0, None) and not child.killed
        if presumed:
            # It died before it could say what it was at: of the first of its orders, most likely.
            started = flights[:1]
        self._on_died(
            Died(
                pid=child.pid,
                code=child.code,
                started=started,
                unstarted=[flight for flight in flights if flight not in started],
                output=output,
                peak_memory=child.peak_memory,
                killed=child.killed,
                presumed=presumed,
            )
        )

    def _forget(self, child: Child) -> None:
        self.children.pop(child.pid, None)
        if not child.closed:
            child.closed = True
            self.selector.unregister(child.channel)
            child.channel.close()
        if child.slate is not None:
            child.slate.close()
        os.close(child.output)

    def _send(self, child: Child, data: bytes) -> None:
        if child.closed:
            return
        child.outbox += data
        self._flush(child)

    def _flush(self, child: Child) -> None:
        try:
            while child.outbox:
                sent = child.channel.send(child.outbox)
                del child.outbox[:sent]
        except BlockingIOError:
            pass
        except OSError:
            # It is gone; the end of its channel is heard by the selector.
            child.outbox.clear()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.outbox else 0)
        key = self.selector.get_key(child.channel)
        if key.events != wanted:
            self.selector.modify(child.channel, wanted, key.data)


def _is_excused(child: Child, flight: Flight) -> bool:
    """It was to be killed for its time limit, and its task has returned since: its value is being stored."""
    if flight.excused:
        return False
    if flight.doomed is None or flight.doomed[0] is not Outcome.TIMED_OUT:
        return False
    return flight.returned or (child.slate is not None and child.slate.returned == flight.claim.token)


def _excuse(flight: Flight, now: float) -> None:
    """Another limit instead: what hangs while a value is stored must not hold the run and its slot for ever."""
    flight.excused = True
    flight.kill_at = now + STORE_SECONDS
    words = f"Its task had returned, but its value was not stored within {STORE_SECONDS:g} s of its time limit."
    flight.doomed = Outcome.TIMED_OUT, words


def _has_news(child: Child) -> bool:
    return child.slate is not None and not child.senseless and child.slate.has_news
