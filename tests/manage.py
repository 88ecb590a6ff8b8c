"""The tests' project: `python -m tests.manage COMMAND`, from the root of the repository."""

import os
import sys

from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    execute_from_command_line(["tests.manage", *sys.argv[1:]])


if __name__ == "__main__":
    main()
