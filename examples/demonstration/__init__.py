"""
What `examples/demo.py` shows around the project in `montecarlo/`, in the order in which it happens.

``scratch`` makes a database to work in, ``work`` enqueues runs and drains them, ``terminal`` shows it,
``answers`` adds the results up, ``plot`` draws them, ``claims`` checks that what was promised was kept.
Only ``scratch`` can be imported before Django is set up.
"""
