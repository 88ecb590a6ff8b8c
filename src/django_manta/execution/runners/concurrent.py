"""
A child that executes many ``async def`` tasks at a time.

Their coroutines share one event loop, in the main thread, and nothing else: what a coroutine calls by
``sync_to_async`` or through the ORM has a thread of its run's own, and so connections of its own, which are closed
after it. Everything around a coroutine (the signature, signals, middleware) is ordinary blocking code and has another
thread.
"""

import asyncio
import contextvars
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db.transaction import TransactionManagementError

from django_manta.current import current_run
from django_manta.exceptions import TaskCancelled, TaskTimeout
from django_manta.execution import desk, executor, tending
from django_manta.execution.limits import InOneProcess, Limit
from django_manta.execution.output import SharedRecorder
from django_manta.execution.runners import wire
from django_manta.execution.runners.kept import Kept, ended
from django_manta.execution.runners.wire import Inbox, Kind, frame
from django_manta.ledger import Claimed
from django_manta.states import Outcome

READ_BYTES = 256 * 1024


class Concurrent:
    """Executes up to ``slots`` orders at a time."""

    def __init__(self, worker: socket.socket, recorder: SharedRecorder, slots: int) -> None:
        self.worker = worker
        self.recorder = recorder
        self.executor = f"{socket.gethostname()}:{os.getpid()}"
        self.loop = asyncio.new_event_loop()
        self.threads = ThreadPoolExecutor(slots, thread_name_prefix="manta-async")
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._unstarted: dict[int, Claimed] = {}
        self._running: dict[int, Callable[[Outcome, str], None]] = {}
        #: Interrupts that came before there was a coroutine to interrupt.
        self._early: dict[int, tuple[Outcome, str]] = {}
        self._stopping = False
        self._done = False
        self._kept = Kept()

    def serve(self) -> int:
        # Not SIG_IGN, which every program that a task starts would inherit.
        signal.signal(signal.SIGUSR1, _ignore)
        executor.call_coroutine = self._call_coroutine
        executor.on_returned = lambda token: self._send(frame(Kind.RETURNED, token))
        threading.Thread(target=self._read, name="manta-reader", daemon=True).start()
        self._send(frame(Kind.HELLO, os.getpid()))
        # A task may stop the loop that it shares with others.
        while not self._done:
            self.loop.run_forever()
        self.threads.shutdown()
        return 0

    # -- executing -------------------------------------------------------------------------------

    def _execute(self, token: int) -> None:
        try:
            self._execute_and_tell(token)
        except BaseException:
            # An outcome that nobody hears of would leave its run RUNNING for ever.
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    def _execute_and_tell(self, token: int) -> None:
        with self._lock:
            claim = self._unstarted.pop(token, None)
            if claim is None:
                return
            self._running[token] = lambda outcome, reason: self._early.update({token: (outcome, reason)})
            self.recorder.start(token)
            self._send(frame(Kind.STARTED, token))
        output = partial(self.recorder.tail_of_run, token)
        try:
            # Not in the thread's own context, which the next run in this thread would find as this one left it.
            execution = contextvars.copy_context().run(executor.execute, claim, executor=self.executor, output=output)
        finally:
            _close_connections()
            with self._lock:
                del self._running[token]
                self.recorder.end(token)
                self._early.pop(token, None)
        self._send(frame(Kind.ENDED, ended(claim, execution, self._kept)))
        self._leave_if_done()

    def _call_coroutine(
        self,
        limit: Limit,
        function: Callable[..., Coroutine[Any, Any, Any]],
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Called in a thread of the pool: the coroutine runs in the shared loop, with this context."""
        done: Future[Any] = Future()
        context = contextvars.copy_context()
        running = current_run()
        token = running.token if running else 0

        async def call() -> None:
            try:
                async with asyncio.timeout(limit.seconds) as timer, _OwnThread():
                    with InOneProcess():
                        value = await function(*args, **kwargs)
            except asyncio.CancelledError:
                if limit.interrupted is None:
                    done.set_exception(RuntimeError("The task's coroutine was cancelled by its own code."))
                else:
                    done.set_exception(TaskCancelled(limit.interrupted[1]))
            except TimeoutError as error:
                if timer.expired():
                    limit.reached = True
                    done.set_exception(TaskTimeout(limit.message))
                else:
                    done.set_exception(error)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(value)

        def start() -> None:
            task = self.loop.create_task(call(), context=context)

            def cancel(outcome: Outcome, reason: str) -> None:
                limit.interrupted = outcome, reason
                self.loop.call_soon_threadsafe(task.cancel)

            with self._lock:
                if token in self._running:
                    self._running[token] = cancel
                early = self._early.pop(token, None)
            if early is not None:
                cancel(*early)

        self.loop.call_soon_threadsafe(start)
        return done.result()

    # -- the reader ------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            self._listen()
            self._kept.settle()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        # Deaf, it would hold its runs for ever.
        os._exit(1)

    def _listen(self) -> None:
        inbox = Inbox()
        while True:
            try:
                data = self.worker.recv(READ_BYTES)
            except OSError:
                data = b""
            if not data:
                return
            for kind, body in inbox.feed(data):
                self._obey(kind, body)

    def _obey(self, kind: Kind, body: Any) -> None:
        if kind is Kind.RUN:
            claims = wire.read_orders(body)
            with self._lock:
                self._unstarted.update({claim.token: claim for claim in claims})
            for claim in claims:
                self.threads.submit(self._execute, claim.token)
        elif kind is Kind.TAKE_BACK:
            with self._lock:
                tokens = list(self._unstarted)
                self._unstarted.clear()
                self._send(frame(Kind.GIVEN_BACK, tokens))
        elif kind is Kind.INTERRUPT:
            with self._lock:
                cancel = self._running.get(body[0])
            if cancel is not None:
                cancel(Outcome(body[1]), body[2])
        elif kind is Kind.STOP:
            self._stopping = True
            self._leave_if_done()

    def _leave_if_done(self) -> None:
        with self._lock:
            if self._stopping and not self._running and not self._unstarted:
                self._done = True
                self.loop.call_soon_threadsafe(self.loop.stop)

    def _send(self, data: bytes) -> None:
        with self._sending:
            self.worker.sendall(data)


def _ignore(number: int, stack: Any) -> None:
    pass


class _OwnThread(ThreadSensitiveContext):
    """
    The thread, and so the connections, that the thread-sensitive calls of a block share with nobody. There is none
    until the first such call.
    """

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        # asgiref would wait until the thread is done, which can take long: a call that was cancelled goes on in there.
        thread = SyncToAsync.context_to_thread_executor.pop(self, None)
        await super().__aexit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if thread is None:
            return
        closed = thread.submit(_close_connections)
        thread.shutdown(wait=False)
        if error is None and (left_open := await asyncio.wrap_future(closed)):
            words = f"The task left a transaction open on {', '.join(sorted(left_open))}; what it wrote is lost."
            raise TransactionManagementError(words)


def _close_connections() -> set[str]:
    """Those of this thread. The aliases on which a transaction was left open."""
    tending.close_after()
    left_open = tending.end(frozenset())
    desk.close()
    return left_open
