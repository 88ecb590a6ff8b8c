"""Listens to the doorbell, whose descriptor the loop waits on and which changes when the bell reconnects."""

import contextlib
import selectors

from django.db import Error as DatabaseError

from django_manta.worker.doorbell import Doorbell


class Ear:
    """Its worker's end of the doorbell."""

    def __init__(self, bell: Doorbell, selector: selectors.BaseSelector) -> None:
        self.bell = bell
        self._selector = selector
        self._watched: int | None = None
        #: When to ask the doorbell next: at once when its descriptor moves.
        self.ask_at = 0.0
        self._watch()

    def hear(self, now: float) -> list[str]:
        """What was rung, if it is time to ask."""
        if now < self.ask_at:
            return []
        try:
            rung = self.bell.rang()
        except DatabaseError:
            rung = []
        # After it was asked: a bell that just lost its connection wants to be asked again soon.
        patience = self.bell.patience()
        self.ask_at = float("inf") if patience is None else now + patience
        self._watch()
        return rung

    def _watch(self) -> None:
        descriptor = self.bell.fileno()
        if descriptor == self._watched:
            return
        if self._watched is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(self._watched)
        self._watched = descriptor
        if descriptor is not None:
            self._selector.register(descriptor, selectors.EVENT_READ, self._moved)

    def _moved(self) -> None:
        self.ask_at = 0.0
