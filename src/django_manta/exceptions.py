"""
What can go wrong, by name.

The classes of the first group also name ends of a run: a run that ended badly without an
exception of its own carries a ``TaskError`` whose class is one of these.
"""

from django.core.exceptions import SuspiciousOperation
from django.tasks.exceptions import TaskException


class TaskTimeout(TimeoutError):
    """
    The task ran longer than its ``timeout``.

    An OSError by inheritance, as ``TimeoutError`` is; ``retry_on=[OSError]`` does not match it,
    only naming it (or ``TimeoutError``) does.
    """


class TaskCancelled(BaseException):
    """
    The run was cancelled.

    Not an Exception, so that a task's ``except Exception`` does not swallow it.
    """


class TaskCrashed(TaskException):
    """The process that executed the run died under it."""


class TaskLost(TaskException):
    """The executions of the run vanished more often than ``max_losses`` allows."""


class TaskExpired(TaskException):
    """The run did not start before it expired."""


class TaskQuarantined(TaskException):
    """The run killed its executors too often and is kept away from them."""


class UpstreamFailed(TaskException):
    """A run that this one waited for ended badly."""


class CircularWait(TaskException):
    """The run asked to wait for something that waits for it."""


class PromiseRejected(TaskException):
    """Somebody rejected the promise."""


class TooManyLaters(TaskException):
    """The run asked to be called again more often than ``max_laters`` allows."""


class PromiseExists(TaskException):
    """An open promise bears this name already."""


class BadTaskSignature(SuspiciousOperation):
    """The row was not written by this project: its signature does not match what it asks to run."""


class TaskNotFound(TaskException, LookupError):
    """The run names a task, or a backend alias, that this code does not have."""


class NoSuchResources(TaskException):
    """No node of the Ray cluster has what the task asks for."""


class UnstorableOutcome(TaskException):
    """The database refused to store what the attempt ended with."""


class WrongKey(TaskException):
    """This process signs with another key than the rest of its cluster."""


class WrongCluster(TaskException):
    """The database belongs to another cluster than the one that this process is configured for."""


class LostLease(TaskException):
    """The run no longer belongs to this execution; whatever it did last was not recorded."""
