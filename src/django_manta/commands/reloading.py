"""
What ``worker --reload`` does: run the worker in a child, and start it anew whenever a source file changes.

This process only watches. Code that cannot be imported any more ends the child; the watch goes on, and the
next change brings another one.
"""

import contextlib
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from django.apps import apps
from django.utils.autoreload import StatReloader
from django.utils.module_loading import autodiscover_modules

logger = logging.getLogger("django_manta")

#: How often the files are looked at.
LOOK_SECONDS = 0.5

#: The flag, and what argparse takes for it: the child is started without.
_FLAGS = frozenset({"--reload", "--reloa", "--relo", "--rel"})


def run() -> int:
    """Run the command that this process was given, without --reload, until it is done. The exit code."""
    return Reloader([sys.executable, *(word for word in sys.orig_argv[1:] if word not in _FLAGS)]).run()


class Reloader:
    """One worker at a time, as new as the code."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self._worker: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._files = Files()

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        while True:
            code = self._run_worker()
            if code is None:
                continue
            if code == 0 or self._stopping:
                return code
            logger.error("The worker ended with exit code %s. Waiting for a change.", code)
            if not self._wait_for_change():
                return code

    def _wait_for_change(self) -> bool:
        """Whether there was one before we were told to stop."""
        while self._files.changed() is None:
            if self._stopping:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def _run_worker(self) -> int | None:
        """The exit code of a worker that ended by itself, or was told to; None if it was for a change."""
        # In a group of its own: Ctrl-C is for this process, which passes it on, once.
        self._worker = worker = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, process_group=0)
        if self._stopping:
            worker.terminate()
        changed = None
        while worker.poll() is None:
            if changed is None and not self._stopping and (changed := self._files.changed()) is not None:
                logger.info("%s changed. Starting the worker anew.", changed)
                worker.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(LOOK_SECONDS)
        if changed is not None and not self._stopping:
            return None
        code: int = worker.returncode
        # A worker that was still starting dies of the signal, which is as well.
        return 0 if code == -signal.SIGTERM else code if code >= 0 else 128 - code

    def _stop(self, number: int, frame: Any) -> None:
        self._stopping = True
        if self._worker is not None:
            self._worker.terminate()


class Files:
    """The source files of the project and of what it imports, and when each was last modified."""

    def __init__(self) -> None:
        self._since = time.time()
        self._reloader = StatReloader()
        with contextlib.suppress(Exception, SystemExit):  # the worker will say what is wrong with them
            autodiscover_modules("tasks")
        for app in apps.get_app_configs():
            if "site-packages" not in Path(app.path).parts:
                self._reloader.watch_dir(app.path, "**/*.py")
        self._known = self._look()

    def changed(self) -> Path | None:
        """A file that was modified, made or removed since the last time this was asked."""
        known, self._known = self._known, self._look()
        changed = {file for file, modified in known.items() if self._known.get(file) != modified}
        # An old file that is new to us is one that this process has only now imported.
        changed |= {file for file in self._known.keys() - known if self._known[file] >= self._since}
        return min(changed, default=None)

    def _look(self) -> dict[Path, float]:
        return dict(self._reloader.snapshot_files())
