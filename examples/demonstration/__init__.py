"""
What `examples/demo.py` shows around the project in `montecarlo/`, in the order in which it happens.

``scratch`` makes a database to work in, ``cluster`` a Ray, if one is asked for; ``work`` enqueues runs and sees them
through, ``workers`` starts the processes that execute them and ends them, ``starts`` counts how often that begins,
``terminal`` shows it, ``answers`` adds the results up, ``plot`` draws them, ``claims`` checks that what was promised
was kept. ``settings`` are the project's with a shorter lease. What ``demo.py`` imports at
its top can be imported before Django is set up.
"""
