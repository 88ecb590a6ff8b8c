"""
A thread that the worker cannot do without: its heart, its caretaker.

Such a thread catches what it expects. If something else ends it, a SystemExit for example, the worker ends as well:
otherwise it would keep its lease, or its runs, and leave undone what the thread was for.
"""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger("django_manta")


class Duty(threading.Thread):
    """Calls ``on_death`` in its own thread if ``work`` raises anything."""

    def __init__(self, name: str, on_death: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._on_death = on_death

    def work(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        try:
            self.work()
        except BaseException:
            logger.critical("The thread %s died; the worker ends.", self.name, exc_info=True)
            self._on_death()
