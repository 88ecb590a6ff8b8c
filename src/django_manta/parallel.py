"""
Plain functions, many at a time on Ray: inside a task, or in a shell.

    from django_manta.parallel import parallel_map

    scores = parallel_map(score, batches, concurrency=8, num_gpus=1)

Nothing of this is remembered: no rows, no retries. What has to survive is a run, enqueued with ``map``; this is for the
inside of one. Never more than ``concurrency`` calls are on Ray at a time, and items are taken only as fast as that: a
generator of millions is fine. What a call raises is raised here, and the others are cancelled.
"""

from django_manta.execution.runners.ray.parallel import parallel_map, scatter_gather, starmap

__all__ = ["parallel_map", "scatter_gather", "starmap"]
