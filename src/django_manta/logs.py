"""Puts the run on the user's own log lines."""

import logging

from django_manta.current import current_run


class RunFilter(logging.Filter):
    """
    Adds ``run_id``, ``task`` and ``attempt`` to every record; empty outside a task.

    Attach it to a handler, so that records of every logger pass it::

        LOGGING = {
            "filters": {"run": {"()": "django_manta.logs.RunFilter"}},
            "handlers": {"console": {"class": "logging.StreamHandler", "filters": ["run"]}},
            ...
        }
    """

    def filter(self, record: logging.LogRecord) -> bool:
        run = current_run()
        facts = {
            "run_id": run.run_id if run else "",
            "task": run.task if run else "",
            "attempt": run.attempt if run else "",
        }
        for name, value in facts.items():
            # What the user's own `extra` says of the same name stays.
            if not hasattr(record, name):
                setattr(record, name, value)
        return True
