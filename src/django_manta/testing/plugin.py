"""
The pytest plugin, loaded by itself wherever django-manta is installed.

It is imported before Django's settings are read, so nothing here imports a model at module level.
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def run_all(db: None) -> Callable[..., Any]:
    """``django_manta.testing.run_all``: execute what was enqueued."""
    from django_manta.testing.draining import run_all

    return run_all


@pytest.fixture
def assert_enqueued(db: None) -> Callable[..., Any]:
    """``assert_enqueued(task, *args, **kwargs)``: fail unless just that was enqueued; return its result."""
    from django_manta.testing.assertions import assert_enqueued

    return assert_enqueued
