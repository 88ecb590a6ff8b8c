import os
from pathlib import Path

from django.apps import AppConfig


class BenchmarksConfig(AppConfig):
    """An app, so that workers find the tasks, and so that each of their processes can be told to take notes."""

    name = "benchmarks"

    def ready(self) -> None:
        if directory := os.environ.get("MANTA_BENCH_TRACE"):
            from benchmarks import tracing

            tracing.install(Path(directory))
        if directory := os.environ.get("MANTA_BENCH_CLAIMS"):
            from benchmarks import claims

            claims.install(Path(directory))
