"""
The child process of a worker: executes the orders it is sent.

The main thread executes, one order after the other. "Ended k, with its outcome" and "started k+1"
leave before k+1 begins, so that when this process dies the worker knows which run it was at. A
second thread reads the socket meanwhile: it takes orders, gives unstarted ones back, passes interrupts
on to the main thread as a signal, and ends the process when the worker's end of the socket closes. While
nothing is executed the main thread reads for itself: to be woken by another thread would be a tenth of
the time in which an idle worker starts a run.
"""

import contextlib
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import time

# signal.getsignal() makes an enum of what it finds, which takes ten times as long as to find it.
from _signal import getsignal  # type: ignore[import-not-found]
from collections import deque
from typing import Any, Never

from django.tasks.signals import log_task_finished, log_task_started, task_finished, task_started

from django_manta.execution import executor, limits, tending
from django_manta.execution.descriptors import far_away
from django_manta.execution.executor import execute
from django_manta.execution.output import Recorder, SharedRecorder
from django_manta.execution.runners import kept, wire
from django_manta.execution.runners.concurrent import Concurrent
from django_manta.execution.runners.kept import Kept
from django_manta.execution.runners.slate import ASLEEP, NAPPING, Slate
from django_manta.execution.runners.wire import Inbox, Kind
from django_manta.ledger import Claimed
from django_manta.states import Outcome

#: How much is read from the socket at once.
READ_BYTES = 256 * 1024

#: So long after the worker has gone, or cannot be spoken to any more, the process ends whatever happens.
LEAVE_SECONDS = 2.0

#: How long to wait before one looks again whether the worker has read what there was no room behind.
ROOM_MILLISECONDS = 1

#: Who has fewer orders than this looks for more by itself before each of them.
FEW_ORDERS = 32

#: A worker need not be woken for this.
NEVER = ASLEEP + 1

#: When the worker has gone, what is executed just then has so long to end.
END_SECONDS = 0.1


def serve(request: dict[str, Any], descriptors: list[int]) -> int:
    """The life of a child. Its exit code."""
    # At a descriptor out of the way of tasks that close all that they can think of, or one twice.
    worker = _far_away(socket.socket(fileno=descriptors[0]))
    slate = None if request.get("slots") else Slate(descriptors[2])
    # A process that a task forks must not hold our end of the channel, nor tell anything in our name.
    os.register_at_fork(after_in_child=lambda: _disown(worker, slate))
    limits.let_forks_be_plain()
    signal.signal(signal.SIGALRM, limits.stray_alarm)
    recorder = SharedRecorder(descriptors[1]) if slate is None else Recorder(descriptors[1])
    recorder.install()
    _limit_memory(request.get("memory_limit"))
    hush_django()
    tending.start_anew()
    if isinstance(recorder, SharedRecorder):
        return Concurrent(worker, recorder, request["slots"]).serve()
    assert slate is not None
    return Child(worker, recorder, slate).serve()


def _disown(worker: socket.socket, slate: Slate | None) -> None:
    worker.close()
    if slate is not None:
        slate.disown()


