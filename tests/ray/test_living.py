"""Whether a process of Ray is alive, as its node's operating system tells: real processes, no Ray."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_manta.execution.runners.ray import living

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process without a title of Ray's, as one that executes a task which calls setproctitle."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def test_a_process_that_took_another_title_is_alive_until_it_ends(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who asks is a child of the same process.
    monkeypatch.setattr(living.os, "getppid", os.getpid)
    assert living.is_alive(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not living.is_alive(process.pid)
    process.wait()
    assert not living.is_alive(process.pid)


def test_another_process_that_got_the_number_of_a_dead_one_is_not_taken_for_it(
    process: subprocess.Popen[bytes],
) -> None:
    assert not living.is_alive(process.pid)
