"""
Cancel runs, by id or by filter.

What has not started is CANCELLED at once; what is running is CANCELLING until nothing of it runs any
more. What has ended stays as it is. What waits for them learns that they ended badly, or is cancelled, too (--cascade).
"""

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from django_manta.commands import moving
from django_manta.states import PENDING, State

HELP = "cancel runs"

MOVE = moving.Move(
    "cancel",
    "cancelled",
    PENDING | {State.RUNNING},
    goal=frozenset({State.CANCELLED, State.CANCELLING}),
    takes_reason=True,
    cascades=True,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    moving.add_arguments(parser, MOVE)


def handle(command: BaseCommand, options: dict[str, Any]) -> int:
    return moving.handle(command, options, MOVE)
