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
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from logging import getLogger
from typing import Any
from uuid import UUID

from django_manta import resources
from django_manta.conf import Config
from django_manta.execution import envelope
from django_manta.execution.admission import backend_of, refuse, resolve
from django_manta.execution.job import FAILED, REFUSED
from django_manta.execution.output import TAIL_BYTES
from django_manta.execution.runners.flights import GRACE_SECONDS, Died, Flight
from django_manta.execution.runners.ray import dashboard
from django_manta.ledger import Claimed, Ledger
from django_manta.states import Outcome
from django_manta.text import clean
from django_manta.worker.clerk import Clerk
from django_manta.worker.dispatch import Appetite
from django_manta.worker.hosting import Host
from django_manta.worker.inheritance import Inheritance
from django_manta.worker.losses import lost

logger = getLogger("django_manta")

#: What was claimed and cannot be submitted is given back after so long: another worker may reach Ray.
OVERDUE_SECONDS = 2.0

#: How often one looks for jobs that should have begun, or ended, by now.
LOOK_SECONDS = 1.0

#: A task that has passed its time limit is ended by its own process. Where that cannot do it, it is stopped after so
#: long: a process on Ray takes its time to load a project, and its clock starts after that.
PATIENCE_SECONDS = 60.0

#: What Ray says of jobs whose command was never executed, and of those that went with their node.
_NEVER_BEGUN = frozenset(
    {
        "RUNTIME_ENV_SETUP_FAILURE",
        "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
        "JOB_SUPERVISOR_ACTOR_START_FAILURE",
        "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE",
        "JOB_ENTRYPOINT_COMMAND_START_ERROR",
    }
)
_VANISHED = frozenset({"JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE"})

#: How the log of an attempt is named.
LOG_REF = "ray-job:"

_STOPPED = Outcome.CANCELLED, "Its Ray job was stopped."


def name_of(run_id: UUID, token: int) -> str:
    """The job of an execution, and of no other."""
    return f"manta-{run_id.hex}-{token}"


@dataclass(slots=True, eq=False)
class Job:
    """A run that is a job on Ray, or is about to be one."""

    flight: Flight
    submitted: bool = False


