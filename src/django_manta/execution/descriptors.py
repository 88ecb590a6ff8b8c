"""Descriptors of ours in processes that execute tasks, which may close any, or one twice."""

import fcntl
import os

#: Descriptors from here on are not met by accident.
FAR_AWAY = 512


def far_away(descriptor: int) -> int:
    """The same file by another descriptor, a high one if the process may have it, and by no other."""
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FAR_AWAY)
    except OSError:
        return descriptor
    os.close(descriptor)
    return moved
