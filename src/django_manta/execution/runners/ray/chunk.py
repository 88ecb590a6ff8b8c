"""
What a Ray task does: execute some runs, one after the other, in the main thread of a Ray worker process.

"Ended k, with its outcome" and "started k+1" are written to the foreman's connection before k+1 begins. Of short runs
the kernel keeps what is written for a moment, and sends it with what follows, also when this process is dead (unless
the foreman had just said something that it had not read: then the end of the connection comes first). A second
thread reads that connection: it gives unstarted runs back, and passes interrupts on to the main thread as a signal, so
that they are raised inside the task's function and nowhere else (Ray's own soft cancel may hit any line of ours). Ray
uses a process for many chunks, and the connection is kept from one to the next. A second connection carries what the
interpreter writes when the process dies of a segmentation fault: that may be while a message is half sent.
"""

import faulthandler
import json
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time

# signal.getsignal() makes an enum of what it finds, which takes ten times as long as to find it.
from _signal import getsignal  # type: ignore[import-not-found]
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django_manta.execution.descriptors import far_away
from django_manta.execution.runners.ray import messages, printed, sigterm

if TYPE_CHECKING:
    from django_manta.ledger import Claimed, Written
    from django_manta.states import Outcome

logger = logging.getLogger("django_manta")

#: How long to wait for the foreman's answer to a connection, and for room to write to it.
CONNECT_SECONDS = 10.0

READ_BYTES = 64 * 1024

#: What is written within so long after the last that was sent waits in the kernel for more. If nothing comes, because
#: the next run is a long one, Linux sends it after 0.2 s.
PUSH_SECONDS = 0.002
_MORE = getattr(socket, "MSG_MORE", 0)

#: A process that could not load the project has so long to say so.
LEAVE_SECONDS = 0.5

#: How long to wait for the foreman's word that it has heard what became of a run that was alone. What is large it may
#: read later: that waits here as long as there is a connection.
HEARD_SECONDS = 2.0

#: An outcome of more characters is settled from here, where the database can be reached. If it cannot be, that is not
#: tried again for a while.
LARGE_CHARACTERS = 64 * 1024
NO_DATABASE_SECONDS = 60.0

#: Of what a task prints so much is told at a time, and so often: the words before a crash are the ones that matter.
OUTPUT_CHARACTERS = 8 * 1024
OUTPUT_SECONDS = 0.05

_SIGUSR1, _SIGALRM = int(signal.SIGUSR1), int(signal.SIGALRM)

#: A message to the foreman: what it is, and what belongs to it.
type Parts = tuple[str, ...]


_termination = sigterm.Termination()


def execute(payload: bytes) -> bytes:
    """Execute a chunk. What could not be told over the connection is returned."""
    if threading.current_thread() is not threading.main_thread():
        return _execute(payload)
    # Ray's way to cancel what has not begun. If it has, nothing of ours, and nobody's run, is to be hit by that:
    # who is not wanted any more is named over the connection.
    signal.signal(signal.SIGINT, _ignore)
    with _termination.deferred():
        undelivered = _execute(payload)
    _termination.obey(undelivered)
    return undelivered


def _execute(payload: bytes) -> bytes:
    order = messages.hear_order(messages.from_bytes(payload))
    if _leaving:
        raise RuntimeError("This process could not load another project, and is about to end.")
    try:
        load_django(order["environment"])
    except BaseException:
        _leave()
        raise
    return _executor().execute(order)


_leaving = False


def _leave() -> None:
    """Half of a project is loaded, or another one, and the next chunk would find it so: it shall have a new process."""
    global _leaving
    _leaving = True
    threading.Timer(LEAVE_SECONDS, os._exit, (1,)).start()


def _ignore(number: int, stack: Any) -> None:
    """Not SIG_IGN, which the processes that a task starts would inherit."""


#: What this process has loaded: the settings and the path of a project.
_loaded: dict[str, Any] | None = None


class OtherProject(Exception):
    """This process has loaded the settings of another project, or of another release."""


def loaded_environment() -> dict[str, Any] | None:
    """What this process was told to load, if Ray has started it to execute runs."""
    return _loaded


def load_django(environment: dict[str, Any]) -> None:
    """What a raise here says is told to whoever submitted the runs; none of them has started."""
    global _loaded
    if _loaded == environment:
        return
    if _loaded is not None:
        # Each project has a foreman of its own, and so processes of its own. This is in case that Ray mixes them up.
        raise OtherProject(
            f"This process has loaded {_loaded['settings']} from {_loaded['path']}, and cannot load "
            f"{environment['settings']} from {environment['path']} as well. Another process will."
        )
    for place in environment["path"]:
        if place not in sys.path:
            sys.path.append(place)
    os.environ["DJANGO_SETTINGS_MODULE"] = _settings(environment["settings"])
    import django

    django.setup()
    from django_manta.task import load_tasks

    load_tasks()
    from django_manta.execution.runners.child import hush_django

    hush_django()
    _loaded = environment


