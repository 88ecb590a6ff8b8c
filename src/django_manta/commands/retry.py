"""
Retry runs that ended badly, by id or by filter: ready at once, with a fresh budget and no expiry.

Filters and --all leave out what somebody cancelled: say --state CANCELLED, or ids, to have it back.
"""

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from django_manta.commands import moving
from django_manta.states import BAD_ENDS, State

HELP = "retry runs that ended badly"

MOVE = moving.Move("retry", "retried", BAD_ENDS, only_if_named=frozenset({State.CANCELLED}))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    moving.add_arguments(parser, MOVE)


def handle(command: BaseCommand, options: dict[str, Any]) -> int:
    return moving.handle(command, options, MOVE)
