"""The worker processes of a contender: started, found, weighed, and ended without a trace."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

#: How long workers may take to leave when they are told to.
STOP_SECONDS = 6.0

#: In the environment of every worker and of all that it starts.
MARK = "MANTA_PEERS_WORKER"


class Trouble(Exception):
    """A contender did not do what it was asked for: there is nothing to measure."""


class Workers:
    """``python ARGUMENTS``, one process for each line of arguments, and whatever these start."""

    def __init__(self, commands: Sequence[Sequence[str]], log: Path) -> None:
        self.log = log
        self.mark = uuid.uuid4().hex
        environment = {**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.processes = []
        with log.open("a") as output:
            for arguments in commands:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, *arguments],
                        cwd=ROOT,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def check(self) -> None:
        """Raise Trouble if one of them has gone."""
        for process in self.processes:
            if process.poll() is not None:
                raise Trouble(
                    f"A worker ended with exit code {process.returncode}. Its last words: {self.last_words()}"
                )

    def members(self) -> list[int]:
        """
        The live ones, and the live ones that they have started.

        By descent and by a mark in their environment: daemons leave their parents, and who sets his title
        overwrites what can be seen of his environment.
        """
        parents: dict[int, int] = {}
        ours = {process.pid for process in self.processes}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state in "ZX":
                    continue
                pid = int(entry.name)
                parents[pid] = int(parent)
                if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    ours.add(pid)
        while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
            ours |= more
        return sorted(ours & parents.keys())

    @contextmanager
    def still(self) -> Iterator[None]:
        """
        They do nothing during the block (SIGSTOP), and go on after it.

        Who looks for work while a million rows are being inserted that nobody can see yet walks over all of them, and
        may be in the middle of that when they appear. Ray's own processes go on: others would take them for dead.
        """
        stopped = [pid for pid in self.members() if not _is_of_ray(pid)]
        for pid in stopped:
            _send(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                _send(pid, signal.SIGCONT)

    def memory(self) -> int:
        """Bytes of all together (PSS: a page that several share counts once among them)."""
        total = 0
        for pid in self.members():
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
        return total

    def end(self) -> None:
        """Ask them to leave; end by their ids those that are still there after a while."""
        members = self.members()
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
            time.sleep(0.02)
        for pid in {*self.members(), *(pid for pid in members if self._is_same(pid))}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def _is_same(self, pid: int) -> bool:
        """Whether it still is who was seen: its number may have been given away."""
        with suppress(OSError):
            return self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-400:] or "(nothing)"


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_of_ray(pid: int) -> bool:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return (
            command.startswith(b"ray::")
            or b"/ray/core/" in command
            or b"/ray/_private/" in command
            or (b"/ray/dashboard/" in command)
        )
    return False