class RayJobs:
    """See hosting.Runner."""

    recovers = True
    outlives_worker = True

    def __init__(self, host: Host, selector: selectors.BaseSelector, backend: Any, name_of_settings: str) -> None:
        config: Config = backend.config
        self.host = host
        self.config = config
        self.selector = selector
        self.url: str = config.ray["DASHBOARD"]
        self.settings = name_of_settings
        self.clerk = Clerk(dashboard.Dashboard(self.url))
        self.backlog: deque[Flight] = deque()
        self.jobs: dict[str, Job] = {}
        #: Ray's session, if it can be spoken to, and all that this identity ever gave a job to.
        self.session = ""
        self.known: list[tuple[str, str]] = []
        self.recorded = True
        self.stopping = False
        self.inheritance = Inheritance(self, backend)
        self._worker = ""
        self._look_at = 0.0
        self._away_since: float | None = None
        self._trouble = ""
        self._told_trouble = ""

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

    def stop(self) -> list[Flight]:
        self.stopping = True
        left = list(self.backlog)
        self.backlog.clear()
        return left

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

    def next_appetite(self, now: float) -> float | None:
        return None

    def take_on(self, flights: Sequence[Flight]) -> None:
        self.backlog.extend(flights)

    def take_back(self, flights: Sequence[Flight], now: float) -> None:
        self.backlog.extendleft(reversed(flights))

    @property
    def waits(self) -> bool:
        return bool(self.backlog)

    def dispatch(self) -> None:
        while self.backlog and self.is_ready:
            self._submit(self.backlog.popleft())

    def _submit(self, flight: Flight) -> None:
        claim = flight.claim
        job = name_of(claim.id, claim.token)
        try:
            request = self._request(job, flight)
        except Exception as refusal:
            # Its task, or its environment, is not known to this release; or its arguments are too large.
            self.host.settle(flight, refuse(claim, refusal, "ray_job"))
            return
        self.jobs[job] = Job(flight)
        self.clerk.submit(job, request)

    def _request(self, job: str, flight: Flight) -> dict[str, Any]:
        claim = flight.claim
        options = _needs(backend_of(claim.backend).config, claim)
        environment = options.get("runtime_env", {})
        path = os.pathsep.join(_own_places())
        command = [self._python(environment), "-m", "django_manta.execution.job", "--settings", self.settings]
        command += ["--path", path] if path else []
        command += ["--log-ref", _log_ref(job), envelope.seal(claim, flight.timeout)]
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

    def overdue(self, now: float) -> list[Flight]:
        if not self.backlog or self.is_ready:
            return []
        overdue = [flight for flight in self.backlog if now - flight.waiting_since > OVERDUE_SECONDS]
        self.backlog = deque(flight for flight in self.backlog if flight not in overdue)
        return overdue

    def tend(self, now: float) -> float | None:
        if self._worker != self.host.id:
            self._begin_anew()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look(now)
        return self._look_at

    def _begin_anew(self) -> None:
        self._worker = self.host.id
        self.known, self.recorded, self._told_trouble = [], True, ""
        if self.session:
            self.meet(self.session)

    def _look(self, now: float) -> None:
        moment = datetime.now(UTC)
        for name, job in self.jobs.items():
            flight = job.flight
            expires_at = flight.claim.expires_at
            if flight.started_at is None:
                if expires_at is not None and expires_at <= moment:
                    flight.unwanted = True
                    self.clerk.stop_job(name)
            elif flight.doomed is None and flight.timeout is not None and _should_have_ended(flight, now):
                flight.doomed = _timed_out(flight.timeout)
                self.clerk.stop_job(name)

    def cancel(self, flight: Flight) -> list[Flight]:
        if flight in self.backlog:
            self.backlog.remove(flight)
            return [flight]
        job = name_of(flight.claim.id, flight.claim.token)
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
        self.inheritance.ask_about_our_own([each for each in executions if name_of(*each) not in self.jobs])
        return []

    def talk(self, ledger: Ledger, now: float) -> float | None:
        if self._worker != self.host.id:
            return None
        if not self.recorded and ledger.know_foremen(self._worker, self.known):
            self.recorded = True
        if self._trouble != self._told_trouble:
            troubles = {"": self._trouble} if self._trouble else {}
            if ledger.tell_troubles(self._worker, troubles):
                self._told_trouble = self._trouble
        return self.inheritance.talk(ledger, now)

    def meet(self, session: str) -> None:
        """We may have jobs there from now on: the worker's row must say so first."""
        if ("jobs", session) not in self.known:
            self.known.append(("jobs", session))
            self.recorded = False

    def adopt(self, flight: Flight) -> None:
        """The ledger says that it is ours now."""
        job = name_of(flight.claim.id, flight.claim.token)
        self.jobs[job] = Job(flight, submitted=True)
        self.host.adopted([flight])
        self.clerk.watch(job)

    # -- what the clerk tells --------------------------------------------------------------------

    def _hear(self) -> None:
        for word, name, *body in self.clerk.news():
            if word == "session":
                self._found(body[0])
            elif word == "away":
                self._away(body[0])
            elif word in ("found", "missing"):
                self.inheritance.hear(name, *body)
            elif name in self.jobs:
                self._heed(word, name, body)

    def _found(self, session: str) -> None:
        if self._away_since is not None:
            logger.info("Ray is back after %.1f s.", time.monotonic() - self._away_since)
            self._away_since, self._trouble = None, ""
        self.session = session
        self.meet(session)

    def _away(self, why: str) -> None:
        self.session = ""
        if self._away_since is None and not self.stopping:
            self._away_since = time.monotonic()
            self._trouble = f"Ray is away: {why}"
            logger.warning("Ray is away: %s", why)

    def _heed(self, word: str, name: str, body: list[Any]) -> None:
        job = self.jobs[name]
        flight = job.flight
        if word == "submitted":
            job.submitted = True
            return
        if word == "started":
            flight.started_at = time.monotonic()
            self.host.started(flight)
            return
        del self.jobs[name]
        if word == "ended":
            self._conclude(flight, *body)
        elif word == "unbegun":
            flight.unwanted = True
            self.host.returned([flight])
        elif word == "refused":
            self.host.settle(flight, refuse(flight.claim, RuntimeError(f"Ray refused the job: {body[0]}"), "ray_job"))
        elif word == "unknown":
            words = "Ray knows nothing of its job any more: it was started anew."
            self.host.settle(flight, lost(flight.claim, alone=True, words=words))

    def _conclude(self, flight: Flight, found: dict[str, Any], log: str | None, whole: bool) -> None:
        """A job has ended. What it told counts; if it told nothing, what Ray says of its end."""
        claim = flight.claim
        told = envelope.read(log or "", claim)
        if told.ended:
            if flight.started_at is None:
                self.host.started(flight)
            self.host.ended(flight, told.row, told.settled)
            return
        status, kind, words = found["status"], found.get("error_type"), clean(found.get("message") or "")
        if status == dashboard.STOPPED and whole and not told.begun and (flight.unwanted or flight.doomed):
            flight.unwanted = True
            self.host.returned([flight])
        elif status == dashboard.STOPPED:
            flight.doomed = flight.doomed or _STOPPED
            self.host.died(_died(flight, found, log, killed=True))
        elif kind in _VANISHED or log is None:
            # If it has settled itself, nothing of this moves its run.
            self.host.settle(flight, lost(claim, alone=True, words=f"Its node on Ray is gone. {words}".strip()))
        elif kind in _NEVER_BEGUN or (whole and not told.begun) or found.get("driver_exit_code") == REFUSED:
            said = envelope.without_marks(log).strip()[-1000:] or words
            self.host.settle(flight, refuse(claim, RuntimeError(f"Ray could not begin it: {said}"), "ray_job"))
        elif flight.timeout is not None and _was_overdue(found, log):
            flight.doomed = _timed_out(flight.timeout)
            self.host.died(_died(flight, found, log, killed=True))
        else:
            self.host.died(_died(flight, found, log, killed=False))


