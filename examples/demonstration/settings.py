"""The project's settings, with a lease so short that one can watch a dead worker being missed."""

from montecarlo.settings import *  # noqa: F403
from montecarlo.settings import TASKS

TASKS["default"]["OPTIONS"]["LEASE_SECONDS"] = 2
