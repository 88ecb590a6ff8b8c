"""Settings of a second project on the same Ray: the same key and the same tasks, other settings, another database."""

from chaos.settings import *  # noqa: F403
from chaos.settings import DATABASES

DATABASES["default"]["NAME"] += "_neighbour"
