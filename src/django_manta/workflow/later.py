"""``Later``: call me again, then. It is no failure."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.utils import timezone

from django_manta import options


class Later(Exception):
    """
    Returned or raised by a task that wants to be called again.

    ``until`` is when, at the earliest: an aware datetime, or a timedelta from now. ``after`` are runs to wait for
    beside those that it waits for already: as its ``when`` says, so with ``any_…`` for any that has not been met
    yet. ``after=None``: at once, whatever they do. ``message`` is kept as the run's reason.
    """

    def __init__(
        self,
        until: datetime | timedelta | None = None,
        after: Iterable[Any] | None = (),
        message: str = "",
    ) -> None:
        super().__init__(message)
        self.until: Final = until
        if isinstance(until, datetime) and timezone.is_naive(until):
            raise ValueError(f"Later: until must be an aware datetime or a timedelta, not {until!r}.")
        if until is not None and not isinstance(until, (datetime, timedelta)):
            raise TypeError(f"Later: until must be an aware datetime or a timedelta, not {until!r}.")
        self.after: Final[tuple[UUID, ...] | None] = None if after is None else _runs(after)
        self.message: Final = str(message)

    def delay_from(self, now: datetime | None) -> float | None:
        """Seconds from now, or None if it is time already. A date needs to know when now is."""
        if self.until is None:
            return None
        left = self.until if isinstance(self.until, timedelta) else self.until - (now or timezone.now())
        return max(left.total_seconds(), 0.0) or None


def _runs(after: Any) -> tuple[UUID, ...]:
    try:
        found: tuple[UUID, ...] = options.parse("after", after)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("Task option after", "Later: after", 1)) from None
    return found
