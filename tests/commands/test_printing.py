"""Text that is aligned, tables on a terminal, and nothing that steers it."""

import subprocess
import sys

import pytest

from django_manta.commands import printing
from tests.app import tasks
from tests.commands.conftest import manta


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0ms"),
        (0.0031, "3.1ms"),
        (0.12, "0.12s"),
        (9.994, "9.99s"),
        (42, "42s"),
        (59.6, "1m00s"),
        (200, "3m20s"),
        (7500, "2h05m"),
        (356_400, "4d03h"),
        (-90, "-1m30s"),
    ],
)
def test_durations_have_two_units_at_the_most(seconds: float, words: str) -> None:
    assert printing.duration(seconds) == words


def test_a_tail_says_what_was_left_out() -> None:
    assert printing.tail("a\nb\n", 2) == "a\nb"
    assert printing.tail("a\nb\nc\nd\n", 2) == "… 2 lines\nc\nd"
    assert printing.tail("", 2) == ""


def test_control_characters_are_shown() -> None:
    assert printing.clean("a\x1b[2Jb\x9bc\td\ne\x00") == "a\\x1b[2Jb\\x9bc\td\ne\\x00"


@pytest.mark.django_db
def test_a_terminal_gets_tables_of_rich() -> None:
    tasks.add.using(queue_name="slow").enqueue(1, 1)
    on_a_terminal, elsewhere = manta("list", terminal=True).out, manta("list").out
    assert "\x1b[1m" in on_a_terminal  # a bold head
    assert "\x1b" not in elsewhere
    assert "READY" in on_a_terminal


@pytest.mark.django_db
def test_a_terminal_without_rich_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.add.enqueue(1, 1)
    monkeypatch.setattr(printing, "find_spec", lambda name: None)
    assert manta("list", terminal=True).out == manta("list").out


@pytest.mark.django_db
def test_markup_in_a_name_is_no_markup() -> None:
    tasks.add.using(hold=True).enqueue(1, 1)
    manta("hold", "--all")
    manta("release", "--all")
    manta("hold", "--all", "--reason", "[bold]not[/bold] \x1b[31m")
    assert "[bold]not" in manta("list", terminal=True).out.replace("\n", "")
    assert "\x1b[31m" not in manta("list", terminal=True).out


def test_rich_is_not_loaded_before_it_draws() -> None:
    """A worker loads the verbs and has no use for it."""
    looks = "import sys, django_manta.commands.printing; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", looks], timeout=60).returncode == 0
