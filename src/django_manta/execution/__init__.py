"""
Execution: what happens to one claimed run, the same in every runner.

``executor.py`` verifies, resolves, calls and settles on an outcome; ``policy.py`` decides between
another attempt and the end; ``middleware.py`` is the chain around the call; ``desk.py`` stores what
a running task tells; ``limits.py`` raises inside what runs too long; ``runners/`` hold the places
where an executor lives. Execution knows the ledger (an atomic run settles itself) and nothing of
the worker.
"""
