"""
The child process of a worker: executes the orders it is sent.

The main thread executes, one order after the other. "Ended k, with its outcome" and "started k+1"
leave before k+1 begins, so that when this process dies the worker knows which run it was at. A
second thread reads the socket: it takes orders, gives unstarted ones back, passes interrupts on to
the main thread as a signal, and ends the process when the worker's end of the socket closes.
"""

import os
import resource
import signal
import socket
import threading
from collections import deque
from typing import Any

from django_manta.execution import limits
from django_manta.execution.executor import Execution, execute
from django_manta.execution.output import Recorder
from django_manta.execution.runners.concurrent import Concurrent
from django_manta.execution.runners.wire import Inbox, Kind, frame, unpack_claim
from django_manta.ledger import Claimed
from django_manta.states import Outcome

#: How much is read from the socket at once.
READ_BYTES = 256 * 1024


def serve(request: dict[str, Any], descriptors: list[int]) -> int:
    """The life of a child. Its exit code."""
    worker = socket.socket(fileno=descriptors[0])
    recorder = Recorder(descriptors[1])
    recorder.install()
    _limit_memory(request.get("memory_limit"))
    if request.get("slots"):
        return Concurrent(worker, recorder, request["slots"]).serve()
    return Child(worker, recorder).serve()


def _limit_memory(limit: int | None) -> None:
    """Beyond it an allocation fails: a MemoryError in the task, not the end of the machine."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


class Child:
    """Executes orders one at a time, in the main thread."""

    def __init__(self, worker: socket.socket, recorder: Recorder) -> None:
        self.worker = worker
        self.recorder = recorder
        self.executor = f"{socket.gethostname()}:{os.getpid()}"
        self._orders: deque[Claimed] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._current: int | None = None
        #: The token to interrupt, what that counts as, and why.
        self._interrupt: tuple[int, Outcome, str] | None = None

    def serve(self) -> int:
        signal.signal(signal.SIGUSR1, self._raise_inside)
        threading.Thread(target=self._read, name="manta-reader", daemon=True).start()
        self.worker.sendall(frame(Kind.HELLO, os.getpid()))
        told = b""
        while (claim := self._next(wait=not told)) is not None or told:
            if claim is None:
                self.worker.sendall(told)
                told = b""
                continue
            self.recorder.begin()
            started = frame(Kind.STARTED, claim.token)
            self.worker.sendall(told + started)
            told = self._execute(claim)
        return 0

    def _next(self, *, wait: bool) -> Claimed | None:
        """The next order; None when there is none and nobody wants to wait, or it is time to leave."""
        with self._changed:
            while wait and not self._orders and not self._stopping:
                self._changed.wait()
            self._current = self._orders[0].token if self._orders else None
            return self._orders.popleft() if self._orders else None

    def _execute(self, claim: Claimed) -> bytes:
        execution = execute(claim, executor=self.executor, output=self.recorder.tail)
        with self._changed:
            self._current = None
        return ended(claim, execution)

    def _raise_inside(self, number: int, stack: Any) -> None:
        """Runs in the main thread, between two steps of whatever it is doing."""
        interrupt = self._interrupt
        if interrupt is not None and interrupt[0] == self._current:
            limits.interrupt(*interrupt[1:])

    # -- the reader ------------------------------------------------------------------------------

    def _read(self) -> None:
        inbox = Inbox()
        while True:
            try:
                data = self.worker.recv(READ_BYTES)
            except OSError:
                data = b""
            if not data:
                # The worker is gone. Nothing that is done here can be settled any more.
                os._exit(1)
            for kind, body in inbox.feed(data):
                self._obey(kind, body)

    def _obey(self, kind: Kind, body: Any) -> None:
        with self._changed:
            if kind is Kind.RUN:
                self._orders.extend(map(unpack_claim, body))
            elif kind is Kind.TAKE_BACK:
                tokens = [claim.token for claim in self._orders]
                self._orders.clear()
                # Under the lock: none of them can be started after this is sent.
                self.worker.sendall(frame(Kind.GIVEN_BACK, tokens))
            elif kind is Kind.INTERRUPT:
                self._interrupt = body
                if self._current == body[0]:
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            elif kind is Kind.STOP:
                self._stopping = True
            self._changed.notify()


def ended(claim: Claimed, execution: Execution) -> bytes:
    """The frame that tells how an execution ended, and how much memory the process has needed."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return frame(Kind.ENDED, (claim.token, execution.settlement, execution.settled, peak))
