"""
Moments as whole microseconds since the year 2000, by the database's clock: as PostgreSQL keeps them.

So they travel with claims, from the database through the worker to the executor. Dates would be made from a row,
written down and made anew in another process, thousands of times a second, and that took longer than to verify,
decode, call and sign a short run; and most of them nobody ever looks at.
"""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


#: The second day of Python's calendar, and its last moment.
FIRST, LAST = -63_082_195_200_000_000, 252_455_615_999_999_999


def to_microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def to_datetime(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def to_datetime_or_none(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else to_datetime(microseconds)
