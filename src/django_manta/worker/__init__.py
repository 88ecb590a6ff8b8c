"""
The worker: claims, dispatches, settles, keeps its lease, tends the house.

``loop.py`` is the process. ``claimer.py`` claims; ``hands.py`` has what is claimed and not settled;
``dispatch.py`` decides which child gets what; ``settling.py`` sends outcomes to the ledger in batches.
``doorbell.py`` wakes an idle worker, ``lookout.py`` says when it looks by itself; ``heart.py`` keeps the
lease and finds lost ones; ``caretaker.py`` promotes, expires, recovers and prunes; ``events.py`` tells
what happened. Worker imports ledger and execution; neither knows of it.
"""
