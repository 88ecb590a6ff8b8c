"""The project's settings, with a lease so short that one can watch a dead worker being missed; and Ray, if there is."""

import os

from demonstration.cluster import ADDRESS
from montecarlo.settings import *  # noqa: F403
from montecarlo.settings import TASKS

OPTIONS = TASKS["default"]["OPTIONS"] | {"LEASE_SECONDS": 2, "MIDDLEWARE": ["demonstration.starts.noted"]}
if ADDRESS in os.environ:
    OPTIONS |= {
        "QUEUE_OPTIONS": {queue: {"runner": "ray"} for queue in TASKS["default"]["QUEUES"]},
        # By default it is a hundred: what one worker had claimed would be half of the demonstration.
        "RAY": {"ADDRESS": os.environ[ADDRESS], "AHEAD": 10},
    }
TASKS["default"]["OPTIONS"] = OPTIONS
