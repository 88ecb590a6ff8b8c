"""
The runner ``ray_job``: every execution is a Ray job of its own.

A job is named after its run and token, so that it is submitted once, by whomever and however often. It executes its
run (execution/job.py) and settles it itself; this worker learns of that from the job's log, and settles what the job
could not. What is said to Ray and heard of it goes through the clerk, in a thread of its own: nothing here waits.
"""

import os
import selectors
import shlex
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from logging import getLogger
from typing import Any
from uuid import UUID

from django_manta import resources
from django_manta.conf import Config
from django_manta.execution import envelope
from django_manta.execution.admission import backend_of, refuse, resolve
from django_manta.execution.runners.flights import GRACE_SECONDS, Flight
from django_manta.execution.runners.ray import dashboard
from django_manta.ledger import Claimed, Ledger
from django_manta.states import Outcome
from django_manta.text import clean
from django_manta.worker import conclusions
from django_manta.worker.clerk import Clerk
from django_manta.worker.dispatch import Appetite
from django_manta.worker.elsewhere import Elsewhere
from django_manta.worker.hosting import Host
from django_manta.worker.inheritance import FOREMAN, Inheritance
from django_manta.worker.losses import lost
from django_manta.worker.waiting import has_expired, in_vain

logger = getLogger("django_manta")

#: How often one looks for jobs that should have begun, or ended, by now.
LOOK_SECONDS = 1.0

#: Of a job that has not begun after so long people are told.
TOLD_SECONDS = 15.0

#: A task that has passed its time limit is ended by its own process. Where that cannot do it, it is stopped after so
#: long: a process on Ray takes its time to load a project, and its clock starts after that.
PATIENCE_SECONDS = 60.0


@dataclass(slots=True, eq=False)
class Job:
    """A run that is a job on Ray, or is about to be one."""

    flight: Flight
    submitted: bool = False
    #: Why it has not begun, in Ray's words, and whether we wait for that no longer.
    words: str = ""
    given_up: bool = False


