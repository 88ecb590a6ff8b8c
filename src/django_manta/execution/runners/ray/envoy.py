"""
A worker's envoy to Ray: the process in which Ray's driver lives.

``main()`` waits until Ray can be reached, joins it, finds or
starts the foreman, and passes on what worker and foremen have to say to each other. A driver whose cluster is gone is
ended by Ray after a while, wherever it lives: here that costs a process, which the worker starts again.
"""

import asyncio
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from django_manta.execution.runners.forkserver import die_with
from django_manta.execution.runners.ray import messages

#: How long Ray may take to answer a connection, and how long to wait before it is tried again.
PROBE_SECONDS = 2.0
RETRY_SECONDS = 0.5

#: A Ray that answers no connection so many times in a row is away. Its driver would notice after a minute only, and
#: not find its way into one that was started anew meanwhile.
PROBES = 4

#: How long a foreman may take to answer, before what was said to it is said again, and to hold a question open.
ANSWER_SECONDS = 30.0
LISTEN_SECONDS = 20.0

#: What the worker said before it left has so long to be passed on.
LAST_WORDS_SECONDS = 2.0

#: While this process waits for a Ray that is away it tells the worker this often that it is alive.
JOINING_SECONDS = 5.0

#: After a foreman could not be reached it is tried again so soon.
AGAIN_SECONDS = 0.3

#: One that answers with what nobody understands, or with an exception, is tried again so soon, then half as often each
#: time, up to so long. If nothing else works either, another envoy is to see after so many times.
TROUBLED_SECONDS, TROUBLED_SECONDS_MOST = 0.5, 10.0
TROUBLES = 4

#: When the worker has not dealt with so many characters of events that it was told, foremen are asked for no more.
WINDOW_CHARACTERS = 16 * 1024 * 1024


def main() -> None:
    die_with(os.getppid())
    channel = socket.socket(fileno=int(sys.argv[1]))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # It is the worker's business. Handlers, not SIG_IGN: a Ray that is started here would inherit that.
        signal.signal(number, lambda number, frame: None)
    inbox = messages.Inbox()
    first, *rest = _first_lines(channel, inbox)
    hello = json.loads(first)
    sys.path[:] = hello["path"]
    try:
        _join(channel, hello)
        # Not asyncio.run(), which waits for everything that was begun, also for what Ray will never answer.
        asyncio.new_event_loop().run_until_complete(_serve(channel, hello, inbox, rest))
    except Exception as error:
        _tell(channel, ["away", f"{type(error).__name__}: {error}"])
        raise SystemExit(1) from error
    finally:
        _leave(hello)


def _first_lines(channel: socket.socket, inbox: messages.Inbox) -> list[str]:
    while True:
        data = channel.recv(65536)
        if not data:
            sys.exit(0)
        if found := list(inbox.feed(data)):
            return found


def _tell(channel: socket.socket, message: list[Any]) -> None:
    with contextlib.suppress(OSError):
        channel.sendall(messages.line(messages.dump(message)))


# -- joining -----------------------------------------------------------------------------------------


def _join(channel: socket.socket, hello: dict[str, Any]) -> None:
    address: str = hello["address"]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The driver has no use for accelerators, and Ray would warn of what it will do one day.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    given: dict[str, Any] = {
        "address": address,
        "namespace": hello["namespace"],
        "log_to_driver": False,
        "configure_logging": False,
    }
    if address == "local":
        # Nobody else can reach it. Ray's own default may become another one.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        given |= {"num_cpus": hello["num_cpus"], "include_dashboard": False}
    import ray

    if address != "local":
        # Ray itself would try for minutes, and not say why.
        _wait_until_reachable(channel, address)
    _tell(channel, ["joining"])
    ray.init(**given)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)


