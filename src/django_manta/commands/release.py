"""
Let held runs go, by id or by filter: to wait for their date if it is still ahead, or ready at once.
"""

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from django_manta.commands import moving
from django_manta.states import State

HELP = "let held runs go"

MOVE = moving.Move("release", "released", frozenset({State.HELD}))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    moving.add_arguments(parser, MOVE)


def handle(command: BaseCommand, options: dict[str, Any]) -> int:
    return moving.handle(command, options, MOVE)
