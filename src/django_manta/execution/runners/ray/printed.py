"""
Where on Ray the words of an attempt are.

Ray has each of its processes print into two files on its node, which last as long as its session. A process executes
many runs, so a reference says which part of the files is an attempt's, besides the Ray task and the node::

    ray: task=0f… node=c4… log=/tmp/ray/session_…/logs/worker-…-01000000-4711 out=0-310 err=0-

The name of the files says the rest: Ray's session, and of the process its id, its Ray job and its pid.
"""

import os
import sys
from pathlib import Path
from typing import NamedTuple, Self

PREFIX = "ray: "

#: How the names of the two files end.
_ENDINGS = (".out", ".err")

#: Of a longer log the end is read.
MOST_BYTES = 6 * 1024 * 1024

type Sizes = tuple[int, int]


class Reference(NamedTuple):
    """Where an attempt's words are. A part without an end goes on to where the file ends now."""

    task: str
    node: str
    log: str
    out: tuple[int, int | None]
    err: tuple[int, int | None]

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for what is no such reference."""
        if not text.startswith(PREFIX):
            return None
        try:
            # Where files are is for Ray to say: there may be a blank in it.
            head, _, rest = text.removeprefix(PREFIX).partition(" log=")
            log, out, err = rest.rsplit(" ", 2)
            task, node = (part.partition("=")[2] for part in head.split(" "))
            return cls(task, node, log, _part(out), _part(err))
        except ValueError:
            return None

    @property
    def job(self) -> str:
        """Ray's job that the process belongs to, which is that of a foreman's first worker."""
        return self.log.split("-")[-2] if self.log.count("-") > 1 else ""

    def link(self, dashboard: str) -> str:
        """Where Ray's dashboard shows the task."""
        return f"{dashboard.rstrip('/')}/#/jobs/{self.job}/tasks/{self.task}"


def _part(text: str) -> tuple[int, int | None]:
    begin, _, end = text.partition("=")[2].partition("-")
    return int(begin), int(end) if end else None


class Files:
    """The two files of this process, if Ray has it print into files."""

    def __init__(self) -> None:
        places = [_place(descriptor, ending) for descriptor, ending in zip((1, 2), _ENDINGS, strict=True)]
        #: What their names have in common. Where logs are rotated they are not ours to find.
        self.log = places[0] if places[0] == places[1] else ""

    def sizes(self) -> Sizes:
        try:
            return (os.fstat(1).st_size, os.fstat(2).st_size) if self.log else (0, 0)
        except OSError:
            # A task has closed them.
            return 0, 0

    def head(self, task: str, node: str) -> str:
        """What the references of one Ray task have in common."""
        return f"{PREFIX}task={task} node={node} log={self.log}" if self.log else ""


def part(began: Sizes, ended: Sizes | None = None) -> str:
    """The rest of a reference: which part of the files it means."""
    out, err = ("", "") if ended is None else ended
    return f" out={began[0]}-{out} err={began[1]}-{err}"


def _place(descriptor: int, ending: str) -> str:
    try:
        place = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return ""
    return place.removesuffix(ending) if place.endswith(ending) else ""


def flush() -> None:
    """What was printed may not have reached the files yet."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # The task has closed it.
            continue


def read(log: str, out: tuple[int, int | None], err: tuple[int, int | None], most: int = MOST_BYTES) -> str | None:
    """The words themselves, on the node that has the files; None if it has them no more."""
    found = []
    for ending, (begin, end) in zip(_ENDINGS, (out, err), strict=True):
        try:
            with Path(log + ending).open("rb") as file:
                end = file.seek(0, os.SEEK_END) if end is None else end
                file.seek(max(begin, end - most))
                found.append(file.read(max(end - file.tell(), 0)).decode("utf-8", "replace"))
        except FileNotFoundError:
            continue
    return _without_marks("".join(found)) if found else None


def _without_marks(text: str) -> str:
    """Ray writes into the files, between the words of tasks, whose words come next."""
    marks = (":job_id:", ":task_name:", ":actor_name:")
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(marks))