def probe(address: str) -> None:
    """Raise OSError if nobody answers there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    socket.create_connection((host, int(port)), PROBE_SECONDS).close()


def _wait_until_reachable(channel: socket.socket, address: str) -> None:
    told = False
    joining_at = 0.0
    while True:
        try:
            probe(address)
            return
        except OSError as error:
            if not told:
                _tell(channel, ["away", f"Ray does not answer at {address}: {error}"])
                told = True
        begun = time.monotonic()
        if begun >= joining_at:
            joining_at = begun + JOINING_SECONDS
            _tell(channel, ["joining"])
        while (left := RETRY_SECONDS - (time.monotonic() - begun)) > 0:
            readable, _, _ = select.select([channel], [], [], left)
            if readable and not channel.recv(1, socket.MSG_PEEK):
                sys.exit(0)
            if readable:
                # What the worker said waits here until somebody can be told.
                time.sleep(min(left, 0.2))


def _leave(hello: dict[str, Any]) -> None:
    if hello["address"] == "local":
        import ray

        with contextlib.suppress(Exception):
            ray.shutdown()
    # What is left are threads of Ray's that nobody waits for.
    os._exit(0)


def _session() -> str:
    """What names this Ray, and no other: one that is started anew has another name, unless it has kept all it knew."""
    import ray

    return str(ray.get_runtime_context().get_session_name())


# -- speaking ----------------------------------------------------------------------------------------


class Gone(Exception):
    """There is no such foreman: it was never started here, or it is dead."""


async def _serve(channel: socket.socket, hello: dict[str, Any], inbox: messages.Inbox, rest: list[str]) -> None:
    await Envoy(channel, hello, inbox, rest).serve()


class Finished(Exception):
    """Nothing is left to be said to a foreman."""


class Envoy:
    """Between one worker and the foremen that it knows."""

    def __init__(self, channel: socket.socket, hello: dict[str, Any], inbox: messages.Inbox, rest: list[str]) -> None:
        self.channel = channel
        self.inbox = inbox
        self.hello = hello
        self.rest = rest
        self.worker = ""
        self.lines: dict[str, Line] = {}
        self._ended = asyncio.Event()
        #: How many characters of events the worker was told and has not dealt with, and whether it may be told more.
        self._undealt = 0
        self.may_tell = asyncio.Event()
        self.may_tell.set()

    async def serve(self) -> None:
        self.channel.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=self.channel)
        self.tell(["session", await asyncio.to_thread(_session)])
        self.tell(["here"])
        for order in self.rest:
            self._take(order)
        ended = asyncio.create_task(self._ended.wait())
        if self.hello["address"] != "local":
            self._probing = asyncio.create_task(self._probe())
        while True:
            reading = asyncio.ensure_future(reader.read(256 * 1024))
            await asyncio.wait([reading, ended], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await self._writer.drain()
                return
            if not (data := reading.result()):
                await self._say_the_rest()
                return
            for order in self.inbox.feed(data):
                self._take(order)

    async def _probe(self) -> None:
        """End when Ray answers no more."""
        failed = 0
        while failed < PROBES:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                await asyncio.to_thread(probe, self.hello["address"])
                failed = 0
            except OSError as error:
                failed, why = failed + 1, error
        self.end(f"Ray does not answer at {self.hello['address']}: {why}")

    def end(self, why: str) -> None:
        self.tell(["away", why])
        self._ended.set()

    async def _say_the_rest(self) -> None:
        """The worker has left: what it said last is still to be passed on."""
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while time.monotonic() < deadline and any(line.has_unsaid for line in self.lines.values()):
            await asyncio.sleep(0.01)

    def tell(self, message: list[Any], *parts: str) -> None:
        self._writer.write(messages.line(messages.dump(message), *parts))

    def tell_events(self, name: str, cpus: float, events: str) -> None:
        self.tell(["heard", name, cpus, self.worker], events)
        if self.hello.get("deals"):
            self._deal(-len(events))

    def _deal(self, characters: int) -> None:
        """The worker has dealt with so many; it can take more when few are left."""
        self._undealt -= characters
        if self._undealt < WINDOW_CHARACTERS:
            self.may_tell.set()
        else:
            self.may_tell.clear()

    def in_trouble(self, line: "Line", why: str) -> None:
        """The other foremen are none the worse for it, unless it is we who cannot speak with any."""
        self.tell(["trouble", line.name, why])
        others = [each for each in self.lines.values() if each is not line and not each.is_closed]
        if line.troubles >= TROUBLES and all(each.troubles for each in others):
            self.end(why)

    def _take(self, order: str) -> None:
        try:
            self._obey(order)
        except messages.UNREADABLE as error:
            self.tell(["trouble", "", f"What the worker said cannot be read. {type(error).__name__}: {error}"])

    def _obey(self, order: str) -> None:
        head, _, text = order.partition("\t")
        kind, *body = json.loads(head)
        if kind == "open":
            # Under another identity than before everything begins anew.
            worker, name = body
            if worker != self.worker:
                for line in self.lines.values():
                    line.close()
                self.lines, self.worker = {}, worker
            self._line(name, create=True)
        elif kind == "say":
            name, number = body
            self._line(name).say(number, text)
        elif kind == "close" and body[0] in self.lines:
            self.lines.pop(body[0]).finish()
        elif kind == "ping":
            # From this event loop: if it is blocked or stopped the worker has to know.
            self.tell(["pong", *body])
        elif kind == "dealt":
            self._deal(body[0])

    def _line(self, name: str, *, create: bool = False) -> "Line":
        line = self.lines.get(name)
        if line is None or line.is_closed:
            line = self.lines[name] = Line(self, name, create)
        return line


class Line:
    """A foreman, as far as this worker speaks with it."""

    def __init__(self, envoy: Envoy, name: str, create: bool) -> None:
        self.envoy = envoy
        self.name = name
        self.create = create
        self.worker = envoy.worker
        self.incarnation = ""
        self.actor: Any = None
        self.unsaid: asyncio.Queue[tuple[int | None, str]] = asyncio.Queue()
        self._saying = False
        #: How often in a row it could not be spoken with, and what it says is wrong with itself.
        self.troubles = 0
        self._trouble = ""
        #: Why it is gone, in Ray's words.
        self._why = ""
        self._life = asyncio.get_running_loop().create_task(self._live())

    @property
    def is_closed(self) -> bool:
        return self._life.done()

    @property
    def has_unsaid(self) -> bool:
        return not self.is_closed and (self._saying or not self.unsaid.empty())

    def close(self) -> None:
        self._life.cancel()

    def finish(self) -> None:
        """Close it when all has been said."""
        self.unsaid.put_nowait((None, ""))

    def say(self, number: int | None, text: str) -> None:
        self.unsaid.put_nowait((number, text))

    async def _live(self) -> None:
        while (why := await self._converse()) is not None:
            # Whatever is wrong is not known to be its end.
            self.troubles += 1
            self.envoy.in_trouble(self, why)
            await asyncio.sleep(min(TROUBLED_SECONDS * 2 ** (self.troubles - 1), TROUBLED_SECONDS_MOST))

    async def _converse(self) -> str | None:
        """Speak and listen until it is over: None; or it cannot go on like this: why."""
        why, is_gone = None, False
        self._saying = False
        try:
            await self._attach()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._speak())
                both.create_task(self._listen())
        except* Finished:
            pass
        except* Gone:
            if self.create:
                # Whoever asks for it again at once would find it dying still.
                await asyncio.sleep(AGAIN_SECONDS)
            self.envoy.tell(["gone", self.name, self.incarnation, self._why])
            is_gone = True
        except* Exception as errors:
            first = errors.exceptions[0]
            why = f"{type(first).__name__}: {first}"
        return None if is_gone else why

    async def _attach(self) -> None:
        self.actor = await asyncio.to_thread(self._find)
        while True:
            answer = await self._call("speak", messages.say("attach", worker=self.worker))
            if answer is not None:
                break
        try:
            told = messages.hear(answer)
            incarnation, refusal, cpus = told["incarnation"], told.get("refused"), told.get("cpus", 1.0)
        except (ValueError, KeyError) as error:
            incarnation, refusal = self.incarnation, f"what it answers cannot be read ({type(error).__name__}: {error})"
        if self.incarnation and incarnation != self.incarnation:
            raise Gone(self.name)
        self.incarnation = incarnation
        if refusal is not None:
            self._refused(refusal)
        self.envoy.tell(["foreman", self.name, self.incarnation, cpus, told.get("protocol")])

    def _refused(self, why: str) -> None:
        """The worker decides when it tries again; another line is opened then."""
        self.envoy.tell(["refused", self.name, why])
        raise Finished

    def _find(self) -> Any:
        import ray

        namespace = self.envoy.hello["namespace"]
        if not self.create:
            try:
                return ray.get_actor(self.name, namespace)
            except ValueError:
                raise Gone(self.name) from None
        from django_manta.execution.runners.ray.foreman import Foreman

        options: dict[str, Any] = {
            "name": self.name,
            "namespace": namespace,
            "lifetime": "detached",
            "get_if_exists": True,
            # Where it is lost only together with everything else.
            "resources": {"node:__internal_head__": 0.001},
        }
        if self.envoy.hello["runtime_env"]:
            options["runtime_env"] = self.envoy.hello["runtime_env"]
        remote = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=10_000)(Foreman)
        return remote.options(**options).remote(self.name)

    async def _call(self, method: str, text: str, seconds: float = ANSWER_SECONDS) -> str | None:
        """The foreman's answer, or None: it could not be reached, and nobody knows whether it heard."""
        from ray import exceptions

        try:
            return str(await asyncio.wait_for(getattr(self.actor, method).remote(text), seconds))
        except exceptions.ActorUnavailableError:
            await asyncio.sleep(AGAIN_SECONDS)
        except exceptions.RayActorError as error:
            self._why = str(error).strip()[-1000:]
            raise Gone(self.name) from None
        except exceptions.RayTaskError:
            # It answers, and cannot do what it is told: to say it again would not help.
            raise
        except (exceptions.RayError, TimeoutError):
            await asyncio.sleep(AGAIN_SECONDS)
        return None

    async def _speak(self) -> None:
        """
        In the order of the worker's words, one message after the other: what it says meanwhile is the next one. All
        may be said twice.
        """
        while True:
            waiting = [await self.unsaid.get()]
            while not self.unsaid.empty():
                waiting.append(self.unsaid.get_nowait())
            said = list(itertools.takewhile(lambda each: each[1], waiting))
            is_last = len(said) < len(waiting)
            self._saying = True
            try:
                await self._say(said)
            except BaseException:
                if is_last:
                    # What was said is reconciled when we attach again; that this is the end must not be forgotten.
                    self.finish()
                raise
            self._saying = False
            if is_last:
                raise Finished

    async def _say(self, said: list[tuple[int | None, str]]) -> None:
        if not said:
            return
        lines = "\n".join(text for _, text in said)
        while (answer := await self._call("speak", lines)) is None:
            pass
        for (number, _), told in zip(said, answer.split("\n"), strict=True):
            if number is not None:
                self.envoy.tell(["answer", number], told)

    async def _listen(self) -> None:
        while True:
            await self.envoy.may_tell.wait()
            question = messages.say("listen", worker=self.worker, seconds=LISTEN_SECONDS)
            heard = await self._call("listen", question, LISTEN_SECONDS + ANSWER_SECONDS)
            if heard is None:
                # What it had said may be lost: it says again all that it holds for us.
                await self._attach()
                continue
            head, _, events = heard.partition("\t")
            told = messages.hear(head)
            if told.get("refused") == "unknown":
                await self._attach()
            elif "refused" in told:
                self._refused(told["refused"])
            else:
                self.troubles = 0
                if (trouble := told.get("trouble", "")) != self._trouble:
                    self._trouble = trouble
                    self.envoy.tell(["unwell", self.name, trouble])
                self.envoy.tell_events(self.name, told["cpus"], events)