def _settings(workers: str) -> str:
    """Those of the worker, unless the environment that was prepared for the task names others."""
    import ray

    prepared = ray.get_runtime_context().runtime_env.get("env_vars") or {}
    return str(prepared.get("DJANGO_SETTINGS_MODULE", workers))


_the_executor: "Executor | None" = None


def _executor() -> "Executor":
    global _the_executor
    if _the_executor is None:
        _the_executor = Executor()
    return _the_executor


class Executor:
    """The executions of one Ray worker process."""

    def __init__(self) -> None:
        # Here, because Django is loaded by now, and not for each run: to ask for a module takes as long as a signature.
        from django_manta.execution import executor, limits
        from django_manta.execution.output import Recorder
        from django_manta.execution.runners import kept, wire

        self._call, self._write, self._settled_here = executor.execute, wire.write, kept.settled_here
        self._forget_limits, self._stray_alarm = limits.forget, limits.stray_alarm
        _termination.interrupt = self._interrupt_for_good
        executor.call_coroutine = executor.call_apart
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        #: Where Ray keeps what is printed here, what the references of this Ray task begin with, and where the words of
        #: the present execution begin.
        self.files = printed.Files()
        self._reference, self._began = "", (0, 0)
        self._ended: printed.Sizes | None = None
        self.recorder = Recorder(os.memfd_create("manta-output"), also=self._printed)
        self.recorder.install()
        self._unsaid, self._said_at = "", 0.0
        self._foreman: tuple[Any, ...] = ()
        self._connection: socket.socket | None = None
        #: For the interpreter's last words.
        self._last_words: socket.socket | None = None
        #: Until when outcomes are not settled from here.
        self._no_database_until = 0.0
        #: What is left to execute: keys, and claims as they were written.
        self._orders: deque[tuple[str, str]] = deque()
        self._lock = threading.Lock()
        #: Both threads write, and a frame must not end up inside another.
        # Reentrant: what is collected as garbage while a thread sends may print something.
        self._sending = threading.RLock()
        self._current: str | None = None
        #: The execution to interrupt, what that counts as, and why.
        self._interrupt: tuple[str, str, str] | None = None
        self._undelivered: list[Parts] = []
        #: When something was last sent that was not to wait.
        self._pushed_at = 0.0
        self._chunk = ""
        self._heard = threading.Event()
        #: Why there is no connection.
        self._trouble = ""
        # Ray executes plain tasks in the main thread, the only one that a signal handler can be set in.
        self._is_main = threading.current_thread() is threading.main_thread()
        # A process that a task forks must not hold our connection: the foreman waits for its end.
        os.register_at_fork(after_in_child=self._disown)
        limits.let_forks_be_plain()

    def execute(self, order: dict[str, Any]) -> bytes:
        self._undelivered = []
        self._chunk = order["chunk"]
        self._heard.clear()
        alone = len(order["keys"]) == 1
        self._connect(order["foreman"])
        with self._lock:
            self._orders = deque(zip(order["keys"], order["parts"], strict=True))
        # Ray has written into them since.
        self._ended = None
        # Before anybody can ask for it: whoever has no handler for the signal is ended by it.
        self._put_right()
        task, node = _task_and_node()
        self._reference = self.files.head(task, node)
        hello = [order["foreman"]["secret"], order["chunk"], os.getpid(), self.name, self._reference]
        # With the first start, which waits for nobody.
        self._pushed_at = 0.0
        self._send(("hello", messages.dump(hello)), may_wait=True)
        fields = messages.FIELDS if tuple(order["fields"]) == messages.FIELDS else order["fields"]
        ended: Parts = ()
        while (given := self._next()) is not None:
            key, written = given
            self._put_right()
            if _termination.asked:
                self._give_back_all(key)
                break
            # The last one may be followed by nothing for long.
            may_wait = bool(self._orders) and time.monotonic() - self._pushed_at < PUSH_SECONDS
            begins = key, printed.part(self._began)
            if not self._send(("next", *begins, *ended) if ended else ("started", *begins), may_wait=may_wait):
                # Nobody would know what this process was at: the rest is for one that can be heard.
                self._undelivered.append(_given_back([key, *(key for key, _ in self._orders)], self._trouble))
                ended = ()
                break
            ended = self._execute(key, messages.read_claim(written, fields))
        told: tuple[Parts, ...] = (("ended", *ended),) if ended else ()
        if self._send(*told, ("done",)) and alone and not self._is_heard(told):
            # A connection may be dead for long before anybody is told. By way of Ray it arrives.
            self._undelivered += told
        return b"".join(messages.line(*parts) for parts in self._undelivered)

    def _give_back_all(self, key: str) -> None:
        """This process is to end: what it has not begun is for another one."""
        with self._lock:
            keys = [key, *(key for key, _ in self._orders)]
            self._orders.clear()
            self._current = None
            self._send(_given_back(keys))

    def _is_heard(self, told: tuple[Parts, ...]) -> bool:
        """Wait for the foreman to say so."""
        connection = self._connection
        is_large = sum(len(part) for parts in told for part in parts) > LARGE_CHARACTERS
        while not self._heard.wait(HEARD_SECONDS):
            if connection is None or self._connection is not connection or not is_large:
                return False
        return True

    def _next(self) -> tuple[str, str] | None:
        with self._lock:
            self._current = self._orders[0][0] if self._orders else None
            return self._orders.popleft() if self._orders else None

    def _execute(self, key: str, claim: "Claimed") -> Parts:
        """How it ended: what the foreman wants to know of it, and what it passes on."""
        # Fenced by its token alone: the worker in whose name it was claimed may be gone, and another have adopted it.
        execution = self._call(
            claim, executor=self.name, output=self.recorder.tail, adoptable=True, log_ref=self._log_ref
        )
        with self._lock:
            self._current = None
        if execution.settled:
            # What it printed after its commit, in hooks, is not the next one's.
            self._ended = None
        if execution.settlement is None:
            return key, "", "1", messages.dump(["ended", key, False, None])
        row = self._write(execution.settlement)
        if len(row.text) > LARGE_CHARACTERS and not execution.settled:
            # It may be stored, or be read by the foreman, after its time is up.
            self._send(("returned", key))
        settled = execution.settled or self._settled_from_here(claim, row)
        if settled:
            # What is settled already need not travel whole.
            row.text = ""
        told = messages.dump(["ended", key, settled, messages.outcome_to_json(row)])
        return key, f"{row.duration:.6f}", "1" if settled else "", told

    def _settled_from_here(self, claim: "Claimed", row: "Written") -> bool:
        """Whether a large outcome need not travel."""
        if len(row.text) <= LARGE_CHARACTERS or time.monotonic() < self._no_database_until:
            return False
        settled = self._settled_here(claim, row, None, LARGE_CHARACTERS)
        if settled is None:
            self._no_database_until = time.monotonic() + NO_DATABASE_SECONDS
        return bool(settled)

    def _log_ref(self, outcome: "Outcome") -> str:
        if not self._reference:
            return ""
        if self.recorder.has_words:
            printed.flush()
        sizes = self._ended = self.files.sizes()
        if sizes == self._began and outcome == "SUCCESSFUL":
            # It said nothing, and nobody will ask. A reference to that would be as long as all the rest of its row.
            return ""
        return self._reference + printed.part(self._began, sizes)

    def _printed(self, data: str) -> None:
        """The foreman hears what a task prints, in case that it does not live to tell; but not of every word."""
        if self._current is None:
            return
        self._unsaid = (self._unsaid + data)[-OUTPUT_CHARACTERS:]
        now = time.monotonic()
        if now - self._said_at >= OUTPUT_SECONDS:
            told, self._unsaid, self._said_at = self._unsaid, "", now
            self._send(("output", messages.dump(told)))

    def _put_right(self) -> None:
        """Begin each execution as the first one began, whatever the last one has changed."""
        if self.recorder.has_words:
            # What the last one left unwritten is not the next one's.
            printed.flush()
        self.recorder.begin()
        self._unsaid = ""
        # Where the words of the last one ended, those of this one begin.
        self._began, self._ended = self._ended or self.files.sizes(), None
        if self._is_main and getsignal(_SIGUSR1) != self._raise_inside:
            signal.signal(signal.SIGUSR1, self._raise_inside)
        if self._is_main and getsignal(_SIGALRM) is not self._stray_alarm:
            signal.signal(signal.SIGALRM, self._stray_alarm)
        if self._is_main:
            _termination.install()
        self._forget_limits()

    def _raise_inside(self, number: int, stack: Any) -> None:
        """Runs in the main thread, between two steps of whatever it is doing."""
        from django_manta.execution import limits
        from django_manta.states import Outcome

        interrupt = self._interrupt
        if interrupt is not None and interrupt[0] == self._current:
            limits.interrupt(Outcome(interrupt[1]), interrupt[2])

    def _interrupt_for_good(self) -> None:
        """The process is told to end. Runs in the main thread, as the one above."""
        from django_manta.execution import limits
        from django_manta.states import Outcome

        if self._current is not None:
            limits.interrupt(Outcome.INTERRUPTED, sigterm.REASON)

    # -- the connection --------------------------------------------------------------------------

    def _connect(self, foreman: dict[str, Any]) -> None:
        wanted = (foreman["host"], foreman["port"], foreman["secret"])
        if self._connection is not None and self._foreman == wanted:
            return
        self._hang_up()
        self._forget_last_words()
        try:
            connection = _dial(foreman)
        except OSError as error:
            # What there is to tell is returned when the chunk is done.
            self._trouble = f"{type(error).__name__}: {error}"
            return
        self._trouble = ""
        self._connection, self._foreman = connection, wanted
        if not foreman["tls"]:
            self._send_last_words_to(foreman)
        threading.Thread(target=self._read, args=(connection,), name="manta-reader", daemon=True).start()

    def _send_last_words_to(self, foreman: dict[str, Any]) -> None:
        """
        What the interpreter writes on a segmentation fault goes to the foreman, by a connection of its own: another
        thread may have half sent a message at that moment.
        """
        with suppress(OSError):
            connection = _dial(foreman)
            connection.sendall(messages.line("last words", messages.dump([foreman["secret"], self._chunk])))
            self._last_words = connection
            faulthandler.enable(connection.fileno())

    def _forget_last_words(self) -> None:
        connection, self._last_words = self._last_words, None
        if connection is not None:
            faulthandler.enable(sys.__stderr__ or 2)
            connection.close()

    def _send(self, *told: Parts, may_wait: bool = False) -> bool:
        """
        Write to the foreman. Whether that was possible; what may not be lost is kept otherwise. What ``may_wait`` is
        the kernel's when this returns, which sends it with what follows.
        """
        data = b"".join([messages.line(*parts) for parts in told])
        try:
            with self._sending:
                connection = self._connection
                if connection is None:
                    pass
                elif may_wait and not isinstance(connection, ssl.SSLSocket):
                    connection.sendall(data, _MORE)
                    return True
                else:
                    connection.sendall(data)
                    self._pushed_at = time.monotonic()
                    return True
        except OSError:
            self._hang_up()
        except BaseException:
            # It was printed when it was interrupted: nobody would understand half a line.
            self._hang_up()
            raise
        self._undelivered += [("ended", *parts[3:]) for parts in told if parts[0] == "next"]
        self._undelivered += [parts for parts in told if parts[0] in ("ended", "given back")]
        return False

    def _read(self, connection: socket.socket) -> None:
        inbox = messages.Inbox()
        try:
            while data := connection.recv(READ_BYTES):
                for line in inbox.feed(data):
                    self._obey(*json.loads(line))
        except OSError:
            pass
        except Exception:
            # What there is to tell is returned when the chunk is done.
            logger.exception("What the foreman said cannot be read; the connection with it is closed.")
        # Ray ends this process when the foreman is gone. If only the connection is, the chunk goes on.
        if self._connection is connection:
            self._hang_up()

    def _obey(self, kind: str, *body: str) -> None:
        with self._lock:
            if kind == "take back":
                # Under the lock: none of them can be started after this is sent.
                keys = [key for key, _ in self._orders]
                self._orders.clear()
                self._send(_given_back(keys))
            elif kind == "heard":
                if body[0] == self._chunk:
                    self._heard.set()
            elif kind == "interrupt":
                key, outcome, reason = body
                waiting = [order for order in self._orders if order[0] == key]
                if waiting:
                    self._orders.remove(waiting[0])
                    self._send(_given_back([key]))
                elif self._current == key:
                    self._interrupt = key, outcome, reason
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError):
                # Closing alone says nothing to the other end while our own thread still reads.
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _disown(self) -> None:
        """In a child that a task has forked: the connections are its parent's."""
        self._forget_last_words()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _dial(foreman: dict[str, Any]) -> socket.socket:
    """A connection with the foreman."""
    connection = socket.create_connection((foreman["host"], foreman["port"]), CONNECT_SECONDS)
    connection = socket.socket(fileno=far_away(connection.detach()))
    connection.settimeout(CONNECT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    messages.keep_alive(connection)
    if foreman["tls"]:
        connection = client_context().wrap_socket(connection)
    connection.settimeout(None)
    return connection


def _given_back(keys: list[str], why: str = "") -> Parts:
    return "given back", messages.dump(keys), why.replace("\t", " ").replace("\n", " ")


def _task_and_node() -> tuple[str, str]:
    import ray

    here = ray.get_runtime_context()
    return str(here.get_task_id()), str(here.get_node_id())


# -- encryption: as Ray's own, by Ray's own variables ------------------------------------------------


def uses_tls() -> bool:
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=os.environ["RAY_TLS_CA_CERT"])
    # Ray's nodes are known by the authority that signed them, not by their names.
    context.check_hostname = False
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    return context


def server_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=os.environ["RAY_TLS_CA_CERT"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    return context
