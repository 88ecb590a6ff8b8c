"""Another project that uses the same Ray: its own settings, and the same names and key for all else."""

from tests.settings import *  # noqa: F403

PROJECT = "beside"
