"""
The foreman: a detached actor that owns the Ray tasks of a cluster's workers, and outlives them.

It is told what to execute (``submit``), hands it to Ray in chunks, hears from the chunks what starts and ends, and
holds every outcome until its worker says that it is ``settled``. When a worker is lost another one has it ``fence``
the dead one's later submissions, asks which of its runs are known here, and has them ``adopt``-ed. All it knows is in
its memory: an incarnation that is gone is known by its name, which no other ever has.

It has no Django and no database. It runs in one event loop, and whatever is said to it may be said twice.
"""

import asyncio
import contextlib
import json
import logging
import math
import os
import secrets
import sys
import time
from collections.abc import Iterable
from typing import Any

from django_manta.execution.durations import Durations
from django_manta.execution.runners.flights import GRACE_SECONDS, STORE_SECONDS
from django_manta.execution.runners.ray import chunk as chunks
from django_manta.execution.runners.ray import living, messages, places
from django_manta.execution.runners.ray.connection import UNREAD_SECONDS, Connection
from django_manta.execution.runners.ray.held import Chunk, Held, Kind, Outbox
from django_manta.execution.runners.ray.intake import Intake

logger = logging.getLogger("django_manta")

#: How much work is put into one Ray task, and how many runs at the most. From one task to the next Ray needs some
#: milliseconds, in which its processor has nothing to do.
CHUNK_SECONDS = 0.15
CHUNK_RUNS = 200

#: What is larger than about 100 kB Ray does not send with the task, but stores somewhere first.
CHUNK_CHARACTERS = 90_000

#: The mates of a run that takes longer than this are taken back and given to others.
SLOW_SECONDS = 0.2

#: What a process wrote before it died has so long to arrive.
LAST_WORDS_SECONDS = 3.0

#: One that was killed has so long to be dead, on a node that may be busy, or cut off.
KILLED_SECONDS = 60.0

#: A process whose connection has ended, and of which Ray says nothing, is looked for on its node: a second time after
#: this, then after twice as long each time.
LOOK_SECONDS, LONGEST_LOOK_SECONDS = 5.0, 60.0

#: What is to be killed is left alone for so long again while the foreman does not read what it has said.
UNREAD_KILL_SECONDS = 1.0

#: So many processes may fail to reach the foreman before a run is refused.
UNHEARD = 3

#: Without work and without anybody who listens the foreman leaves after so long.
LONELY_SECONDS = 60.0

#: How often the cluster is asked how large it is.
COUNT_SECONDS = 5.0

#: And how long it may take to answer.
COUNT_ANSWER_SECONDS = 10.0

#: With so many runs in hand an answer comes so long after the last.
BUSY_RUNS = 50
ANSWER_SECONDS = 0.025

#: Of what a lost worker had so many are told at a time.
LEFT = 1_000

#: How many runs are remembered that were forgotten while their worker did not listen. It may submit them again.
FORGOTTEN = 100_000

#: How many lost workers are remembered, whose submissions are refused.
FENCED = 100_000