class RayJobs(Elsewhere):
    """See hosting.Runner."""

    outlives_worker = True

    def __init__(self, host: Host, selector: selectors.BaseSelector, backend: Any, name_of_settings: str) -> None:
        config: Config = backend.config
        super().__init__(config.ray["DASHBOARD"].rstrip("/"))
        self.host = host
        self.config = config
        self.selector = selector
        self.url: str = config.ray["DASHBOARD"]
        self.settings = name_of_settings
        self.clerk = Clerk(dashboard.Dashboard(self.url))
        self.jobs: dict[str, Job] = {}
        #: Ray's session, if it can be spoken to.
        self.session = ""
        self.inheritance = Inheritance(self, backend)
        self._worker = ""
        self._look_at = 0.0
        self._told: dict[str, str] = {}

    @property
    def words(self) -> str:
        return f"Ray jobs at {self.url}"

    @property
    def slots(self) -> int:
        most: int = self.config.ray["MAX_JOBS"]
        return most

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        self._worker = self.host.id
        self.selector.register(self.clerk.woken, selectors.EVENT_READ, self._hear)
        self.clerk.start()

    def interrupt(self, kill_at: float) -> None:
        """What runs goes on, for a successor to settle."""

    def kill(self) -> None:
        """See interrupt()."""

    def drop(self) -> None:
        """What runs goes on, and whoever adopts it settles it; from now on we are another, who has nothing there."""
        self.clerk.forget([*self.jobs, *self.inheritance.cases])
        self.jobs.clear()
        self.backlog.clear()
        self.inheritance.forget()

    def close(self) -> None:
        self.clerk.close()
        # It may be waiting for an answer that does not come: then it ends with the process.
        self.clerk.join(1.0)

    # -- the path of a run -----------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return bool(self.session) and self.recorded and self._worker == self.host.id

    @property
    def is_busy(self) -> bool:
        return bool(self.jobs)

    def appetite(self, queues: Sequence[str], now: float) -> list[Appetite]:
        free = self.slots - len(self.jobs) - len(self.backlog)
        return [Appetite(free, queues)] if free > 0 and self.is_ready and not self.stopping and queues else []

    def dispatch(self) -> None:
        while self.backlog and self.is_ready:
            self._submit(self.backlog.popleft())

    def _submit(self, flight: Flight) -> None:
        claim = flight.claim
        job = envelope.name_of(claim.id, claim.token)
        try:
            request = self._request(job, flight)
        except Exception as refusal:
            # Its task, or its environment, is not known to this release; or its arguments are too large.
            self.host.settle(flight, refuse(claim, refusal, "ray_job"))
            return
        self.jobs[job] = Job(flight)
        self.clerk.submit(job, request)
        self.host.sent([flight])

    def _request(self, job: str, flight: Flight) -> dict[str, Any]:
        claim = flight.claim
        options = _needs(backend_of(claim.backend).config, claim)
        environment = options.get("runtime_env", {})
        path = os.pathsep.join(_own_places())
        command = [self._python(environment), "-m", "django_manta.execution.job", "--settings", self.settings]
        command += ["--path", path] if path else []
        command += ["--log-ref", envelope.LOG_REF + job, envelope.seal(claim, flight.timeout)]
        return {
            "submission_id": job,
            # No shell in between, which Ray's signals would end first.
            "entrypoint": f"exec {shlex.join(command)}",
            "runtime_env": environment,
            "metadata": {"manta": "run", "run": str(claim.id), "task": claim.task, "attempt": str(claim.attempts)},
            **resources.job_options(options),
        }

    def _python(self, environment: Mapping[str, Any]) -> str:
        given: str | None = self.config.ray["PYTHON"]
        # Where Ray makes an environment with an interpreter of its own, it is the first on the path there.
        made = any(key in environment for key in ("pip", "uv", "conda", "image_uri"))
        return given or ("python" if made else sys.executable)

    def rest(self, patience: float) -> float:
        return patience

    def tend(self, now: float) -> float | None:
        if self._worker != self.host.id:
            self._begin_anew()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look(now)
        return self._look_at

    def _begin_anew(self) -> None:
        self._worker = self.host.id
        self.known, self.recorded, self._told = [], True, {}
        if self.session:
            self.meet(FOREMAN, self.session)

    def _look(self, now: float) -> None:
        for name, job in self.jobs.items():
            flight = job.flight
            if flight.started_at is None:
                job.given_up = job.given_up or now - flight.waiting_since > self.config.ray["PENDING_SECONDS"]
                if job.given_up or has_expired(flight, now):
                    flight.unwanted = True
                    self.clerk.stop_job(name)
            elif flight.doomed is None and flight.timeout is not None and _should_have_ended(flight, now):
                flight.doomed = conclusions.timed_out(flight.timeout)
                self.clerk.stop_job(name)

    def cancel(self, flight: Flight) -> list[Flight]:
        if flight in self.backlog:
            self.backlog.remove(flight)
            return [flight]
        job = envelope.name_of(flight.claim.id, flight.claim.token)
        if job in self.jobs:
            flight.doomed = flight.doomed or (Outcome.CANCELLED, "It was cancelled.")
            self.clerk.stop_job(job)
        return []

    def note(self, task: str, seconds: float) -> None:
        pass

    def settled(self, tokens: Sequence[int]) -> None:
        pass

    # -- the database ----------------------------------------------------------------------------

    def unknown(self, executions: list[tuple[UUID, int]]) -> list[tuple[UUID, int]]:
        """A claim, or an adoption, whose answer was lost: Ray knows whether there is a job."""
        self.inheritance.ask_about_our_own([each for each in executions if envelope.name_of(*each) not in self.jobs])
        return []

    def talk(self, ledger: Ledger, now: float) -> float | None:
        if self._worker != self.host.id:
            return None
        if not self.recorded and ledger.know_foremen(self._worker, self.known, self.place):
            self.recorded = True
        troubles = self._troubles(now)
        if troubles != self._told and ledger.tell_troubles(self._worker, troubles):
            self._told = troubles
        return self.inheritance.talk(ledger, now)

    def _troubles(self, now: float) -> dict[str, str]:
        """What keeps all runs, or some, from being executed."""
        troubles = {"": self.away} if self.away else {}
        for job in self.jobs.values():
            flight = job.flight
            if flight.started_at is None and now - flight.waiting_since > TOLD_SECONDS:
                troubles[str(flight.claim.id)] = f"Ray has not begun its job. {job.words}".strip()
        return troubles

    def adopt(self, flight: Flight) -> None:
        """The ledger says that it is ours now."""
        job = envelope.name_of(flight.claim.id, flight.claim.token)
        self.jobs[job] = Job(flight, submitted=True)
        self.host.adopted([flight])
        self.clerk.watch(job)

    # -- what the clerk tells --------------------------------------------------------------------

    def _hear(self) -> None:
        for word, name, *body in self.clerk.news():
            if word == "session":
                self._found(body[0])
            elif word == "away":
                self.session = ""
                self._is_away(body[0])
            elif word == "died":
                raise RuntimeError("The thread that speaks with Ray's dashboard has died.")
            elif word in ("found", "missing"):
                self.inheritance.hear(name, *body)
            elif name in self.jobs:
                self._heed(word, name, body)

    def _found(self, session: str) -> None:
        self._is_back()
        self.session = session
        self.speak_to(session)
        self.meet(FOREMAN, session)

    def _heed(self, word: str, name: str, body: list[Any]) -> None:
        job = self.jobs[name]
        flight = job.flight
        if word == "submitted":
            job.submitted = True
            return
        if word == "pending":
            job.words = clean(body[0])
            return
        if word == "started":
            flight.started_at = time.monotonic()
            self.host.started(flight)
            return
        del self.jobs[name]
        if word == "ended":
            found, log, whole = body
            conclusions.conclude(self.host, flight, found, log, whole, lambda: self._unbegun(job))
        elif word == "unbegun":
            self._unbegun(job)
        elif word == "refused":
            self.host.settle(flight, refuse(flight.claim, RuntimeError(f"Ray refused the job: {body[0]}"), "ray_job"))
        elif word == "unknown":
            words = "Ray knows nothing of its job any more: it was started anew."
            self.host.settle(flight, lost(flight.claim, alone=True, words=words))

    def _unbegun(self, job: Job) -> None:
        """It was stopped before Ray had begun it."""
        flight = job.flight
        if job.given_up:
            seconds = self.config.ray["PENDING_SECONDS"]
            self.host.settle(flight, in_vain(flight.claim, seconds, job.words, "ray_job"))
        else:
            flight.unwanted = True
            self.host.returned([flight])


def _should_have_ended(flight: Flight, now: float) -> bool:
    limit = (flight.timeout or 0.0) + GRACE_SECONDS + PATIENCE_SECONDS
    return flight.started_at is not None and now - flight.started_at > limit


@lru_cache(maxsize=1)
def _own_places() -> tuple[str, ...]:
    """Where this process finds modules, besides those of its interpreter."""
    known = sysconfig.get_paths()
    its = tuple(known[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    places = [os.path.abspath(place) for place in sys.path]  # noqa: PTH100
    return tuple(dict.fromkeys(place for place in places if not place.startswith(its)))


def _needs(config: Config, claim: Claimed) -> dict[str, Any]:
    """What Ray is asked for. Raise TaskNotFound, BadTaskSignature, or LookupError."""
    return resources.ray_options(resolve(claim).options.ray, config.runtime_envs, config.ray["RUNTIME_ENV"])
