"""
``python -m chaos.filler RUNS SECONDS``: enqueues runs one by one, for so long after the first was refused.

Prints how many were accepted, how many refused, and in which words.
"""

import json
import sys
import time

import django

#: Each run is so large that a small disk is soon full.
PADDING = "." * 2_000


def fill(runs: int, seconds: float) -> dict[str, object]:
    from django.db import DatabaseError

    from chaos import tasks

    accepted = refused = 0
    words: set[str] = set()
    end = float("inf")
    while accepted < runs and time.monotonic() < end:
        try:
            tasks.carry.enqueue(PADDING)
            accepted += 1
        except DatabaseError as error:
            words.add(f"{type(error).__name__}: {error}")
            refused += 1
            end = min(end, time.monotonic() + seconds)
            time.sleep(0.02)
    return {"accepted": accepted, "refused": refused, "words": sorted(words)}


if __name__ == "__main__":
    django.setup()
    print(json.dumps(fill(int(sys.argv[1]), float(sys.argv[2]))))
