"""
The runner ``ray``: user code on a Ray cluster, which goes on while workers come and go.

::

    worker ──socket──▶ envoy ──Ray──▶ foreman ──Ray task──▶ chunk
    (loop)  ◀─────────  (a process    (detached   ◀──TCP───  (a Ray worker
                        of its own)     actor)                 process)

``envoy.py`` is a process that a worker starts (``envoys.py``): Ray's driver lives in there, so that a cluster that
is gone, which ends a driver after a while, ends no worker. ``foreman.py`` is the detached actor that owns the Ray
tasks; it outlives every worker, speaks JSON (``messages.py``), holds outcomes until they are settled, and needs
neither Django nor the database. ``chunk.py`` is what a Ray task does: execute some runs one after the other, and tell
the foreman of each start and end before the next begins.

The kernel delivers what was written to a TCP connection even if the process that wrote it dies in the next
instant, which Ray's own calls do not do: so when a process dies the foreman knows which run it was at.

Only these modules import ray.
"""
