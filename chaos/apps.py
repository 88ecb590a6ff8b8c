"""The storms' app: what a storm needs of the processes of a worker before they begin."""

import os

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "chaos"

    def ready(self) -> None:
        if seconds := os.environ.get("MANTA_CHAOS_PRUNE_SECONDS"):
            from django_manta.worker import caretaker

            # What a worker otherwise does once a minute.
            caretaker.PRUNE_SECONDS = float(seconds)
