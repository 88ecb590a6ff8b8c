"""
What ``manage.py manta`` can do: one module a verb.

A verb has ``HELP`` (one line), a docstring (the description), ``add_arguments(parser)`` and
``handle(command, options)``, which returns an exit code or None. Verbs are thin: they read
arguments, call what is importable elsewhere, and print. Beside the verbs: ``choosing.py`` (which
backend, which runs), ``moving.py`` (what cancel, retry, hold and release share), ``explaining.py`` and
``looking.py`` (why a run is not running, and what there is to see), ``charting.py`` and ``drawing.py``
(what of a graph is drawn, and how), ``printing.py``, ``reloading.py`` (``worker --reload``) and
``workers.py`` (workers as their leases show them).
"""

#: In the order of ``--help``.
VERBS = (
    "worker",
    "info",
    "list",
    "show",
    "logs",
    "explain",
    "graph",
    "cancel",
    "retry",
    "hold",
    "release",
    "pause",
    "resume",
    "prune",
    "recover",
    "cluster",
    "fsck",
    "doctor",
    "health",
)
