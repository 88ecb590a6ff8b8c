"""
The runner ``ray``: this worker's runs in the hands of foremen on a Ray cluster.

What is claimed is submitted to the foreman of this release (home) through the envoy; what the foreman tells comes
back through the loop's selector. Before anything is given to a foreman its name and incarnation are written to the
worker's row: whoever finds this worker lost knows whom to ask. A Ray that is away costs time: the lease is renewed,
outcomes wait at the foreman, and nothing more is claimed.
"""

import hashlib
import json
import logging
import os
import selectors
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

from django_manta import resources
from django_manta.conf import Config
from django_manta.execution.admission import backend_of, max_losses_of, refuse, resolve, resolve_signed
from django_manta.execution.durations import Durations
from django_manta.execution.runners.flights import Died, Flight
from django_manta.execution.runners.ray import messages
from django_manta.execution.runners.ray.envoys import Envoy
from django_manta.ledger import Claimed, Ledger
from django_manta.states import Outcome, may_start_again
from django_manta.text import clean
from django_manta.worker import troubles
from django_manta.worker.adoption import Adoption
from django_manta.worker.dispatch import Appetite
from django_manta.worker.elsewhere import Elsewhere
from django_manta.worker.hosting import Host
from django_manta.worker.losses import lost
from django_manta.worker.questions import FOREMAN_SECONDS, Question, Questions, Then
from django_manta.worker.waiting import TOLD, Waiting

logger = logging.getLogger("django_manta")

#: Short runs: so much work may be on Ray for each of its processors, so that it never waits for the next claim.
WINDOW_SECONDS = 0.25

#: So much work is claimed at a time, where runs are short: what is submitted together can be executed together.
HANDFUL_SECONDS = 0.15

#: A foreman keeps what is settled so much longer, and hears of many at a time.
SETTLED_SECONDS = 0.05

#: With outcomes of more characters that are not settled yet no more events are asked for; the envoy is told at the
#: latest after so many that they were dealt with (fewer than envoy.WINDOW_CHARACTERS).
UNSETTLED_CHARACTERS = 32 * 1024 * 1024
DEALT_CHARACTERS = 1024 * 1024

#: An outcome of fewer characters is not counted.
LIGHT_CHARACTERS = 4 * 1024

#: How often each foreman is told which runs the ledger says are ours there, in case that something was lost.
ROLL_CALL_SECONDS = 5.0

#: A foreman that cannot be started is tried again so soon, then half as often each time, up to so long; and after so
#: many times people are told.
OPEN_SECONDS, OPEN_SECONDS_MOST = 0.5, 30.0
OPEN_TIMES = 3

#: A foreman that refuses this worker is asked again after so long.
REFUSED_SECONDS = 30.0

#: What Ray could not begin is told for so long: longer than a run that was given back for it waits.
UNBEGUN_SECONDS = 90.0
UNBEGUN_CHARACTERS = 500


@dataclass(slots=True, eq=False)
class Abroad:
    """A run that a foreman has, or is about to get."""

    flight: Flight
    #: The name of the execution there.
    key: str
    foreman: str
    incarnation: str
    alone: bool


