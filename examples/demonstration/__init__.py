"""
What `examples/demo.py` shows around the project in `montecarlo/`, in the order in which it happens.

``scratch`` makes a database to work in, ``work`` enqueues runs and sees them through, ``workers`` starts the
processes that execute them and ends them, ``terminal`` shows it, ``answers`` adds the results up, ``plot`` draws
them, ``claims`` checks that what was promised was kept. ``settings`` are the project's with a shorter lease.
Only ``scratch`` and ``workers`` can be imported before Django is set up.
"""
