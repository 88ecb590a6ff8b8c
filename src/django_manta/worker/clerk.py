"""
The one thread of a worker that speaks with Ray's dashboard, about all of its jobs.

It may wait for an answer as long as it likes: the loop and the heart have threads of their own. Orders come through a
queue; what there is to tell goes through another, and a byte wakes the loop. Nothing is decided here.

    submit ──▶ submitted ──▶ started ──▶ ended, with the end of its log
                   │            └──────▶ unknown (Ray has lost it)
                   └─ stop, and Ray never begins it ──▶ unbegun
"""

import contextlib
import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django_manta.execution.runners.ray.dashboard import ENDED, PENDING, Away, Dashboard, Refused
from django_manta.worker.duty import Duty

logger = logging.getLogger("django_manta")

#: A job is looked at this often; an old one less, in proportion to its age, down to the slowest.
LOOK_SECONDS, SLOWEST_SECONDS, AGEING = 0.3, 2.0, 0.05

#: While Ray is away it is tried this often; and while it is there, its session is asked for this often.
RETRY_SECONDS, SESSION_SECONDS = 0.5, 5.0

#: A job that Ray has not begun so long after it was told to stop it is not waited for: it is stopped when it begins.
#: One that runs is told once more after so long.
UNBEGUN_SECONDS, AGAIN_SECONDS = 3.0, 10.0

#: A log that cannot be read is tried again after so long.
LOG_SECONDS = 0.5

#: What is told: a word, the job that it is about, and what belongs to it.
type News = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class Errand:
    """What is to be done about one job."""

    job: str
    #: What to submit, until that is done.
    request: dict[str, Any] | None = None
    tried: bool = False
    #: Somebody wants to know whether there is such a job, and that there will be none if there is not.
    sought: bool = False
    stop_at: float | None = None
    told_to_stop: float | None = None
    started: bool = False
    #: Why Ray has not begun it, in Ray's words.
    words: str = ""
    since: float = field(default_factory=time.monotonic)
    due: float = 0.0


