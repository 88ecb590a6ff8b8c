"""A worker that gives a task which has returned little time to store its value."""

import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from django_manta.execution.runners import processes

if __name__ == "__main__":
    processes.STORE_SECONDS = 2.0  # type: ignore[attr-defined]
    execute_from_command_line(sys.argv)
