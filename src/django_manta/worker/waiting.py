"""
What was handed to Ray and has not begun.

Ray says nothing of a request that it can never fulfil: the task waits. So the foreman is asked, once a run has waited
for a while, whether any node of the cluster could execute it. What it says stands in the worker's row, for ``explain``
and ``doctor``. A run that no node could execute fails when ``PENDING_SECONDS`` are over: an autoscaler may have to
start the node first. What only waits for its turn waits, unless it ``expires``.
"""

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from django_manta.execution.runners.flights import Flight
from django_manta.execution.runners.ray import messages
from django_manta.ledger import Claimed, Ledger, Settlement
from django_manta.states import Outcome, State

if TYPE_CHECKING:
    from django_manta.worker.afar import Abroad, OnRay

#: How often to look, and how long a run has waited before one asks why.
LOOK_SECONDS = 2.0
ASK_SECONDS = 5.0

#: What asks for resources that there are, and still has not begun after so long, is told, too.
TURN_SECONDS = 60.0

#: Of so many at most is asked, and told.
TOLD = 50

_ERROR = "django_manta.exceptions.NoSuchResources"


class Waiting:
    """The runs of one worker that wait for Ray."""

    def __init__(self, runner: "OnRay", pending_seconds: float) -> None:
        self.runner = runner
        self.pending_seconds = pending_seconds
        self.troubles: dict[str, str] = {}
        #: What was called back from the foreman because no node could execute it, and in which words.
        self._given_up: dict[int, str] = {}
        self._look_at = 0.0
        self._told: dict[str, str] = {}
        self._asked: set[str] = set()

    def forget(self) -> None:
        """Who was asked is gone, or we are another."""
        self.troubles = {}
        self._asked.clear()
        # Nobody's row says this.
        self._told = {"?": ""}
        self._given_up.clear()

    def tend(self, now: float) -> float:
        """When to come again."""
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look(now)
        return self._look_at

    def _look(self, now: float) -> None:
        waiting = [each for each in self.runner.abroad.values() if each.flight.started_at is None]
        self._call_back([each for each in waiting if has_expired(each.flight, now)])
        long = [each for each in waiting if now - each.flight.waiting_since > ASK_SECONDS]
        # First those that ask for something special, which may be nowhere.
        long.sort(key=lambda each: not each.alone)
        by_foreman: dict[str, list[Abroad]] = {}
        for each in long:
            by_foreman.setdefault(each.foreman, []).append(each)
        for name, theirs in by_foreman.items():
            if self.runner.answers(name) and name not in self._asked:
                self._asked.add(name)
                asked = [each.key for each in theirs[:TOLD]]
                self.runner.ask(name, "wonder", partial(self._hear, name), keys=asked)
        waits = {str(each.flight.claim.id) for each in long}
        self.troubles = {run_id: words for run_id, words in self.troubles.items() if run_id in waits}

    def _hear(self, name: str, told: dict[str, Any]) -> None:
        self._asked.discard(name)
        now = time.monotonic()
        hopeless = []
        for key, possible, words in told.get("waiting", ()):
            here = self.runner.abroad.get(messages.token_of(key))
            if here is None or here.flight.started_at is not None:
                continue
            waited = now - here.flight.waiting_since
            claim = here.flight.claim
            self.troubles.pop(str(claim.id), None)
            if possible:
                # It waits for its turn, as many do. Of one that asks for something special people may wonder.
                if here.alone and waited > TURN_SECONDS:
                    self.troubles[str(claim.id)] = words
                continue
            self.troubles[str(claim.id)] = words
            if waited > self.pending_seconds:
                self._given_up[claim.token] = words
                hopeless.append(here)
        self._call_back(hopeless)

    def _call_back(self, each_of: "list[Abroad]") -> None:
        by_foreman: dict[str, list[str]] = {}
        for each in each_of:
            if self.runner.answers(each.foreman):
                by_foreman.setdefault(each.foreman, []).append(each.key)
        for name, keys in by_foreman.items():
            self.runner.say(name, "withdraw", keys=keys)

    def verdict(self, claim: Claimed) -> Settlement | None:
        """What becomes of a run that the foreman has given back: None unless it waited in vain."""
        words = self._given_up.pop(claim.token, None)
        if words is None:
            return None
        return in_vain(claim, self.pending_seconds, words, "ray")

    def talk(self, ledger: Ledger, worker: str, others: dict[str, str]) -> None:
        """Leave in the worker's row what keeps its runs from being executed; ``others``: what else its runner knows."""
        troubles = others | self.troubles
        if troubles != self._told and ledger.tell_troubles(worker, troubles):
            self._told = troubles


def has_expired(flight: Flight, now: float) -> bool:
    """By the database's clock, which was asked when the run was claimed."""
    claim = flight.claim
    if claim.expires_at is None:
        return False
    return claim.last_attempted_at + (now - flight.waiting_since) * 1_000_000 >= claim.expires_at


def in_vain(claim: Claimed, seconds: float, words: str, executor: str) -> Settlement:
    """The end of a run that has waited for Ray for too long."""
    message = f"It waited longer than PENDING_SECONDS ({seconds:g} s). {words}".strip()
    return Settlement(
        run_id=claim.id,
        token=claim.token,
        outcome=Outcome.FAILED,
        next_state=State.FAILED,
        reason=message,
        executor=executor,
        error_class=_ERROR,
        error_message=message,
        traceback=f"{_ERROR}: {message}\n",
    )
