"""
Somebody who enqueues at a constant rate, in a process of their own: ``python -m benchmarks.inflow QUEUE RATE SECONDS``.

So many runs at a time, each batch at its own moment: a slow one delays the next and is made up for, so that the rate
is what was asked for, and says by how much the last one was late.
"""

import json
import os
import sys
import time

#: Batches a second.
BATCHES = 20


def main(queue: str, rate: float, seconds: float) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")
    import django

    django.setup()
    from benchmarks import tasks

    task = tasks.resize.using(queue_name=queue)
    batches = max(1, round(seconds * BATCHES))
    began, enqueued, worst, late = time.monotonic(), 0, 0.0, 0.0
    print("ready", flush=True)
    for number in range(batches):
        late = time.monotonic() - began - number / BATCHES
        worst = max(worst, late)
        if late < 0:
            time.sleep(-late)
        # What is left over by a rate that is no multiple goes to a later batch.
        count = round((number + 1) * rate / BATCHES) - enqueued
        task.enqueue_many([tasks.arguments(enqueued + each) for each in range(count)])
        enqueued += count
    print(json.dumps({"enqueued": enqueued, "worst": worst, "late": max(0.0, late)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