def _limit_memory(limit: int | None) -> None:
    """Beyond it an allocation fails: a MemoryError in the task, not the end of the machine."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def hush_django() -> None:
    """
    Django logs a line at each start and each end. The worker tells the same (``-v 2``), and two log
    records that nobody reads cost a quarter of a short run: here only failures are logged, unless the project
    has set the level of the logger ``django.tasks`` itself. With their receivers gone the signals cost nothing.
    """
    logger = logging.getLogger("django.tasks")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
        task_started.disconnect(log_task_started)
        task_finished.disconnect(log_task_finished)
        executor.logs_failures = True


def _far_away(channel: socket.socket) -> socket.socket:
    """The same channel by another descriptor, a high one if the process may have it, and by no other."""
    return socket.socket(fileno=far_away(channel.detach()))


class Child:
    """Executes orders one at a time, in the main thread."""

    def __init__(self, worker: socket.socket, recorder: Recorder, slate: Slate) -> None:
        self.worker = worker
        self.recorder = recorder
        self._slate = slate
        self.executor = f"{socket.gethostname()}:{os.getpid()}"
        self._orders: deque[Claimed] = deque()
        #: Held by whoever changes what there is to do.
        self._doing = threading.RLock()
        #: Both threads tell, and a frame must not end up inside another.
        self._telling = threading.Lock()
        self._stopping = False
        self._current: int | None = None
        #: The token to interrupt, what that counts as, and why.
        self._interrupt: tuple[int, Outcome, str] | None = None
        self._kept = Kept()
        self._inbox = Inbox()
        #: Held by the thread that reads the socket.
        self._reading = threading.Lock()
        #: The main thread executes, or is about to: the other one reads.
        self._busy = threading.Event()
        self._nudged, self._nudge = map(_far_away, socket.socketpair())
        self._nudge.setblocking(False)
        self._pid = os.getpid()
        #: Held by the thread that settles what was kept, and then ends the process.
        self._leaving = threading.Lock()

    def serve(self) -> int:
        signal.signal(signal.SIGUSR1, self._raise_inside)
        told_by = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM)
        executor.on_returned = self._slate.tell_returned
        self._handlers = {int(number): getsignal(number) for number in told_by}
        threading.Thread(target=self._read, name="manta-reader", daemon=True).start()
        self._tell(Kind.HELLO, os.getpid())
        ended: tuple[Any, ...] = ()
        while (claim := self._next(wait=not ended)) is not None or ended:
            if claim is None:
                self._tell(Kind.ENDED, ended)
                ended = ()
                continue
            self._put_right()
            if self.recorder.is_lost:
                self._retire(claim, ended)
                break
            if ended:
                self._tell(Kind.NEXT, (ended, claim.token), ASLEEP)
            else:
                self._tell(Kind.STARTED, claim.token, NEVER)
            if not self._busy.is_set():
                # Not sooner: the thread that this wakes would be given the processor while we send.
                self._busy.set()
            ended = self._execute(claim)
        return 0

    def _retire(self, claim: Claimed, ended: tuple[Any, ...]) -> None:
        """A task has closed a descriptor of ours: the next one is for another process."""
        if ended:
            self._tell(Kind.ENDED, ended)
        with self._doing:
            self._tell(Kind.GIVEN_BACK, [claim.token, *(order.token for order in self._orders)])
            self._orders.clear()

    def _put_right(self) -> None:
        """Begin each execution as the first one began, whatever the last one has changed."""
        self.recorder.begin()
        for number, handler in self._handlers.items():
            if getsignal(number) is not handler:
                signal.signal(number, handler)
        limits.forget()

    def _next(self, *, wait: bool) -> Claimed | None:
        """The next order; None when there is none and nobody wants to wait, or it is time to leave."""
        if (wait or self._orders) and len(self._orders) < FEW_ORDERS and self._busy.is_set():
            # Not before the end of the last one is told.
            self._see_what_has_come()
        while True:
            if wait and not self._orders:
                self._read_until_there_is_one()
            with self._doing:
                if self._orders:
                    self._current = self._orders[0].token
                    return self._orders.popleft()
                self._current = None
                # If somebody waits for it, it was given back a moment ago: for the next one.
                if not wait or self._stopping:
                    return None

    def _see_what_has_come(self) -> None:
        """The other thread would have to wait until this one has nothing to do: short runs leave it no gap."""
        if self._reading.acquire(blocking=False):
            try:
                self._take_in(self._receive(self.worker, socket.MSG_DONTWAIT))
            finally:
                self._reading.release()

    def _read_until_there_is_one(self) -> None:
        if self._orders or self._stopping:
            return
        if self._busy.is_set():
            self._busy.clear()
            with contextlib.suppress(BlockingIOError):
                # If there is no room for it, it is nudged already.
                self._nudge.send(b"\0")
        # The other thread may be taking in the last thing that it read.
        with self._reading:
            while not self._orders and not self._stopping:
                self._take_in(self._receive(self.worker))

    def _execute(self, claim: Claimed) -> tuple[Any, ...]:
        execution = execute(claim, executor=self.executor, output=self.recorder.tail, in_writing=True)
        ended = kept.ended(claim, execution, self._kept)
        with self._doing:
            self._current = None
        return ended

    def _tell(self, kind: Kind, body: Any, level: int = NAPPING) -> None:
        """Write it on the slate, and wake a worker that sleeps, or naps: see there."""
        try:
            with self._telling:
                self._slate.write(kind, body, self._wait_for_room)
            self._wake(level)
        except (OSError, ValueError):
            # The worker is gone, which the reader hears, too. Or the task has closed what it should not have, and the
            # reader may hear nothing; or has forked, and this is not the process that was given the run.
            if threading.current_thread() is threading.main_thread():
                self._leave_alone()
            raise

    def _leave_alone(self) -> Never:
        """There is nobody to tell. What has ended is settled from here, so as not to be done again."""
        if os.getpid() == self._pid:
            overdue = threading.Timer(LEAVE_SECONDS, os._exit, (1,))
            overdue.daemon = True
            overdue.start()
            with self._leaving:
                self._kept.settle()
                os._exit(1)
        os._exit(1)

    def _wake(self, level: int) -> None:
        if self._slate.must_wake(level):
            self.worker.sendall(b"\0")

    def _wait_for_room(self) -> None:
        """The worker has much to read. OSError if it is gone."""
        self._wake(NAPPING)
        channel = select.poll()
        channel.register(self.worker, 0)
        if channel.poll(ROOM_MILLISECONDS):
            raise BrokenPipeError("The worker is gone.")

    def _raise_inside(self, number: int, stack: Any) -> None:
        """Runs in the main thread, between two steps of whatever it is doing."""
        interrupt = self._interrupt
        if interrupt is not None and interrupt[0] == self._current:
            limits.interrupt(*interrupt[1:])

    # -- reading ---------------------------------------------------------------------------------

    def _read(self) -> None:
        """The life of the second thread."""
        try:
            sources = select.poll()
            for source in (self.worker, self._nudged):
                sources.register(source, select.POLLIN)
            while True:
                self._busy.wait()
                ready = dict(sources.poll())
                if any(event & select.POLLNVAL for event in ready.values()):
                    # A task has closed even these. When it ends, nothing can be sent, and the main thread leaves.
                    return
                if self._nudged.fileno() in ready:
                    self._nudged.recv(READ_BYTES)
                if self._busy.is_set() and self.worker.fileno() in ready:
                    with self._reading:
                        # The main thread may have read it already, and begun what it says.
                        self._take_in(self._receive(self.worker, socket.MSG_DONTWAIT))
        except BaseException:
            self._leave()

    def _receive(self, channel: socket.socket, flags: int = 0) -> bytes | None:
        """What has arrived: None for nothing, and no bytes when nothing will arrive any more."""
        try:
            return channel.recv(READ_BYTES, flags)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _take_in(self, data: bytes | None) -> None:
        if data is None:
            return
        if not data:
            with self._doing:
                self._orders.clear()
            self._let_it_end()
            self._leave_alone()
        try:
            for kind, body in self._inbox.feed(data):
                self._obey(kind, body)
        except BaseException:
            self._leave()

    def _let_it_end(self) -> None:
        """What is executed now may be done in a moment: then it is settled, too, and not begun once more."""
        deadline = time.monotonic() + END_SECONDS
        while self._current is not None and time.monotonic() < deadline:
            time.sleep(0.001)

    def _leave(self) -> Never:
        # Deaf, it would hold its runs for ever. What is running is left to whoever finds the lease lost.
        sys.excepthook(*sys.exc_info())
        os._exit(1)

    def _obey(self, kind: Kind, body: Any) -> None:
        with self._doing:
            if kind is Kind.RUN:
                self._orders.extend(wire.read_orders(body))
            elif kind is Kind.TAKE_BACK:
                tokens = [claim.token for claim in self._orders]
                self._orders.clear()
                # Under the lock: none of them can be started after this is sent.
                self._tell(Kind.GIVEN_BACK, tokens)
            elif kind is Kind.INTERRUPT:
                self._interrupt = body[0], Outcome(body[1]), body[2]
                if self._current == body[0]:
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            elif kind is Kind.STOP:
                self._stopping = True
