"""
How a worker stops.

    asked → what has not started is given back
          → --stop-timeout later, or at the second signal: interrupted
          → KILL_SECONDS later, or at once: killed
          → LEAVE_SECONDS later: what is not settled by then is left to whoever finds the lease lost
"""

from django_manta.worker.hosting import Runner

#: What is being stopped has so long after being told, before its process is killed; and the worker so
#: long after that to settle it, before it leaves the rest to whoever finds its lease lost.
KILL_SECONDS = 1.5
LEAVE_SECONDS = 0.3


class Stopping:
    """How far it has come with that."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        #: How often it was asked for.
        self.requests = 0
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._leave_at: float | None = None

    def next_time(self, now: float) -> float:
        return self._leave_at or self._kill_at or self._stop_at or now

    def begins(self, now: float) -> bool:
        """Whether it is asked for the first time."""
        if self._stop_at is not None:
            return False
        self._stop_at = now + self._timeout
        return True

    def go_on(self, now: float, runner: Runner) -> None:
        assert self._stop_at is not None
        is_urgent = self.requests > 1
        if self._kill_at is None and (now >= self._stop_at or is_urgent):
            self._kill_at = now if is_urgent else now + KILL_SECONDS
            runner.interrupt(self._kill_at)
        if self._kill_at is not None and is_urgent:
            self._kill_at = min(self._kill_at, now)
        if self._kill_at is not None and now >= self._kill_at and self._leave_at is None:
            self._leave_at = now + LEAVE_SECONDS
            runner.kill()

    def leaves(self, now: float) -> bool:
        """Whether it waits no more for what is not settled."""
        return self._leave_at is not None and now >= self._leave_at
