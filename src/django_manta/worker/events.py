"""
Every event of a run, logged: claimed, started, settled, retried, lost, returned, quarantined.

One line each, with run id, task, queue, attempt, worker and duration, as text or as JSON; through
structlog where the project has configured it, so that the project's own processors see them. Control characters are
escaped: a row that was written by hand may name a task or queue that would look like another line, or steer a terminal.
"""

import json
import logging
import sys
from textwrap import indent
from typing import Any
from uuid import UUID

from django_manta.ledger import Claimed
from django_manta.states import CHARGED, ENDS, Outcome, State
from django_manta.text import on_one_line, visible, visible_json

LOGGER = "django_manta.events"

_log = logging.getLogger(LOGGER)

_NAMES = {
    Outcome.RETURNED: "returned",
    Outcome.CRASHED: "crashed",
    Outcome.INTERRUPTED: "interrupted",
}


def name_of(outcome: Outcome, state: State) -> str:
    """What it is called that an attempt ended so, and its run went there."""
    if state is State.QUARANTINED:
        return "quarantined"
    if outcome in CHARGED and state not in ENDS:
        return "retried"
    return _NAMES.get(outcome, "settled")


def level_of(outcome: Outcome, state: State) -> int:
    if state in ENDS and state is not State.SUCCESSFUL:
        return logging.WARNING
    return logging.WARNING if outcome is Outcome.CRASHED else logging.INFO


def facts_of(claim: Claimed, worker: str) -> dict[str, Any]:
    return {
        "run": claim.id,
        "task": claim.task,
        "queue": claim.queue,
        "attempt": claim.attempts,
        "worker": worker,
    }


def are_told(level: int = logging.INFO) -> bool:
    """Whether anybody listens: to ask is cheaper than to gather the facts."""
    return _log.isEnabledFor(level)


def tell(event: str, *, level: int = logging.INFO, **facts: Any) -> None:
    """Log an event. Cheap when nobody listens: the caller's facts are not formatted."""
    if not _log.isEnabledFor(level):
        return
    structlog: Any = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        # Renderers know what to do with text, and little else. Not all of them escape what is in it.
        told = {
            name: on_one_line(str(value)) if isinstance(value, str | UUID) else value for name, value in facts.items()
        }
        structlog.get_logger(LOGGER).log(level, event, **told)
    else:
        _log.log(level, event, extra={"manta_event": event, "manta_facts": facts})


class TextFormatter(logging.Formatter):
    """``time level event key=value …``"""

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "manta_facts", None)
        if facts is None:
            line = f"{self.formatTime(record)} {record.levelname:7} {record.getMessage()}"
        else:
            pairs = " ".join(f"{name}={value}" for name, value in facts.items() if value not in (None, ""))
            line = f"{self.formatTime(record)} {record.levelname:7} {record.getMessage()} {pairs}"
        line = on_one_line(line)
        if record.exc_info:
            # Indented, so that no line of a message in it looks like one of the log.
            line += "\n" + indent(visible(self.formatException(record.exc_info)), "  ")
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            **{name: value for name, value in getattr(record, "manta_facts", {}).items() if value is not None},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return visible_json(json.dumps(line, default=str, ensure_ascii=False))


def configure(log_format: str, verbosity: int) -> None:
    """Log to standard error in ``text`` or ``json``, for a worker started from a terminal or a unit."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logger = logging.getLogger("django_manta")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))
    # A line for each claim, start and end is for who asks for it; failures and losses are always told.
    _log.setLevel(logging.WARNING if verbosity < 2 else logging.DEBUG)
