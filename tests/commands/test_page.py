"""docs/commands.md names every verb and every flag, and no other."""

import argparse
import re
from importlib import import_module

import pytest

from django_manta.commands import VERBS
from django_manta.management.commands.manta import Command
from tests.test_documentation import cells, code, section, table

PAGE = "docs/commands.md"


def parsers() -> dict[str, argparse.ArgumentParser]:
    parser = Command().create_parser("manage.py", "manta")
    [verbs] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(verbs.choices)


def flags(verb: str) -> set[str]:
    return {flag for action in parsers()[verb]._actions for flag in action.option_strings}


def flags_in(text: str) -> set[str]:
    """The flags in the first column of the tables under a heading."""
    rows = [cells(line)[0] for line in text.splitlines() if line.startswith("| `-")]
    return {flag for row in rows for flag in re.findall(r"`(--?[a-z-]+)", row)}


def test_every_verb_is_listed_in_the_order_of_the_help() -> None:
    listed = [re.match(r"\[`(\w+)`\]\(#(\w+)\)", row["verb"]) for row in table(PAGE, "Commands")]
    assert [found.groups() for found in listed if found] == [(verb, verb) for verb in VERBS]
    for row, verb in zip(table(PAGE, "Commands"), VERBS, strict=True):
        assert row["does"] == import_module(f"django_manta.commands.{verb}").HELP


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_of_every_verb_is_documented(verb: str) -> None:
    everywhere, own = flags_in(section(PAGE, "Every verb")), flags_in(section(PAGE, verb))
    assert everywhere & own == set()
    assert own | everywhere == flags(verb) | ({"--format"} if verb == "worker" else set())


def test_every_line_of_the_doctor_is_documented() -> None:
    rows = [code(row["line"]) for row in table(PAGE, "doctor")]
    assert rows == [
        *(
            "settings",
            "database",
            "migrations",
            "doorbell",
            "clock",
            "key",
            "workers",
            "orphans",
            "retention",
            "ledger",
        ),
    ]


def test_every_verb_has_what_a_verb_needs() -> None:
    for verb in VERBS:
        module = import_module(f"django_manta.commands.{verb}")
        assert module.__doc__
        assert module.__doc__.strip().endswith(".")
        assert module.HELP[0].islower()
        assert parsers()[verb].description == module.__doc__
