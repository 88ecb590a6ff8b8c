"""
For the tests of projects that use django-manta.

``run_all()`` executes what was enqueued, here and now, through the real ledger; it works inside a
``TestCase``, whose transaction never commits. ``TaskAssertions`` and the pytest fixtures in
``plugin.py`` say what was enqueued. The two backends stand in for Django's of the same name, which
refuse our options at import.
"""

from django_manta.testing.assertions import TaskAssertions
from django_manta.testing.backends import DummyBackend, ImmediateBackend
from django_manta.testing.draining import TooManyRuns, run_all

__all__ = ["DummyBackend", "ImmediateBackend", "TaskAssertions", "TooManyRuns", "run_all"]
