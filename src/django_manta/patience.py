"""
How often somebody who waits for runs looks at them.

Nobody tells a waiting caller that its run has ended: that would cost every run something, for the few that are waited
for. It looks, at first as often as a short run can end, then after a sixteenth of the time that it has waited already:
what it learns late it learns late in proportion, and a thousand callers that wait for long ask for little.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

#: No run has ended so soon after it was enqueued: to look for it would only take the time of whoever executes it.
HEAD_START_SECONDS = 0.002
_NEW = timedelta(seconds=0.5)

#: Between two looks: at least, at most, and which part of the time waited so far.
_LEAST_SECONDS, _MOST_SECONDS, _SHARE = 0.002, 0.5, 1 / 16


def pauses(timeout: float | None) -> Iterator[float | None]:
    """How long to sleep after each look; None after the last one."""
    began = time.monotonic()
    while timeout is None or (left := timeout - (time.monotonic() - began)) > 0:
        pause = min(max((time.monotonic() - began) * _SHARE, _LEAST_SECONDS), _MOST_SECONDS)
        yield pause if timeout is None else min(pause, left)
    yield None


def is_new(enqueued_at: datetime | None) -> bool:
    """Whether a run was enqueued a moment ago. A clock that is wrong costs a look, or the head start."""
    return enqueued_at is not None and abs(datetime.now(UTC) - enqueued_at) < _NEW