class Foreman:
    """The actor. ``speak`` answers at once; ``listen`` when there is something to tell."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = secrets.token_hex(8)
        self.secret = secrets.token_hex(16)
        self.durations = Durations(steady=True)
        self.cpus = 1.0
        self.nodes: list[places.Node] = []
        self.held: dict[str, Held] = {}
        self.chunks: dict[str, Chunk] = {}
        self.outboxes: dict[str, Outbox] = {}
        #: The ended runs of workers without an outbox that are still to be offered to another worker.
        self._abandoned: list[str] = []
        self.intake = Intake()
        #: What is wrong with this foreman, in words, for its workers to tell.
        self.trouble = ""
        self.fenced: dict[str, None] = {}
        #: The runs that the ledger has the outcomes of, and whose worker did not listen when they were forgotten.
        self.forgotten: dict[str, None] = {}
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._listened_at = time.monotonic()
        self._background: set[asyncio.Task[None]] = set()

    # -- what it is told -------------------------------------------------------------------------

    async def speak(self, text: str) -> str:
        """What a worker has to say, a message a line; and the answers."""
        await self._open()
        return "\n".join(map(self._speak, text.split("\n")))

    def _speak(self, text: str) -> str:
        try:
            message = messages.hear(text)
            if message.get("worker") in self.fenced:
                # Its lease was lost, and its runs are another's by now: whatever it says comes too late.
                return self._answer(refused="fenced")
            self._note_sign_of_life(message.get("worker"))
            verb = getattr(self, f"_hear_{message['verb']}", None)
            if verb is None:
                return self._answer(refused=f"unknown verb {message['verb']!r}")
            if message["verb"] == "submit":
                messages.require_own(message)
        except (messages.UnknownProtocol, ValueError, KeyError, AttributeError) as error:
            return self._answer(refused=str(error))
        try:
            answer: str = verb(message)
        except Exception as error:
            # One message of one worker, which nobody else has to suffer for.
            logger.exception("The foreman %s could not do what worker %s said.", self.name, message.get("worker"))
            return self._answer(refused=f"{type(error).__name__}: {error}")
        return answer

    def _note_sign_of_life(self, worker: Any) -> None:
        """Who speaks is there, also if it does not listen for now because it has enough to settle."""
        outbox = self.outboxes.get(worker)
        if outbox is not None:
            outbox.listened_at = time.monotonic()

    def _answer(self, **facts: Any) -> str:
        plain = {"protocol": messages.PROTOCOL, "incarnation": self.incarnation, "cpus": self.cpus}
        if self.trouble:
            plain["trouble"] = self.trouble
        return messages.dump(plain | facts)

    def _hear_attach(self, message: dict[str, Any]) -> str:
        """A worker, or a new envoy of one, begins to listen: it is told all that is held for it."""
        worker = message["worker"]
        self._note_listener(message)
        self.outboxes[worker] = Outbox()
        self._count_kept()
        for held in self.held.values():
            if held.worker == worker:
                self._tell(held)
        return self._answer()

    def _hear_submit(self, message: dict[str, Any]) -> str:
        worker = message["worker"]
        if message["incarnation"] != self.incarnation:
            return self._answer(refused="incarnation")
        common = message["environment"], message["fields"]
        kinds = [Kind(each["options"], common[0], each["alone"], common[1]) for each in message["kinds"]]
        new = []
        try:
            for (number, timeout, run, token, task), claim in zip(message["orders"], message["parts"], strict=True):
                key = messages.key_of(run, token)
                if key in self.held:
                    self._own(self.held[key], worker)
                else:
                    held = self.held[key] = Held(key, run, task, worker, claim, timeout, kinds[number])
                    if key in self.forgotten:
                        # It was executed, and its outcome is in the ledger: it must not be executed again.
                        held.is_kept = True
                        self._end(held, ["ended", key, True, None])
                    else:
                        new.append(held)
        finally:
            # Also if one of them cannot be read: those before it are held here, and nobody would hand them out later.
            self._dispatch(new)
        return self._answer()

    def _hear_settled(self, message: dict[str, Any]) -> str:
        for key in message["keys"]:
            held = self.held.pop(key, None)
            if held is None:
                continue
            if held.timer is not None:
                held.timer.cancel()
            outbox = self.outboxes.get(held.worker)
            if outbox is not None:
                outbox.forget(held)
            else:
                self.forgotten[key] = None
            self.intake.release(held.size, is_listened_for=outbox is not None)
        _keep_latest(self.forgotten, FORGOTTEN)
        return self._answer()

    def _hear_cancel(self, message: dict[str, Any]) -> str:
        for key in message["keys"]:
            held = self.held.get(key)
            if held is not None and not held.end:
                self._cancel(held, *message["doom"])
        return self._answer()

    def _hear_leave(self, message: dict[str, Any]) -> str:
        """A worker that nobody has to tell anything any more. What it leaves behind is kept for whoever adopts it."""
        self._drop_outboxes([message["worker"]])
        return self._answer()

    def _hear_withdraw(self, message: dict[str, Any]) -> str:
        """Give back what Ray has not begun. What shares its chunk is handed out again."""
        import ray

        for key in message["keys"]:
            held = self.held.get(key)
            if held is not None and held.chunk is not None and held.chunk.connection is None:
                held.withdrawn = True
                ray.cancel(held.chunk.ref)
        return self._answer()

    def _hear_wonder(self, message: dict[str, Any]) -> str:
        """Of each run that waits, whether a node could execute it, in words."""
        waiting = [held for key in message["keys"] if (held := self.held.get(key)) is not None and not held.started_at]
        return self._answer(waiting=[[held.key, *places.prospect(held.kind.options, self.nodes)] for held in waiting])

    def _hear_whereabouts(self, message: dict[str, Any]) -> str:
        """Where the words are of each run that has begun and not ended."""
        begun = [held for key in message["keys"] if (held := self.held.get(key)) is not None and held.started_at]
        places = {held.key: held.chunk.log + held.chunk.log_part for held in begun if held.chunk and held.chunk.log}
        return self._answer(places=places)

    def _hear_fence(self, message: dict[str, Any]) -> str:
        """Refuse what a lost worker may still send, and say which of these executions are known."""
        if message["former"]:
            self.fenced[message["former"]] = None
            self._drop_outboxes([message["former"]])
            _keep_latest(self.fenced, FENCED)
        asked = set(message["keys"])
        known = [self.held[key] for key in message["keys"] if key in self.held]
        # What else it had may be settled already, and nobody was left to say so: the ledger knows.
        left = [each.key for each in self.held.values() if _is_left(each, message["former"], asked)]
        return self._answer(
            known=[[held.key, held.claim, held.kind.fields, held.timeout, held.kind.alone] for held in known],
            left=left[:LEFT],
        )

    def _hear_adopt(self, message: dict[str, Any]) -> str:
        """
        A worker names what the ledger says is its own: when it has taken it over, and again and again, in case that
        something which one of us said was lost. It is told what it does not know, and which of it is not known here;
        and which outcomes of workers that do not listen are kept here, so that it looks whether the ledger has them.
        """
        missing = []
        for key in message["keys"]:
            held = self.held.get(key)
            if held is None:
                missing.append(key)
            else:
                self._own(held, message["worker"])
        return self._answer(missing=missing, left=self._next_abandoned())

    def _next_abandoned(self) -> list[str]:
        """At most LEFT of them; each is named once before any is named again."""
        if not self._abandoned:
            self._abandoned = [key for key in self.held if self._is_abandoned(key)]
        keys = [key for key in self._abandoned[:LEFT] if self._is_abandoned(key)]
        del self._abandoned[:LEFT]
        return keys

    def _is_abandoned(self, key: str) -> bool:
        held = self.held.get(key)
        return held is not None and bool(held.end) and held.worker not in self.outboxes

    def _own(self, held: Held, worker: str) -> None:
        if held.worker != worker:
            former, held.worker = held.worker, worker
            self.intake.keep(held.size, is_listened_for=worker in self.outboxes)
            self.intake.release(held.size, is_listened_for=former in self.outboxes)
            self._tell(held)
        elif held.end:
            self._tell(held)

    async def listen(self, text: str) -> str:
        message = messages.hear(text)
        worker = message["worker"]
        outbox = self.outboxes.get(worker)
        if worker in self.fenced or outbox is None:
            return self._answer(refused="fenced" if worker in self.fenced else "unknown")
        self._note_listener(message)
        events = await outbox.take(message["seconds"], ANSWER_SECONDS if len(self.held) > BUSY_RUNS else 0.0)
        self._note_listener(message)
        return f"{self._answer()}\t{messages.write_events(events)}"

    def _note_listener(self, message: dict[str, Any]) -> None:
        """Without anybody who could submit something this foreman leaves, and another release can take its name."""
        if message.get("protocol") == messages.PROTOCOL:
            self._listened_at = time.monotonic()

    def _tell(self, held: Held) -> None:
        """How it stands with a run."""
        outbox = self.outboxes.get(held.worker)
        if outbox is None:
            return
        if held.end:
            outbox.ended(held)
        elif held.started_at is not None:
            outbox.started(held)

    # -- life ------------------------------------------------------------------------------------

    async def _open(self) -> None:
        async with self._opening:
            if self._server is not None:
                return
            import ray

            tls = chunks.server_context() if chunks.uses_tls() else None
            self._host = ray.util.get_node_ip_address()
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: Connection(self), self._host, 0, ssl=tls)
            self._port = self._server.sockets[0].getsockname()[1]
            self._remote = ray.remote(max_retries=0, num_cpus=1)(chunks.execute)
            await self._count()
            self._in_background(self._keep())

    async def _keep(self) -> None:
        """Know how large the cluster is, and leave when nobody needs a foreman any more."""
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            await self._count()
            try:
                self._clear_away()
            except Exception:
                logger.exception("The foreman %s could not clear away.", self.name)
            if not self.held and time.monotonic() - self._listened_at > LONELY_SECONDS:
                # It holds nothing: whoever comes next starts another one.
                os._exit(0)

    def _clear_away(self) -> None:
        """Forget whoever listens no more, and what nobody has to be told."""
        now = time.monotonic()
        self._drop_outboxes([name for name, box in self.outboxes.items() if now - box.listened_at > LONELY_SECONDS])
        kept = [held.key for held in self.held.values() if held.is_kept and held.worker not in self.outboxes]
        self._hear_settled({"keys": kept})

    def _drop_outboxes(self, workers: Iterable[str]) -> None:
        dropped = [self.outboxes.pop(worker, None) for worker in workers]
        if any(dropped):
            self._count_kept()

    def _count_kept(self) -> None:
        kept = abandoned = 0
        for held in self.held.values():
            if held.worker in self.outboxes:
                kept += held.size
            else:
                abandoned += held.size
        self.intake.count(kept, abandoned)

    async def _count(self) -> None:
        import ray

        try:
            nodes = await asyncio.wait_for(asyncio.to_thread(ray.nodes), COUNT_ANSWER_SECONDS)
            alive = [node for node in nodes if node["Alive"]]
            self.nodes = [places.Node(node["Resources"], node.get("Labels") or {}) for node in alive]
            self.cpus = max(1.0, sum(node.resources.get("CPU", 0.0) for node in self.nodes))
        except Exception as error:
            words = (
                f"Ray does not say how large the cluster is ({type(error).__name__}: {_words(error)}). Until it does, "
                f"{self.cpus:g} processors are reckoned with."
            )
            if not self.trouble:
                logger.warning("%s", words)
            self.trouble = self.trouble or words
        else:
            self.trouble = ""

    def _in_background(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- handing out -----------------------------------------------------------------------------

    def _dispatch(self, new: Iterable[Held]) -> None:
        """Short runs of a kind share a chunk; what is not known to be short, or travels alone, has one of its own."""
        short: dict[int, list[Held]] = {}
        for held in new:
            if held.kind.alone or self.durations.of(held.task) is None:
                self._launch([held])
            else:
                short.setdefault(id(held.kind), []).append(held)
        for alike in short.values():
            self._launch_chunks(alike)

    def _launch_chunks(self, alike: list[Held]) -> None:
        most = CHUNK_RUNS
        if sum(chunk.connection is None for chunk in self.chunks.values()) < self.cpus:
            # Not all into one: every processor shall have something to do.
            most = min(most, math.ceil(len(alike) / self.cpus))
        together: list[Held] = []
        seconds, characters = 0.0, 0
        for held in alike:
            seconds += self.durations.of(held.task) or 0.0
            characters += len(held.claim)
            if together and (len(together) >= most or seconds > CHUNK_SECONDS or characters > CHUNK_CHARACTERS):
                self._launch(together)
                together, seconds, characters = [], self.durations.of(held.task) or 0.0, len(held.claim)
            together.append(held)
        self._launch(together)

    def _launch(self, together: list[Held]) -> None:
        chunk = Chunk(secrets.token_hex(8), {held.key: held for held in together}, len(together) == 1)
        self.chunks[chunk.id] = chunk
        for held in together:
            held.chunk = chunk
        kind = together[0].kind
        more = f"+{len(together) - 1}" if len(together) > 1 else ""
        order = {
            "protocol": messages.PROTOCOL,
            "chunk": chunk.id,
            "foreman": {"host": self._host, "port": self._port, "secret": self.secret, "tls": chunks.uses_tls()},
            "environment": kind.environment,
            "fields": kind.fields,
            "keys": list(chunk.held),
        }
        payload = messages.to_bytes("\t".join((messages.dump(order), *(held.claim for held in together))))
        try:
            chunk.ref = self._remote.options(name=f"manta:{together[0].run}{more}", **kind.options).remote(payload)
            chunk.answer = asyncio.ensure_future(chunk.ref)
        except Exception as error:
            # Ray does not take what they ask for. It is theirs to know, and nobody else's trouble.
            del self.chunks[chunk.id]
            for held in together:
                self._end(held, ["refused", held.key, f"{type(error).__name__}: {_words(error)}"])
            return
        self._in_background(self._watch(chunk))

    async def _watch(self, chunk: Chunk) -> None:
        """Wait for the end of a Ray task, and see to what it did not execute."""
        try:
            await self._attend(chunk)
        except Exception as error:
            logger.exception("The foreman %s could not conclude a task of Ray's.", self.name)
            self.chunks.pop(chunk.id, None)
            for held in _left_of(chunk):
                words = f"The foreman could not find out what became of it. {type(error).__name__}: {error}"
                self._end(held, ["lost", held.key, words, held.kind.alone])

    async def _attend(self, chunk: Chunk) -> None:
        error, undelivered = await self._answer_of(chunk)
        if chunk.connection is None and not undelivered:
            # What it said may wait to be read: Ray may be quicker than we are.
            await self._hear_out(chunk, LAST_WORDS_SECONDS if error is None else UNREAD_SECONDS)
        if chunk.connection is not None:
            # Whatever it wrote comes before the end of its connection. And of a process that was to be killed Ray says
            # at once that it is over, though it may be alive: until its connection has ended nobody else may begin.
            to_be_killed = chunk.killed or chunk.fault
            await self._hear_out(chunk, KILLED_SECONDS if to_be_killed else LAST_WORDS_SECONDS)
        try:
            for line in messages.Inbox().feed(undelivered):
                self.heed(chunk, *line.split("\t"))
        except Exception as garbled:
            chunk.is_garbled = True
            chunk.fault = chunk.fault or f"It returned an unreadable message ({type(garbled).__name__}: {garbled})."
        del self.chunks[chunk.id]
        if chunk.connection is not None:
            chunk.connection.chunks.discard(chunk.id)
        left = _left_of(chunk)
        if left:
            self._bury(chunk, left, error)

    async def _answer_of(self, chunk: Chunk) -> tuple[Exception | None, bytes]:
        """What Ray says in the end, and what a process could tell by no other way; unless Ray does not know."""
        assert chunk.answer is not None
        try:
            return None, await chunk.answer
        except asyncio.CancelledError:
            if not chunk.fault:
                raise
            return None, b""
        except Exception as error:
            return error, b""

    async def _hear_out(self, chunk: Chunk, seconds: float) -> None:
        """Wait until a process has said all it has to say; longer if it is we who do not read."""
        # What a process says that was not heard yet may come by any connection that is not read now. It waits there
        # already, so it is enough that each of them is read once.
        waits = self.intake.waits
        while not chunk.over.is_set():
            try:
                await asyncio.wait_for(chunk.over.wait(), seconds)
            except TimeoutError:
                connection = chunk.connection
                if not (waits if connection is None else connection.is_waiting):
                    return
                # Those that are read since then have that time once more.
                waits &= self.intake.waits

    # -- the dead --------------------------------------------------------------------------------

    def condemn(self, chunk: Chunk, fault: str) -> None:
        """Its process did what no process of ours does: kill it, and take it for one that died."""
        import ray

        if chunk.id in self.chunks and not chunk.fault:
            logger.warning("Ending the process %s on Ray. %s", chunk.name, fault)
            chunk.fault = fault
            with contextlib.suppress(Exception):
                ray.cancel(chunk.ref, force=True)

    def miss(self, chunk: Chunk) -> None:
        """The connection with its process has ended. If the process is dead, Ray usually says so."""
        self._in_background(self._look_for(chunk))

    async def _look_for(self, chunk: Chunk) -> None:
        pause = LOOK_SECONDS
        await asyncio.sleep(LAST_WORDS_SECONDS)
        while chunk.id in self.chunks and chunk.answer is not None and not chunk.answer.done():
            if await living.is_dead(chunk):
                self.condemn(chunk, "Its process on Ray died, and left a process behind.")
                chunk.answer.cancel()
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_LOOK_SECONDS)

    def _bury(self, chunk: Chunk, left: list[Held], error: Exception | None) -> None:
        """A Ray task is over and has not executed all it was given."""
        from ray import exceptions

        started = [held for held in left if held.started_at is not None]
        unstarted = [held for held in left if held.started_at is None]
        if not chunk.fault:
            if isinstance(error, exceptions.RayTaskError | exceptions.RuntimeEnvSetupError) and not started:
                for held in unstarted:
                    self._end(held, ["refused", held.key, _words(error)])
                return
            if isinstance(error, exceptions.TaskCancelledError) and not started and not chunk.killed:
                # Cancelled before it began, for the sake of one of them.
                self._return_or_dispatch(unstarted)
                return
            if (words := _how_lost(error)) is not None:
                for held in left:
                    self._end(held, ["lost", held.key, words, held.kind.alone])
                return
        presumed = not started and not chunk.killed
        if presumed:
            # It died before it could say what it was at: of the first of its orders, most likely.
            started, unstarted = unstarted[:1], unstarted[1:]
        for held in started:
            self._end(held, ["died", held.key, self._evidence(chunk, held, error, presumed)])
        for held in unstarted:
            if chunk.is_garbled:
                # After a message that cannot be read its start would not have been heard.
                self._end(held, ["lost", held.key, chunk.fault, held.kind.alone])
            else:
                # Others may have room for it, and whoever was killed in its company is none of its business.
                self._end(held, ["returned", held.key])

    def _evidence(self, chunk: Chunk, held: Held, error: Exception | None, presumed: bool) -> dict[str, Any]:
        from ray import exceptions

        words = chunk.fault or "Its process on Ray died."
        if isinstance(error, exceptions.OutOfMemoryError):
            words = f"Ray ended its process for lack of memory. {_words(error)}"
        elif isinstance(error, exceptions.RayTaskError):
            words = f"Its process on Ray failed: {_words(error)}"
        return {
            "pid": chunk.pid,
            "executor": chunk.name,
            "log_ref": chunk.log + chunk.log_part if chunk.log and not presumed else "",
            "killed": chunk.killed,
            "doomed": held.doomed if chunk.killed_for is held else None,
            "presumed": presumed,
            "seconds": 0.0 if held.started_at is None else time.monotonic() - held.started_at,
            "words": words,
            # Of a run that never said that it began, none of this is.
            "output": "" if presumed else chunk.output,
        }

    def _return_or_dispatch(self, unstarted: list[Held]) -> None:
        again = []
        for held in unstarted:
            held.chunk = None
            if held.unwanted or held.withdrawn:
                self._end(held, ["returned", held.key])
            elif held.key in self.held:
                again.append(held)
        self._dispatch(again)

    # -- what chunks tell ------------------------------------------------------------------------

    def heed(self, chunk: Chunk, kind: str, *parts: str) -> None:
        if kind == "next":
            # The start first: it has begun, also if the end of the one before cannot be read.
            self._hear_of_start(chunk, *parts[:2])
            self._hear_of_end(chunk, *parts[2:])
        elif kind == "started":
            self._hear_of_start(chunk, *parts)
        elif kind == "ended":
            self._hear_of_end(chunk, *parts)
        elif kind == "returned":
            self._hear_of_return(chunk, *parts)
        elif kind == "given back":
            given_back = [held for key in json.loads(parts[0]) if (held := chunk.held.pop(key, None)) is not None]
            chunk.asked_back = False
            if chunk.connection is None:
                given_back = self._unheard(given_back, *parts[1:])
            self._return_or_dispatch(given_back)
        elif kind == "done":
            if chunk.connection is not None and chunk.is_alone:
                # Who executes one that takes long waits for this, and otherwise tells it by way of Ray. Others do not:
                # what a process has not sent yet is lost if it dies without having read what was said to it.
                chunk.connection.send(["heard", chunk.id])
            chunk.over.set()
        elif kind == "output":
            chunk.overhear(json.loads(parts[0]))
        else:
            raise ValueError(f"no message begins with {kind[:40]!r}")

    def _hear_of_start(self, chunk: Chunk, key: str, log_part: str) -> None:
        chunk.log_part = log_part
        held = chunk.held.get(key)
        if held is not None:
            self._started(chunk, held)

    def _hear_of_return(self, chunk: Chunk, key: str) -> None:
        """Its value is being stored, which its time limit is not for; but what hangs meanwhile must end as well."""
        held = chunk.held.get(key)
        if held is not None and held.timer is not None and held.doomed and held.doomed[0] == "TIMED_OUT":
            held.timer.cancel()
            words = f"Its task had returned, but its value was not stored within {STORE_SECONDS:g} s."
            held.doomed = "TIMED_OUT", words
            held.timer = asyncio.get_running_loop().call_later(STORE_SECONDS, self._kill, held)

    def _hear_of_end(self, chunk: Chunk, key: str, seconds: str, is_kept: str, event: str) -> None:
        messages.check_end(event, key)
        held = chunk.held.get(key)
        if held is not None:
            held.is_kept = bool(is_kept)
            if seconds:
                self.durations.note(held.task, float(seconds))
            self._ended(held, event)

    def _unheard(self, given_back: list[Held], why: str = "") -> list[Held]:
        """Of what a process gave back because it could not speak with us: what is to be tried again."""
        again = []
        for held in given_back:
            held.unheard += 1
            if held.unheard < UNHEARD:
                again.append(held)
            else:
                words = f"No process of Ray's could reach the foreman at {self._host}:{self._port}. {why}"
                self._end(held, ["refused", held.key, words.strip()])
        return again

    def _started(self, chunk: Chunk, held: Held) -> None:
        held.started_at = time.monotonic()
        chunk.head, chunk.output = held, ""
        if held.timeout is not None:
            held.doomed = "TIMED_OUT", f"The task ran longer than its timeout of {held.timeout:g} s."
            delay = held.timeout + GRACE_SECONDS
            held.timer = asyncio.get_running_loop().call_later(delay, self._kill, held)
        if held.unwanted:
            self._cancel(held, "CANCELLED", "It was cancelled.")
        self._tell(held)

    def _end(self, held: Held, event: list[Any]) -> None:
        self._ended(held, messages.dump(event))

    def _ended(self, held: Held, event: str) -> None:
        if held.timer is not None:
            held.timer.cancel()
        held.end = event
        if self.held.get(held.key) is held:
            self.intake.keep(sys.getsizeof(event) - held.size, is_listened_for=held.worker in self.outboxes)
            held.size = sys.getsizeof(event)
        if held.chunk is not None:
            held.chunk.held.pop(held.key, None)
            held.chunk = None
        self._tell(held)

    def look_at(self, chunk: Chunk) -> None:
        """Whether the run that a chunk of many is at takes too long for those behind it."""
        head = chunk.head
        if len(chunk.held) < 2 or chunk.id not in self.chunks:
            return
        delay = SLOW_SECONDS
        if head is not None and head.started_at is not None and not head.end:
            delay -= time.monotonic() - head.started_at
            if delay <= 0:
                self._take_back_behind(chunk, head, head.started_at)
                return
        asyncio.get_running_loop().call_later(max(delay, 0.01), self.look_at, chunk)

    def _take_back_behind(self, chunk: Chunk, head: Held, started_at: float) -> None:
        if chunk.asked_back or chunk.connection is None:
            return
        self.durations.note(head.task, time.monotonic() - started_at)
        chunk.asked_back = True
        chunk.connection.send(["take back"])

    # -- ending what runs ------------------------------------------------------------------------

    def _cancel(self, held: Held, outcome: str, reason: str) -> None:
        """Raise inside it, and kill its process if that does not end it in time."""
        import ray

        chunk = held.chunk
        if chunk is None:
            return
        if held.started_at is None:
            held.unwanted = True
            if chunk.connection is None:
                # Ray has not begun it. Its mates, if it has any, are handed out again.
                ray.cancel(chunk.ref)
            else:
                chunk.connection.send(["interrupt", held.key, outcome, reason])
        elif held.doomed is None or held.doomed[0] == "TIMED_OUT":
            # Its time limit dooms it from the start, and must not keep anybody from ending it sooner.
            held.doomed = outcome, reason
            if held.timer is not None:
                held.timer.cancel()
            held.timer = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._kill, held)
            if chunk.connection is not None:
                chunk.connection.send(["interrupt", held.key, outcome, reason])

    def _kill(self, held: Held) -> None:
        import ray

        chunk = held.chunk
        if chunk is None or held.end:
            return
        if chunk.connection is not None and chunk.connection.is_waiting:
            # It may have ended long ago, and said so.
            held.timer = asyncio.get_running_loop().call_later(UNREAD_KILL_SECONDS, self._kill, held)
        else:
            chunk.killed_for = held
            # Ray says at once that it is cancelled; the end of its connection says when it is.
            ray.cancel(chunk.ref, force=True)


def _keep_latest(kept: dict[str, None], most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]


def _is_left(held: Held, former: str, asked: set[str]) -> bool:
    return bool(former and held.end) and held.worker == former and held.key not in asked


def _left_of(chunk: Chunk) -> list[Held]:
    return [held for held in chunk.held.values() if held.chunk is chunk and not held.end]


def _how_lost(error: Exception | None) -> str | None:
    """How a chunk was lost, in words; None if it was not: its process died, or was killed."""
    from ray import exceptions

    if error is None:
        # It did what it was given, or some of it, and was not heard.
        return "The connection with the process that executed it broke."
    if isinstance(
        error,
        exceptions.WorkerCrashedError
        | exceptions.OutOfMemoryError
        | exceptions.RayTaskError
        | exceptions.TaskCancelledError,
    ):
        return None
    return f"{type(error).__name__}: {_words(error)}"


def _words(error: Exception) -> str:
    """The end of what an exception says: the cause, where Ray puts it."""
    words = str(error).strip()[-2000:]
    if messages.UnknownProtocol.__name__ in words:
        words += (
            " A node of Ray has another version of django-manta than the head node. Install the same on all of them."
        )
    return words
