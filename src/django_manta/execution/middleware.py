"""
The chain around every execution, shaped like Django's request middleware.

A factory named in ``MIDDLEWARE`` is given the next step and returns a callable; the callable gets
the TaskContext, whether or not the task itself takes one, and returns what the task returned::

    def timing(get_value):
        def middleware(context):
            started = time.monotonic()
            try:
                return get_value(context)
            finally:
                statsd.timing(context.task_result.task.name, time.monotonic() - started)

        return middleware

What a middleware raises counts as raised by the task; what it returns is what is stored.
"""

from collections.abc import Callable, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_manta.context import TaskContext
from django_manta.enqueue import load

type GetValue = Callable[[TaskContext], Any]
type Middleware = Callable[[GetValue], GetValue]


def chain(paths: Sequence[str], innermost: GetValue) -> GetValue:
    """``innermost`` wrapped in the middleware that ``paths`` name, the first one outermost."""
    wrapped = innermost
    for path in reversed(paths):
        factory: Middleware = load(path, "MIDDLEWARE")
        wrapped = factory(wrapped)
        if not callable(wrapped):
            raise ImproperlyConfigured(f"MIDDLEWARE: {path!r} returned {wrapped!r}, not a callable.")
    return wrapped