class Clerk(Duty):
    """See above. ``woken`` is readable when there is news."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__("manta-clerk", lambda: self._tell("died", ""))
        self.dashboard = dashboard
        self.woken, self._wake = socket.socketpair()
        for end in (self.woken, self._wake):
            end.setblocking(False)
        self._orders: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._news: deque[News] = deque()
        self._errands: dict[str, Errand] = {}
        self._session = ""
        self._ask_session_at = 0.0
        self._away = False
        self._closed = threading.Event()

    # -- for the loop ----------------------------------------------------------------------------

    def submit(self, job: str, request: dict[str, Any]) -> None:
        self._orders.put(("submit", Errand(job, request)))

    def watch(self, job: str) -> None:
        self._orders.put(("watch", Errand(job)))

    def seek(self, job: str) -> None:
        """Tell what is known of a job: ``found``; or ``missing``, and then there will never be one of that name."""
        self._orders.put(("seek", Errand(job, sought=True)))

    def stop_job(self, job: str) -> None:
        self._orders.put(("stop", job))

    def forget(self, jobs: Sequence[str]) -> None:
        self._orders.put(("forget", list(jobs)))

    def news(self) -> list[News]:
        """What there is to tell since one asked last."""
        with contextlib.suppress(BlockingIOError):
            while self.woken.recv(4096):
                pass
        told = []
        while self._news:
            told.append(self._news.popleft())
        return told

    def close(self) -> None:
        self._closed.set()
        self._orders.put(("wake", None))

    # -- the thread ------------------------------------------------------------------------------

    def work(self) -> None:
        while not self._closed.is_set():
            self._take_orders()
            try:
                self._work()
            except Away as away:
                self._ask_session_at = 0.0
                if not self._away:
                    self._away = True
                    self._tell("away", "", str(away))
                self._closed.wait(RETRY_SECONDS)
            except Exception:
                # The other jobs are still to be looked after.
                logger.exception("The clerk for Ray's jobs failed at something.")
                self._closed.wait(RETRY_SECONDS)

    def _tell(self, word: str, job: str, *body: Any) -> None:
        self._news.append((word, job, *body))
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def _take_orders(self) -> None:
        """Wait until something is due, or ordered; then take all orders."""
        due = [errand.due for errand in self._errands.values()]
        patience = max(0.0, min([*due, self._ask_session_at]) - time.monotonic())
        with contextlib.suppress(queue.Empty):
            self._obey(*self._orders.get(timeout=patience or None) if patience else self._orders.get_nowait())
            while True:
                self._obey(*self._orders.get_nowait())

    def _obey(self, verb: str, about: Any) -> None:
        if verb in ("submit", "watch", "seek"):
            self._errands[about.job] = about
        elif verb == "stop" and about in self._errands:
            errand = self._errands[about]
            errand.stop_at = errand.stop_at or time.monotonic()
            errand.due = 0.0
        elif verb == "forget":
            for job in about:
                self._errands.pop(job, None)

    def _work(self) -> None:
        now = time.monotonic()
        if now >= self._ask_session_at:
            self._greet(now)
        for errand in [each for each in self._errands.values() if each.due <= now]:
            if self._closed.is_set():
                return
            try:
                self._run(errand)
            except Away as away:
                # If Ray answers others, it is only this one that has to wait.
                self._greet(time.monotonic())
                self._say_why(errand, str(away))
            except Exception as error:
                logger.exception("The clerk for Ray's jobs failed at %s.", errand.job)
                self._say_why(errand, f"{type(error).__name__}: {error}")
            age = time.monotonic() - errand.since
            errand.due = time.monotonic() + min(LOOK_SECONDS + age * AGEING, SLOWEST_SECONDS)

    def _greet(self, now: float) -> None:
        session = self.dashboard.session()
        self._ask_session_at = now + SESSION_SECONDS
        if self._away or session != self._session:
            self._away, self._session = False, session
            self._tell("session", "", session)

    def _run(self, errand: Errand) -> None:
        if errand.sought:
            self._seek(errand)
        elif errand.request is not None:
            self._submit(errand, errand.request)
        else:
            self._look(errand)

    def _submit(self, errand: Errand, request: dict[str, Any]) -> None:
        if errand.stop_at is not None:
            self._withdraw(errand)
            return
        errand.tried = True
        try:
            self.dashboard.submit(request)
        except Refused as refused:
            self._end(errand, "refused", str(refused))
        else:
            errand.request = None
            self._tell("submitted", errand.job)

    def _withdraw(self, errand: Errand) -> None:
        """It is not wanted any more. If it was tried, nobody knows whether Ray has it."""
        if not errand.tried or self._is_missing(errand.job):
            self._end(errand, "unbegun")
        else:
            errand.request = None

    def _look(self, errand: Errand) -> None:
        if errand.stop_at is not None and self._is_to_be_told(errand):
            self.dashboard.stop(errand.job)
            errand.told_to_stop = time.monotonic()
        found = self.dashboard.look(errand.job)
        if found is None:
            self._end(errand, "unknown")
        elif found["status"] in ENDED:
            self._end(errand, "ended", found, *self._log(errand.job))
        elif found["status"] == PENDING:
            if errand.told_to_stop is not None and time.monotonic() - (errand.stop_at or 0) > UNBEGUN_SECONDS:
                self._end(errand, "unbegun")
            else:
                self._say_why(errand, found.get("message") or "")
        elif not errand.started:
            errand.started = True
            self._tell("started", errand.job)

    def _say_why(self, errand: Errand, words: str) -> None:
        """Why a job has not begun."""
        if words != errand.words and not errand.started and not errand.sought:
            errand.words = words
            self._tell("pending", errand.job, words)

    def _is_to_be_told(self, errand: Errand) -> bool:
        return errand.told_to_stop is None or time.monotonic() - errand.told_to_stop > AGAIN_SECONDS

    def _log(self, job: str) -> tuple[str, bool] | tuple[None, bool]:
        for last in (False, False, True):
            try:
                return self.dashboard.log(job)
            except LookupError:
                # Its node may be gone, or only busy.
                if not last:
                    self._closed.wait(LOG_SECONDS)
        return None, False

    def _seek(self, errand: Errand) -> None:
        if self._is_missing(errand.job):
            # Of the session that says so: it may be a new one.
            self._greet(time.monotonic())
            self._end(errand, "missing", self._session)
        elif (found := self.dashboard.look(errand.job)) is not None:
            self._end(errand, "found", self._session, found)

    def _is_missing(self, job: str) -> bool:
        """Whether there is no such job. If so, there will be none: its place is taken."""
        return self.dashboard.look(job) is None and self.dashboard.submit(_tombstone(job))

    def _end(self, errand: Errand, word: str, *body: Any) -> None:
        self._errands.pop(errand.job, None)
        self._tell(word, errand.job, *body)


def _tombstone(job: str) -> dict[str, Any]:
    """A job that does nothing, so that whoever submits one of that name later hears that it exists."""
    return {"submission_id": job, "entrypoint": "true", "metadata": {"manta": "given back"}}
