"""
When a worker looks at the database.

Once a second, when something is due, and when the doorbell has rung; then once more when the debounce window is over,
for what was rung in it is left out. Where there is enough to do, a look that only the bell has asked for, or that is
late anyway, is put off for a moment.
"""

from django_manta.ringing import DEBOUNCE_SECONDS

#: An idle worker looks at the database this often, in one cheap statement.
LOOK_SECONDS = 1.0

#: While there is more to do than it can hold, a look that only the bell has asked for is put off no longer than this:
#: in the first moments of a backlog it would take longer than a claim.
PUT_OFF_SECONDS = 0.1


class Pauses:
    """How long until one tries again what somebody else's lock kept one from: longer each time, until that is over."""

    def __init__(self) -> None:
        self._seconds = DEBOUNCE_SECONDS

    def next(self) -> float:
        seconds = self._seconds
        self._seconds = min(2 * seconds, LOOK_SECONDS)
        return seconds

    def over(self) -> None:
        self._seconds = DEBOUNCE_SECONDS


class Lookout:
    """Moments, by the clock of whoever asks: nothing here looks at the database, or waits."""

    def __init__(self) -> None:
        self._look_at = 0.0
        #: Until then at the latest a look may be put off.
        self._look_by = 0.0
        #: When a run falls due, as far as the last look told.
        self._due_at: float | None = None
        self._again_at: float | None = None
        #: What was rung since the last ring, and left out for that, may be a cancel.
        self._again_at_once = False
        self._was_late = False

    def times(self) -> tuple[float | None, ...]:
        """When it has something to do."""
        return self._look_at, self._due_at, self._again_at

    def heard(self, now: float, *, at_once: bool) -> None:
        """The bell rang. ``at_once``: perhaps for something that does not wait."""
        self._again_at = now + DEBOUNCE_SECONDS
        self._again_at_once = self._again_at_once or at_once
        self._soon(now, at_once=at_once)

    def again(self, moment: float) -> None:
        """By then at the latest something may be there that was not."""
        self._again_at = moment if self._again_at is None else min(self._again_at, moment)

    def again_unless_planned(self, moment: float) -> None:
        """The same, unless one will look again anyway."""
        if self._again_at is None:
            self._again_at = moment

    def goes_again(self, now: float) -> bool:
        """Whether that moment has come, which it does once."""
        if self._again_at is None or now < self._again_at:
            return False
        self._again_at = None
        self._soon(now, at_once=self._again_at_once)
        self._again_at_once = False
        return True

    def _soon(self, now: float, *, at_once: bool) -> None:
        self._look_at = min(self._look_at, now)
        self._look_by = min(self._look_by, now if at_once else now + PUT_OFF_SECONDS)

    def must(self) -> None:
        """Whatever there is to do."""
        self._look_at = self._look_by = 0.0

    def is_due(self, now: float, *, busy: bool) -> bool:
        """Whether to look now. ``busy``: there is enough to do."""
        falls_due = self._due_at is not None and now >= self._due_at
        if self._look_at and now >= self._look_at + LOOK_SECONDS and not self._was_late:
            # Whoever has missed a look was stopped: it can wait a moment longer.
            self._look_by, self._was_late = now + PUT_OFF_SECONDS, True
        if now >= self._look_at and not falls_due and busy and now < self._look_by:
            # There is enough to do, and only the bell has asked for this look, or it is late anyway: a moment later is
            # soon enough.
            self._look_at = min(self._look_by, now + DEBOUNCE_SECONDS)
            return False
        if now < self._look_at and not falls_due:
            return False
        self._was_late = False
        return True

    def looked(self, now: float) -> None:
        self._look_at = self._look_by = now + LOOK_SECONDS
        self._due_at = None

    def falls_due(self, moment: float) -> None:
        self._due_at = moment

    def no_later_than(self, moment: float) -> None:
        self._look_at = self._look_by = min(self._look_at, moment)
