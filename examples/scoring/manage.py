#!/usr/bin/env python
"""Django's command line for this project: `python examples/scoring/manage.py score` does it all."""

import os
import sys
from pathlib import Path

from django.core.management import execute_from_command_line


def main() -> None:
    # Project and app are one package here: make the folder around it importable, not the package's inside.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scoring.settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
