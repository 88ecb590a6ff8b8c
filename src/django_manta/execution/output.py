"""
Keeps the tail of what a task prints.

What goes through ``sys.stdout`` and ``sys.stderr`` reaches its destination as before and is also
written to a file in memory that the worker holds open, too: when the process dies, its last words
are still there. What C code prints, or a process that the task starts, is not in it.
"""

import faulthandler
import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from django_manta import text
from django_manta.current import current_run
from django_manta.execution.descriptors import far_away

#: How much of the output is kept with a failed attempt, in bytes.
TAIL_BYTES = 8 * 1024

#: The file is begun anew when it has grown past this: only the tail is ever wanted.
_FILE_LIMIT = 1024 * 1024


class Recorder:
    """Writes to a file descriptor, which it takes over, what is printed, and reads its tail."""

    def __init__(self, descriptor: int, also: Callable[[str], None] | None = None) -> None:
        self.descriptor = far_away(descriptor)
        self._file = self._look()
        self._also = also
        self._written = 0
        #: A task has closed the file, and its descriptor may be another's: nothing is recorded any more.
        self.is_lost = False

    def install(self) -> None:
        # What a process prints that a task forks is its own.
        os.register_at_fork(after_in_child=self._lose)
        sys.stdout = _Tee(sys.stdout, self)
        sys.stderr = _Tee(sys.stderr, self)
        # The interpreter's last words on a segmentation fault go where the worker can read them.
        faulthandler.enable(self.descriptor)

    def record(self, data: str) -> None:
        if self._written > _FILE_LIMIT:
            self.begin()
        encoded = data.encode("utf-8", "replace")
        self._written += len(encoded)
        if self._has_its_file():
            os.write(self.descriptor, encoded)
        if self._also is not None:
            self._also(data)

    def begin(self) -> None:
        """A new execution: forget what was printed before."""
        if self._written:
            self._written = 0
            if self._has_its_file():
                os.ftruncate(self.descriptor, 0)
                os.lseek(self.descriptor, 0, os.SEEK_SET)

    def _has_its_file(self) -> bool:
        if not self.is_lost and self._look() != self._file:
            self._lose()
        return not self.is_lost

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.fstat(self.descriptor)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _lose(self) -> None:
        self.is_lost = True
        faulthandler.disable()

    @property
    def has_words(self) -> bool:
        """Whether anything was printed since the execution began."""
        return self._written > 0

    def tail(self) -> str:
        return tail_of(self.descriptor) if self._written and self._has_its_file() else ""


class SharedRecorder(Recorder):
    """
    That of a process that executes many runs at a time: each has a tail of its own, of what its code prints in its
    own context. The file, which says what a dead process was at, holds only what a run printed while it was alone.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._tails: dict[int, str] = {}

    def record(self, data: str) -> None:
        run = current_run()
        if run is None or (tail := self._tails.get(run.token)) is None:
            return
        self._tails[run.token] = (tail + data)[-TAIL_BYTES:]
        if len(self._tails) == 1:
            super().record(data)

    def start(self, token: int) -> None:
        self._tails[token] = ""
        self.begin()

    def end(self, token: int) -> None:
        del self._tails[token]
        self.begin()

    def tail_of_run(self, token: int) -> str:
        return text.clean(self._tails[token].encode("utf-8", "replace")[-TAIL_BYTES:].decode("utf-8", "replace"))


def tail_of(descriptor: int) -> str:
    """The last bytes of a recorder's file."""
    size = os.fstat(descriptor).st_size
    data = os.pread(descriptor, TAIL_BYTES, max(size - TAIL_BYTES, 0))
    return text.clean(data.decode("utf-8", "replace"))


class _Tee(io.TextIOBase):
    def __init__(self, stream: TextIO, recorder: Recorder) -> None:
        self._stream = stream
        self._recorder = recorder

    def write(self, data: str) -> int:
        self._recorder.record(data)
        return self._stream.write(data)

    def flush(self) -> None:
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
