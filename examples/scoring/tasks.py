"""The tasks: score the rows between two primary keys, and add up what came of it."""

import os
import socket
from typing import TypedDict

from django_manta import task

from scoring import sentiment
from scoring.models import Review


class Batch(TypedDict):
    """What is left to know of a batch: its scores are in the table."""

    rows: int
    total: float
    #: Who scored it, and how often the model has been loaded there by now.
    process: str
    loads: int


# On GPUs: @task(queue_name="scoring", ray={"num_gpus": 1}), and Ray shows each process the one that it was given.
@task(queue_name="scoring")
def score_batch(first: int, last: int) -> Batch:
    """A second attempt writes the same scores again, so it need not be atomic."""
    model = sentiment.load()
    reviews = list(Review.objects.filter(pk__range=(first, last)))
    scores = model.score([review.text for review in reviews])
    for review, score in zip(reviews, scores, strict=True):
        review.score = score
    Review.objects.bulk_update(reviews, ["score"])
    return {
        "rows": len(reviews),
        "total": sum(scores),
        "process": f"{socket.gethostname()}:{os.getpid()}",
        "loads": sentiment.load.cache_info().misses,
    }


class Summary(TypedDict):
    rows: int
    batches: int
    mean: float
    processes: int
    loads: int


@task(queue_name="scoring")
def summarise(batches: list[Batch]) -> Summary:
    """Waits for all batches: their results are its argument."""
    rows = sum(batch["rows"] for batch in batches)
    loads: dict[str, int] = {}
    for batch in batches:
        loads[batch["process"]] = max(loads.get(batch["process"], 0), batch["loads"])
    return {
        "rows": rows,
        "batches": len(batches),
        "mean": sum(batch["total"] for batch in batches) / max(rows, 1),
        "processes": len(loads),
        "loads": sum(loads.values()),
    }
