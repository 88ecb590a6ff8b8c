"""What every test may use. The database is chosen in databases.py, before this file is read."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

DATABASE = os.environ.get("MANTA_TEST_DATABASE", "postgres")

# Real databases take their time: a slow example is no failure. CI looks at the same examples every time.
unhurried: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
hypothesis_settings.register_profile("people", **unhurried)
hypothesis_settings.register_profile("ci", **unhurried, derandomize=True, print_blob=True)
hypothesis_settings.load_profile("ci" if os.environ.get("CI") else "people")


def pytest_report_header() -> str:
    return f"database: {DATABASE}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for needed in ("postgres", "sqlite"):
            if needed != DATABASE and item.get_closest_marker(needed):
                item.add_marker(pytest.mark.skip(reason=f"needs {needed}, this run is on {DATABASE}"))


@pytest.fixture
def subprocess_environment(db: None) -> dict[str, str]:
    """An environment for processes that a test starts: they use the test's databases.

    They see only what is committed: ask for `transactional_db` too.
    """
    from django.db import connections

    from tests.databases import environment_for

    return environment_for(connections["default"].settings_dict, connections["other"].settings_dict)
