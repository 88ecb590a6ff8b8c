"""The storms' app: what a storm needs of the processes of a worker before they begin."""

import os
import select
import time

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "chaos"

    def ready(self) -> None:
        if seconds := os.environ.get("MANTA_CHAOS_PRUNE_SECONDS"):
            from django_manta.worker import caretaker

            # What a worker otherwise does once a minute.
            caretaker.PRUNE_SECONDS = float(seconds)
        if "FAKETIME" in os.environ:
            time.sleep = _sleep  # type: ignore[assignment]


def _sleep(seconds: float) -> None:
    """libfaketime mistakes the monotonic moment until which Python sleeps for one of the clock that it fakes."""
    select.select([], [], [], seconds)