class OnRay(Elsewhere):
    """See hosting.Runner."""

    def __init__(self, host: Host, selector: selectors.BaseSelector, backend: Any, name_of_settings: str) -> None:
        config: Config = backend.config
        given = config.ray
        self.namespace: str = given["NAMESPACE"]
        is_local = given["ADDRESS"] == "local"
        super().__init__("local" if is_local else f"{given['ADDRESS']}/{self.namespace}")
        self.host = host
        self.config = config
        self.address: str = given["ADDRESS"]
        #: A Ray of our own ends with us.
        self.outlives_worker = not is_local
        self.environment = {"settings": name_of_settings, "path": _importable()}
        self.home = _name_of_foreman(config, self.environment, backend.seal.fingerprint)
        default = given["RUNTIME_ENV"]
        self.envoy = Envoy(
            selector,
            {
                "address": self.address,
                "namespace": self.namespace,
                "num_cpus": given["NUM_CPUS"],
                "runtime_env": config.runtime_envs.get(default, {}),
                # We say which events we have dealt with: it need not tell us more than we can take.
                "deals": True,
            },
            on_message=self._hear,
            on_gone=self._envoy_gone,
        )
        self.durations = Durations(steady=True)
        self.cpus = 1.0
        self.abroad: dict[int, Abroad] = {}
        #: How many there are of each task that ask for something special and have not begun.
        self.queued: Counter[str] = Counter()
        #: Heard to have ended, by whom, and under which key; the foreman keeps them until the ledger has them.
        self.unsettled: dict[int, tuple[str, str]] = {}
        #: How many characters the larger ones of these have, by token, and of what we were told since the envoy heard
        #: that we dealt with it.
        self._weights: dict[int, int] = {}
        self._undealt = 0
        #: Foremen of which an event could not be read, nor whose it was; that is said once.
        self._garbled: set[str] = set()
        #: The foremen that can be spoken to, by name, and their incarnations.
        self.reached: dict[str, str] = {}
        self.adoption = Adoption(self, backend)
        self.waiting = Waiting(self, given["PENDING_SECONDS"])
        self._worker = ""
        self._introduced = False
        self.questions = Questions()
        #: The last question to each foreman which runs of ours it has.
        self._roll_calls: dict[str, int] = {}
        #: The foremen that refuse this worker: why, and when to try again.
        self.refusals: dict[str, tuple[str, float]] = {}
        #: The protocols of foremen, and the runs that one of another release told of in words that cannot be read here.
        self._protocols: dict[str, int | None] = {}
        self._unread: dict[int, str] = {}
        #: What Ray said last when it could not begin a run, and when.
        self._unbegun: tuple[str, float] | None = None
        #: What each foreman is to be told that it need not keep any longer.
        self._told: dict[str, list[str]] = {}
        self._say_settled_at: float | None = None
        self._roll_call_at = 0.0
        #: When to try again to start a foreman, and how often that has failed.
        self._open_at: float | None = None
        self._open_failed = 0

    @property
    def words(self) -> str:
        return f"Ray at {self.address}"

    @property
    def slots(self) -> int:
        most: int = self.config.ray["MAX_IN_FLIGHT"]
        return most

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        self.envoy.start()
        self._introduce()

    def _introduce(self) -> None:
        """Say who we are: an envoy that has just been started, or under which identity we begin anew."""
        self._worker, self._introduced = self.host.id, True
        self._open()

    def _open(self) -> None:
        """Find the foreman of this release, or start it. It answers by being found."""
        self.questions.add(self.home, _ignore)
        self.envoy.send(["open", self._worker, self.home])

    def interrupt(self, kill_at: float) -> None:
        if self.outlives_worker:
            return
        for name, keys in self._by_foreman().items():
            self.say(name, "cancel", keys=keys, doom=[Outcome.INTERRUPTED.value, "The worker was stopped."])

    def kill(self) -> None:
        pass

    def drop(self) -> None:
        """Our lease is lost. What is on Ray goes on, for whoever adopts it: perhaps for us, under another name."""
        if not self.outlives_worker:
            # Nobody else can reach a Ray of our own, and what it executes is done again elsewhere.
            self.envoy.restart()
        self.backlog.clear()
        self.abroad.clear()
        self.queued.clear()
        self.unsettled.clear()
        self._weights.clear()
        self.reached.clear()
        self.known.clear()
        self._told.clear()
        self.adoption.forget()
        self.waiting.forget()
        self.questions.clear()
        self.refusals.clear()

    def close(self) -> None:
        self._flush_settled()
        for name in self.reached:
            self.say(name, "leave")
        self.envoy.close()

    # -- the path of a run -----------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return bool(
            self.answers(self.home)
            and self.recorded
            and self.place.ray
            and self._worker == self.host.id
            and not self.envoy.is_clogged
        )

    def answers(self, name: str) -> bool:
        """Whether a foreman can be told something at present."""
        return name in self.reached and name not in self.questions.silent

    def may_ask(self, name: str) -> bool:
        """Whether it is worth asking: what is said before the driver has joined Ray only piles up."""
        _, again_at = self.refusals.get(name, ("", 0.0))
        return self.envoy.has_joined and time.monotonic() >= again_at

    @property
    def is_busy(self) -> bool:
        return bool(self.abroad)

    def appetite(self, queues: Sequence[str], now: float) -> list[Appetite]:
        if not self.is_ready or self.stopping or not queues:
            return []
        window = self._window()
        waiting = self.queued.total()
        free = min(window + waiting, self.slots) - len(self.abroad) - len(self.backlog)
        # What waits for a GPU must not keep from the others what they need. Of a task of which many wait already no
        # more are claimed: Ray's autoscaler sees the demand.
        ahead = self.config.ray["AHEAD"]
        enough = tuple(task for task, number in self.queued.items() if number >= ahead) if waiting >= ahead else ()
        # Not for a run or two, where runs are short: a claim costs as much for one as for twenty.
        return [Appetite(free, queues, not_tasks=enough)] if free >= max(1, self._handful(window)) else []

    def _window(self) -> int:
        given = self.config.ray
        window = int(self.cpus) + given["AHEAD"]
        if self.durations.overall is not None:
            window = max(window, int(self.cpus * WINDOW_SECONDS / max(self.durations.overall, 1e-6)))
        return int(min(window, given["MAX_IN_FLIGHT"]))

    def _handful(self, window: int) -> int:
        overall = self.durations.overall
        return 1 if overall is None else min(window // 4, int(HANDFUL_SECONDS / max(overall, 1e-6)))

    def dispatch(self) -> None:
        """Everything that waits, in one message."""
        if self.backlog and self.is_ready:
            flights = list(self.backlog)
            self.backlog.clear()
            self._submit(flights, self.reached[self.home])

    def _submit(self, flights: list[Flight], incarnation: str) -> None:
        kinds: list[dict[str, Any]] = []
        places: dict[tuple[int, bool], int] = {}
        orders, claims = [], []
        for flight in flights:
            claim = flight.claim
            try:
                options, special = _needs(backend_of(claim.backend).config, claim)
            except Exception as refusal:
                # Its task, or the environment that it asks for, is not known to this release.
                self._remove(claim.token)
                self.host.settle(flight, refuse(claim, refusal, "ray"))
                continue
            alone = special or claim.suspect or bool(claim.losses or claim.crashes)
            # What was found for one is the same object for all that ask for the same.
            place = places.setdefault((id(options), alone), len(kinds))
            if place == len(kinds):
                kinds.append({"options": options, "alone": alone})
            run = claim.id.hex
            orders.append([place, flight.timeout, run, claim.token, claim.task])
            claims.append(messages.write_claim(claim))
            self._add(Abroad(flight, messages.key_of(run, claim.token), self.home, incarnation, alone))
        if orders:
            self.say(
                self.home,
                "submit",
                *claims,
                incarnation=incarnation,
                environment=self.environment,
                kinds=kinds,
                fields=messages.FIELDS,
                orders=orders,
            )
            self.host.sent(flights)

    def _add(self, here: Abroad) -> None:
        claim = here.flight.claim
        self._remove(claim.token)
        self.abroad[claim.token] = here
        if here.alone and here.flight.started_at is None:
            self.queued[claim.task] += 1

    def _remove(self, token: int) -> Abroad | None:
        here = self.abroad.pop(token, None)
        if here is not None and here.flight.started_at is None:
            self._dequeue(here)
        return here

    def _dequeue(self, here: Abroad) -> None:
        """It has begun, or never will."""
        task = here.flight.claim.task
        if here.alone and self.queued[task] > 0:
            self.queued[task] -= 1
            if not self.queued[task]:
                del self.queued[task]

    def rest(self, patience: float) -> float:
        return patience

    def tend(self, now: float) -> float | None:
        times = [self.envoy.tend(now)]
        if self.envoy.is_up and (not self._introduced or self._worker != self.host.id):
            self._introduce()
        if self._told:
            self._say_settled_at = self._say_settled_at or now + SETTLED_SECONDS
            if now >= self._say_settled_at:
                self._flush_settled()
        self._take_more()
        if now >= self._roll_call_at:
            self._roll_call_at = now + ROLL_CALL_SECONDS
            self._call_the_roll()
        if self._open_at is not None and now >= self._open_at:
            self._open_at = None
            self._open()
        for name in self.questions.look(now):
            logger.warning("%s", self._silence(name))
        times += [self._say_settled_at, self.adoption.tend(now), self.waiting.tend(now), self._open_at]
        times.append(self._roll_call_at)
        return min((due for due in times if due is not None), default=None)

    def cancel(self, flight: Flight) -> list[Flight]:
        token = flight.claim.token
        if flight in self.backlog:
            self.backlog.remove(flight)
            return [flight]
        if token in self.abroad and self.answers(self.abroad[token].foreman):
            # Otherwise it is said at the next look.
            name = self.abroad[token].foreman
            self.say(name, "cancel", keys=[_key(flight.claim)], doom=[Outcome.CANCELLED.value, "It was cancelled."])
        return []

    def note(self, task: str, seconds: float) -> None:
        self.durations.note(task, seconds)

    def settled(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            here = self._remove(token)
            told = (here.foreman, here.key) if here is not None else None
            told = self.unsettled.pop(token, told)
            self._weights.pop(token, None)
            if told is not None:
                self._told.setdefault(told[0], []).append(told[1])

    def _take_more(self) -> None:
        """Have the envoy ask for more events, unless too much of what it told is not settled."""
        if self._undealt < DEALT_CHARACTERS:
            return
        # What the database refuses is tried again and again, and nothing else waits for it.
        weights = [weight for token, weight in self._weights.items() if not self.host.is_put_aside(token)]
        if sum(weights) < UNSETTLED_CHARACTERS:
            self.envoy.send(["dealt", self._undealt])
            self._undealt = 0

    def _flush_settled(self) -> None:
        self._say_settled_at = None
        if not self._told:
            return
        told, self._told = self._told, {}
        for name, keys in told.items():
            self.say(name, "settled", keys=keys)
        busy = {each.foreman for each in self.abroad.values()} | {name for name, _ in self.unsettled.values()}
        for name in told.keys() - busy - {self.home}:
            # What another release left behind is collected.
            self.envoy.send(["close", name])
            self.reached.pop(name, None)

    def _by_foreman(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for here in self.abroad.values():
            found.setdefault(here.foreman, []).append(here.key)
        return found

    # -- the database ----------------------------------------------------------------------------

    def unknown(self, executions: list[tuple[UUID, int]]) -> list[tuple[UUID, int]]:
        """A claim, or an adoption, whose answer was lost: the foremen know whether they have it."""
        self.adoption.ask_about_our_own([each for each in executions if each[1] not in self.unsettled])
        return []

    def talk(self, ledger: Ledger, now: float) -> float | None:
        if self._worker != self.host.id:
            return None
        if not self.recorded and ledger.know_foremen(self._worker, self.known, self.place):
            self.recorded = True
        self.waiting.talk(ledger, self._worker, self.troubles(now))
        return self.adoption.talk(ledger, now)

    def troubles(self, now: float) -> dict[str, str]:
        """What keeps this worker, or some of the runs that it looks after, from going on (see troubles.py)."""
        found = {}
        for name in [*self.questions.silent, *self.refusals]:
            key = troubles.CLAIMS_NOTHING if name == self.home else troubles.of_foreman(name)
            found[key] = self._silence(name) if name in self.questions.silent else self._refusal(name)
        if self.away:
            found[troubles.CLAIMS_NOTHING] = self.away
        if self._unbegun is not None and now - self._unbegun[1] < UNBEGUN_SECONDS:
            found[troubles.NODES] = self._unbegun[0]
        self._unread = {token: name for token, name in self._unread.items() if token in self.abroad}
        for token in list(self._unread)[:TOLD]:
            found[str(self.abroad[token].flight.claim.id)] = (
                f"The foreman {self._unread[token]} of another release tells of it in words that this worker cannot "
                "read. Start a worker of that release, and stop this one: it takes the run over."
            )
        return found | self.adoption.troubles(now)

    def _silence(self, name: str) -> str:
        if not self.envoy.has_joined:
            return f"Ray does not answer: the driver process has been joining it for more than {FOREMAN_SECONDS:g} s."
        return (
            f"Ray does not answer: the foreman {name} has said nothing for more than {FOREMAN_SECONDS:g} s. It is "
            "being started, or it hangs. What it has may be executing, so none of that is started again. If it never "
            "answers, end its process on Ray's head node (ray::Foreman): what it had is LOST then."
        )

    def _refusal(self, name: str) -> str:
        return f"The foreman {name} refuses this worker: {self.refusals[name][0]}."

    # -- what the envoy tells --------------------------------------------------------------------

    def adopt(self, foreman: tuple[str, str], flights: Sequence[tuple[Flight, bool]]) -> None:
        """The ledger says that these are ours now; the foreman shall tell us of them."""
        name, incarnation = foreman
        for flight, alone in flights:
            self._add(Abroad(flight, _key(flight.claim), name, incarnation, alone))
        self.host.adopted(flight for flight, _ in flights)
        self._say_ours(name, incarnation, [_key(flight.claim) for flight, _ in flights])
        if self.reached.get(name) not in (None, incarnation):
            # It died since it answered.
            self._give_up(name, self.reached[name])

    def _call_the_roll(self) -> None:
        """Whatever was said to a foreman, or by it, may have gone with an envoy."""
        ours: dict[tuple[str, str], list[str]] = {}
        for here in self.abroad.values():
            ours.setdefault((here.foreman, here.incarnation), []).append(here.key)
        if self.home in self.reached:
            # Also without any: whether it answers must be known before more is claimed.
            ours.setdefault((self.home, self.reached[self.home]), [])
        for (name, incarnation), keys in ours.items():
            if self.may_ask(name) and not self.questions.is_open(self._roll_calls.get(name)):
                self._roll_calls[name] = self._say_ours(name, incarnation, keys)

    def _say_ours(self, name: str, incarnation: str, keys: list[str]) -> int:
        return self.ask(name, "adopt", partial(self._told_of_ours, name, incarnation), keys=keys)

    def _told_of_ours(self, name: str, incarnation: str, told: dict[str, Any]) -> None:
        if told["incarnation"] != incarnation or "refused" in told:
            return
        self.adoption.note_left(name, "", told)
        missing = [self.abroad.get(messages.token_of(key)) for key in told.get("missing", ())]
        unknown = [each for each in missing if each is not None and each.incarnation == incarnation]
        for each in unknown:
            logger.warning("The foreman %s does not know run %s.", name, each.flight.claim.id)
            self._remove(each.flight.claim.token)
            self.host.forgotten(each.flight)
        self.adoption.ask_about_our_own([(each.flight.claim.id, each.flight.claim.token) for each in unknown])

    def say(self, name: str, verb: str, *parts: str, number: int | None = None, **facts: Any) -> None:
        self.envoy.send(["say", name, number], messages.say(verb, *parts, worker=self._worker, **facts))

    def ask(self, name: str, verb: str, then: Then, **facts: Any) -> int:
        """Say it, and give the answer, if one comes, to ``then``. The number of the question."""
        number = self.questions.add(name, then)
        self.say(name, verb, number=number, **facts)
        return number

    def _hear(self, message: list[Any], text: str) -> None:
        kind, *body = message
        if kind == "heard":
            self._undealt += len(text)
            name, cpus, worker = body
            self._is_alive(name)
            if worker != self._worker or worker != self.host.id:
                # It was told to whom we were before. Whoever adopts its runs is told, too.
                return
            self.cpus = cpus
            for event in messages.read_events(text):
                self._heed_or_refuse(name, event)
            self._take_more()
        elif kind == "answer":
            question = self.questions.answered(body[0])
            if question is not None:
                self._is_alive(question.foreman)
                self._heed_answer(question, text)
        elif kind == "session":
            self._joined(body[0])
        elif kind == "foreman":
            self._found(*body)
        elif kind == "gone":
            self._lost(*body)
        elif kind == "away":
            self._is_away(body[0])
        elif kind == "refused":
            self._is_refused(*body)
        elif kind == "trouble":
            name, why = body
            who = f"the foreman {name}" if name else "Ray's driver process"
            logger.warning("Could not speak with %s: %s. It is tried again.", who, why)
            self.reached.pop(name, None)
        elif kind == "unwell":
            name, words = body
            logger.warning("The foreman %s %s", name, f"says: {words}" if words else "is well again.")

    def _heed_answer(self, question: Question, text: str) -> None:
        try:
            told = messages.hear(text)
            if not isinstance(told["incarnation"], str):
                raise TypeError("its incarnation is no text")
        except messages.UNREADABLE as error:
            # It is of another release, and speaks otherwise than every release should.
            self._is_refused(question.foreman, f"what it answers cannot be read ({type(error).__name__}: {error})")
            return
        # Not in the same try: a mistake of ours in what we make of it is not the foreman's.
        question.then(told)

    def _is_alive(self, name: str) -> None:
        silent_for = self.questions.heard_from(name)
        if silent_for is not None:
            logger.info("The foreman %s answers again, after %.1f s.", name, silent_for)

    def _is_refused(self, name: str, why: str) -> None:
        if self.refusals.get(name, ("", 0.0))[0] != why:
            logger.error("The foreman %s refuses this worker: %s.", name, why)
        again_at = time.monotonic() + REFUSED_SECONDS
        self.refusals[name] = why, again_at
        self.reached.pop(name, None)
        # The driver process tells of a foreman only when it begins to speak with it.
        self.envoy.send(["close", name])
        self.questions.drop(name)
        if name == self.home:
            self._open_at = again_at

    def _envoy_gone(self, why: str) -> None:
        self._undealt = 0
        self.reached.clear()
        self.questions.clear()
        self.refusals.clear()
        self.waiting.forget()
        self._introduced = False
        self._is_away(why)

    def _joined(self, session: str) -> None:
        """The envoy has joined this Ray; before it tells of any foreman there."""
        self.speak_to(f"{session}/{self.namespace}")

    def _found(self, name: str, incarnation: str, cpus: float, protocol: int | None) -> None:
        self._is_back()
        self._is_alive(name)
        self._protocols[name] = protocol
        # What it was asked before it was found, or found again, may be lost.
        self.questions.drop(name)
        self.cpus = cpus
        if name == self.home:
            self._open_failed = 0
            if protocol != messages.PROTOCOL:
                # It bears our name and was started by other code than ours: it would not take what we submit.
                self._is_refused(name, _other_code(protocol))
                return
        self.refusals.pop(name, None)
        self.reached[name] = incarnation
        self.meet(name, incarnation)
        # Whoever had that name before is no more.
        self._give_up(name, incarnation)
        self._submit_again(name, incarnation)
        self._roll_call_at = 0.0

    def _lost(self, name: str, incarnation: str, why: str) -> None:
        """The foreman is dead, or never was."""
        if self.reached.get(name) == incarnation:
            del self.reached[name]
        self.questions.drop(name)
        self.refusals.pop(name, None)
        self.adoption.gone(name)
        self.waiting.forget()
        self._give_up(name, None)
        if name == self.home:
            if incarnation:
                logger.warning("The foreman %s is gone; starting another.", name)
            self._open_failed += 1
            if self._open_failed >= OPEN_TIMES:
                self._is_away(f"no foreman can be started there. {why}".strip())
            self._open_at = time.monotonic() + min(OPEN_SECONDS_MOST, OPEN_SECONDS * 2 ** (self._open_failed - 1))

    def _give_up(self, name: str, living: str | None) -> None:
        """What a dead foreman had is lost."""
        gone = [each for each in self.abroad.values() if each.foreman == name and each.incarnation != living]
        for each in gone:
            self._remove(each.flight.claim.token)
            words = "The foreman on Ray that held the run is gone."
            self.host.settle(each.flight, lost(each.flight.claim, alone=each.alone, words=words))

    def _submit_again(self, name: str, incarnation: str) -> None:
        """What an envoy may have taken with it: the foreman takes no order twice."""
        unsure = [each for each in self.abroad.values() if each.foreman == name and each.flight.started_at is None]
        if unsure and name == self.home:
            # At once: what the foreman says of one that we did not know would be forgotten there.
            self._submit([each.flight for each in unsure], incarnation)

    # -- what a foreman tells --------------------------------------------------------------------

    def _heed_or_refuse(self, name: str, event: Any) -> None:
        try:
            if isinstance(event, str):
                raise ValueError("it is no JSON")
            self._heed(name, event)
        except messages.UNREADABLE as error:
            self._refuse(name, event, error)

    def _refuse(self, name: str, event: Any, error: Exception) -> None:
        """What a foreman said of a run cannot be read: half a message, or words of another release."""
        key = messages.key_in(event)
        if key is None:
            if name not in self._garbled:
                logger.error("An event of the foreman %s cannot be read, and is dropped: %.200r", name, event)
            self._garbled.add(name)
            return
        token = messages.token_of(key)
        here = self.abroad.get(token)
        if here is None or here.key != key:
            logger.error("The foreman %s said %.200r.", name, event, exc_info=error)
            return
        if self._protocols.get(name, messages.PROTOCOL) != messages.PROTOCOL:
            self._leave_to_its_release(name, here, event)
            return
        logger.error("The foreman %s said %.200r.", name, event, exc_info=error)
        self._remove(token)
        # Nobody can use it any more: when the run is settled the foreman may forget it.
        self.unsettled[token] = name, key
        claim = here.flight.claim
        may_have_begun = messages.kind_of(event) in ("started", "ended", "died") or here.flight.started_at is not None
        if may_have_begun and not may_start_again(max_losses_of(claim)):
            words = f"What the foreman said of it cannot be read: {error}."
            self.host.settle(here.flight, lost(claim, alone=here.alone, words=words))
        else:
            self.host.settle(here.flight, refuse(claim, error, "ray"))

    def _leave_to_its_release(self, name: str, here: Abroad, event: Any) -> None:
        """A foreman of another release said of a run what only a worker of that release can read."""
        token = here.flight.claim.token
        if messages.kind_of(event) == "ended" and event[2:3] == [True]:
            # Its process has settled it: the ledger says how it ended.
            self.unsettled[token] = name, here.key
            self.host.ended(here.flight, None, True)
            self._remove(token)
            return
        # The foreman keeps it, and tells whoever asks next.
        if token not in self._unread:
            logger.error("The foreman %s said %.200r, which only its own release can read.", name, event)
        self._unread[token] = name

    def _heed(self, name: str, event: list[Any]) -> None:
        kind, key, *body = event
        if kind not in _EVENTS:
            raise ValueError(f"an event {kind!r}, which is not known")
        token = messages.token_of(key)
        here = self.abroad.get(token)
        if here is None or here.key != key:
            if kind != "started" and token not in self.unsettled and not self.adoption.is_about(token):
                # It was settled, or is another's: nobody has to keep it for us.
                self._told.setdefault(name, []).append(key)
            return
        flight = here.flight
        if kind == "started":
            if flight.started_at is None:
                self._dequeue(here)
                self.host.started(flight)
            flight.started_at = time.monotonic() - body[0]
            return
        settled, outcome = False, None
        if kind == "ended":
            # Before anything else: what nobody here understands is refused, and that takes all that we know of it.
            settled, row = body
            outcome = None if row is None else messages.outcome_from_json(flight.claim.id, token, row)
        self._remove(token)
        self.unsettled[token] = name, key
        if outcome is not None and len(outcome.text) > LIGHT_CHARACTERS:
            self._weights[token] = len(outcome.text)
        if kind == "ended":
            if flight.started_at is None:
                # The foreman does not tell of both when they come together.
                self.host.started(flight)
            self.host.ended(flight, outcome, settled)
        elif kind == "returned":
            # The foreman has no use for it: others may.
            flight.unwanted = True
            failed = self.waiting.verdict(flight.claim)
            if failed is not None:
                self.host.settle(flight, failed)
            else:
                self.host.returned([flight])
        elif kind == "died":
            self.host.died(_died(flight, body[0]))
        elif kind == "lost":
            words, alone = body
            self.host.settle(flight, lost(flight.claim, alone=alone, words=f"Its node on Ray is gone. {words}"))
        elif kind == "refused":
            # The cause is at the end of it.
            why = " ".join(clean(body[0]).split())[-UNBEGUN_CHARACTERS:]
            self._unbegun = f"Ray could not begin runs lately: {why}", time.monotonic()
            refusal = RuntimeError(f"Ray could not begin it: {body[0]}")
            self.host.settle(flight, refuse(flight.claim, refusal, "ray"))


def _name_of_foreman(config: Config, environment: dict[str, Any], key_fingerprint: str) -> str:
    """
    The name of the foreman that executes with this code, these settings and this key, and of no other.

    Two projects that use one Ray with the defaults of CLUSTER and VERSION must not share a foreman: Ray gives the tasks
    of one foreman to the same processes, and a process loads one project. What it loads is named by the settings module
    and the path on which Python finds it: the code of another release in another directory is not what a process has
    loaded. The key and the runtime environment (a DATABASE_URL among its variables) tell projects apart that have both
    in common, such as two images with ``config.settings``.
    """
    prepared = config.runtime_envs.get(config.ray["RUNTIME_ENV"], {})
    told = json.dumps([environment["settings"], environment["path"], key_fingerprint, prepared], sort_keys=True)
    project = hashlib.sha256(told.encode()).hexdigest()[:12]
    # A foreman of another protocol has another name.
    return f"manta:{config.cluster}:{config.ray['VERSION']}:{messages.PROTOCOL}:{environment['settings']}:{project}"


_EVENTS = ("started", "ended", "returned", "died", "lost", "refused")


def _ignore(told: dict[str, Any]) -> None:
    """There is nothing to do with that answer."""


def _other_code(protocol: int | None) -> str:
    return (
        f"it runs django-manta with protocol {protocol}, and this worker has protocol {messages.PROTOCOL}: install one "
        "version on the nodes of Ray and where workers are"
    )


def _key(claim: Claimed) -> str:
    return messages.key_of(claim.id.hex, claim.token)


def _died(flight: Flight, evidence: dict[str, Any]) -> Died:
    now = time.monotonic()
    flight.started_at = now - evidence["seconds"]
    if evidence["doomed"] is not None:
        outcome, reason = evidence["doomed"]
        flight.doomed = Outcome(outcome), reason
        flight.kill_at = now
    return Died(
        pid=evidence["pid"],
        # Which run it was at is known, whatever it died of.
        code=1,
        started=[flight],
        unstarted=[],
        output=clean(evidence["output"]),
        peak_memory=None,
        killed=evidence["killed"],
        presumed=evidence["presumed"],
        words=evidence["words"],
        executor=evidence["executor"],
        log_ref=evidence["log_ref"],
    )


def _importable() -> list[str]:
    import sys

    return [os.path.abspath(place) for place in sys.path]  # noqa: PTH100


def _needs(config: Config, claim: Claimed) -> tuple[dict[str, Any], bool]:
    """What Ray is asked for, and whether nobody shares it. Raise TaskNotFound, BadTaskSignature, or LookupError."""
    resolve(claim)
    return _needed(config, claim.task, claim.queue, claim.backend, claim.overrides)


@lru_cache(maxsize=4096)
def _needed(config: Config, task: str, queue: str, backend: str, overrides: str) -> tuple[dict[str, Any], bool]:
    asked = resolve_signed(config, task, queue, 0, backend, overrides).options.ray
    options = resources.ray_options(asked, config.runtime_envs, config.ray["RUNTIME_ENV"])
    return _same(messages.dump(options)), resources.is_special(asked)


@lru_cache(maxsize=4096)
def _same(options: str) -> dict[str, Any]:
    """One object for all who ask for the same: tasks that do may share a chunk."""
    same: dict[str, Any] = json.loads(options)
    return same
