"""
Keep runs back that have not started, by id or by filter, until they are released.

A date that a run waits for stays.
"""

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from django_manta.commands import moving
from django_manta.states import PENDING, State

HELP = "keep runs back"

MOVE = moving.Move("hold", "held", PENDING - {State.HELD}, goal=frozenset({State.HELD}), takes_reason=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    moving.add_arguments(parser, MOVE)


def handle(command: BaseCommand, options: dict[str, Any]) -> int:
    return moving.handle(command, options, MOVE)