def _should_have_ended(flight: Flight, now: float) -> bool:
    limit = (flight.timeout or 0.0) + GRACE_SECONDS + PATIENCE_SECONDS
    return flight.started_at is not None and now - flight.started_at > limit


def _was_overdue(found: Mapping[str, Any], log: str) -> bool:
    """Whether its own process ended it, in the words of the interpreter (faulthandler.dump_traceback_later)."""
    return found.get("driver_exit_code") == FAILED and "\nTimeout (" in log


def _timed_out(timeout: float) -> tuple[Outcome, str]:
    return Outcome.TIMED_OUT, f"The task ran longer than its timeout of {timeout:g} s."


def _died(flight: Flight, found: Mapping[str, Any], log: str | None, *, killed: bool) -> Died:
    now = time.monotonic()
    began, end = found.get("start_time"), found.get("end_time")
    if began and end:
        # As Ray saw it; we may have been told much later.
        flight.started_at = now - max(end - began, 0) / 1000
    flight.kill_at = now if killed else None
    job = name_of(flight.claim.id, flight.claim.token)
    return Died(
        pid=0,
        code=found.get("driver_exit_code"),
        started=[flight],
        unstarted=[],
        output=clean(envelope.printed(log or "").strip()[-TAIL_BYTES:]),
        peak_memory=None,
        killed=killed,
        words="Its Ray job was stopped." if killed else "",
        executor=job,
        log_ref=_log_ref(job),
    )


def _log_ref(job: str) -> str:
    return f"{LOG_REF}{job}"


@lru_cache(maxsize=1)
def _own_places() -> tuple[str, ...]:
    """Where this process finds modules, besides those of its interpreter."""
    known = sysconfig.get_paths()
    its = tuple(known[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    places = [os.path.abspath(place) for place in sys.path]  # noqa: PTH100
    return tuple(dict.fromkeys(place for place in places if not place.startswith(its)))


def _needs(config: Config, claim: Claimed) -> dict[str, Any]:
    """What Ray is asked for. Raise TaskNotFound, or LookupError."""
    resolved = resolve(config, claim.task, claim.queue, claim.priority, claim.backend, claim.overrides)
    return resources.ray_options(resolved.options.ray, config.runtime_envs, config.ray["RUNTIME_ENV"])
