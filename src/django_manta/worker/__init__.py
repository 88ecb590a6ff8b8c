"""
The worker: claims, dispatches, settles, keeps its lease and does maintenance.

``loop.py`` is the process: it also promotes what is due and marks workers as lost whose leases were not renewed
(``watch.py``). ``claimer.py`` claims; ``hands.py`` has what is claimed and not settled; ``dispatch.py`` decides which
child gets what; ``settling.py`` sends outcomes to the ledger in batches. ``doorbell.py`` wakes an idle worker,
``lookout.py`` says when it looks by itself; ``heart.py`` renews the lease; ``caretaker.py`` recovers the runs of lost
workers, expires, releases dependents and prunes; ``events.py`` logs what happened. Worker imports ledger and
execution; neither imports it.
"""
