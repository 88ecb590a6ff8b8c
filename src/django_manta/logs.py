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
        record.run_id = run.run_id if run else ""
        record.task = run.task if run else ""
        record.attempt = run.attempt if run else ""
        return True
