"""
Fill a table, score it on Ray, and say what it took.

What a project would have apart is together here: rows, runs and a worker. Stop it and start it again: what was enqueued
is still there, and what has a score is not enqueued again.
"""

import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django_manta import TaskResult, map_queryset

from scoring import sentiment
from scoring.models import Review
from scoring.tasks import Summary, score_batch, summarise

#: How long all of it may take, and how long a worker may take to leave.
PATIENCE_SECONDS, LEAVE_SECONDS = 300.0, 45.0


class Command(BaseCommand):
    help = "Score invented reviews with a model that each process on Ray loads once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rows", type=int, default=5_000, help="how many reviews (5000)")
        parser.add_argument("--batch", type=int, default=250, help="how many of them a run scores (250)")

    def handle(self, *args: Any, rows: int, batch: int, **options: Any) -> None:
        call_command("migrate", verbosity=0)
        missing = rows - Review.objects.count()
        Review.objects.bulk_create([Review(text=text) for text in sentiment.reviews(missing)], batch_size=1_000)

        # Durable: a row in the database for each batch, before any of them is executed. No review travels.
        batches = map_queryset(score_batch, Review.objects.filter(score=None), chunk_size=batch)
        report = summarise.enqueue(batches)
        self.stdout.write(f"{len(batches)} batches of up to {batch} reviews are enqueued.")

        began = time.monotonic()
        with worker() as process:
            self.tell(wait(report, process), time.monotonic() - began)

    def tell(self, summary: Summary, seconds: float) -> None:
        self.stdout.write(
            f"{summary['rows']} reviews in {summary['batches']} batches, mean score {summary['mean']:.3f}, "
            f"in {seconds:.1f} s.\n"
            f"{summary['processes']} processes on Ray loaded the model {summary['loads']} times in all."
        )
        unscored = Review.objects.filter(score=None).count()
        if unscored or summary["loads"] > summary["processes"]:
            raise CommandError(f"That is wrong. {unscored} reviews have no score.")


@contextmanager
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """`manage.py manta worker --runner ray`, as long as the block."""
    with subprocess.Popen([sys.executable, sys.argv[0], "manta", "worker", "--runner", "ray", "-v", "0"]) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def wait(report: TaskResult[Summary], process: subprocess.Popen[bytes]) -> Summary:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return report.join(timeout=1)
        except TimeoutError:
            continue
    raise CommandError(f"The worker left, or took too long. Still to do: {report.id}.")
