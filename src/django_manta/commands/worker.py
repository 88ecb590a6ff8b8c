"""
Run a worker: claim ready runs and execute them in child processes until told to stop.

SIGTERM, SIGINT or Ctrl-C: no more claims, what has not started is given back, what runs may finish
within --stop-timeout and is then interrupted and given back; exit code 0. A second signal: now.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.tasks import task_backends

from django_manta.exceptions import WrongKey
from django_manta.worker import events
from django_manta.worker.dispatch import Tier

HELP = "run a worker"
CHECKED = True

_HORIZON = re.compile(r"(\d+):(\d+(?:\.\d+)?)([smhdw]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--queues", metavar="Q1,Q2", help="Only these queues (default: all of the backend).")
    parser.add_argument("--exclude-queues", metavar="Q1,Q2", default="", help="Not these queues.")
    parser.add_argument("--runner", choices=["processes"], default="processes", help="Where user code runs.")
    parser.add_argument("--processes", type=_positive, metavar="N", help="Child processes (default: PROCESSES).")
    parser.add_argument(
        "--reserve",
        action="append",
        default=[],
        type=_tier,
        metavar="N:HORIZON",
        help="Keep N processes for runs whose deadline is within HORIZON (30s, 5m, 2h, 1d); repeatable.",
    )
    parser.add_argument("--burst", action="store_true", help="Stop when nothing is ready.")
    parser.add_argument("--max-runs", type=_positive, metavar="N", help="Stop after N executions.")
    parser.add_argument(
        "--stop-timeout", type=float, metavar="SECONDS", help="How long running runs may take to finish."
    )
    parser.add_argument("--name", default="", help="A name for this worker (default: the host's).")
    parser.add_argument("--reload", action="store_true", help="Restart when code changes (development).")
    parser.add_argument("--log-format", choices=["text", "json"], default="text", help="How to log.")


def handle(command: BaseCommand, options: dict[str, Any]) -> int:
    events.configure(options["log_format"], options["verbosity"])
    if options["reload"]:
        return _reload()
    from django_manta.worker.loop import Worker

    try:
        return Worker(worker_options(options)).run()
    except (WrongKey, ImproperlyConfigured) as error:
        raise CommandError(str(error)) from error


def worker_options(options: dict[str, Any]) -> Any:
    """What the flags and the settings mean together; flags win."""
    from django_manta.execution.runners.processes import Recycle
    from django_manta.worker.loop import WorkerOptions

    backend: Any = task_backends[options["backend"]]
    config = backend.config
    processes = options["processes"] or config.processes
    reserved = sum(tier.slots for tier in options["reserve"])
    if reserved >= processes:
        raise CommandError(
            f"--reserve keeps {reserved} of {processes} processes: at least one must be left for every run."
        )
    return WorkerOptions(
        backend=options["backend"],
        queues=tuple(_names(options["queues"])),
        exclude_queues=tuple(_names(options["exclude_queues"])),
        runner=options["runner"],
        processes=processes,
        reserve=tuple(options["reserve"]),
        burst=options["burst"],
        max_runs=options["max_runs"],
        stop_timeout=config.stop_timeout if options["stop_timeout"] is None else options["stop_timeout"],
        lease_seconds=config.lease_seconds,
        async_slots=config.async_slots,
        recycle=Recycle(
            runs=config.recycle.get("RUNS"),
            memory=config.recycle.get("MEMORY_MIB"),
            memory_limit=config.recycle.get("LIMIT_MIB"),
        ),
        name=options["name"],
    )


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _tier(text: str) -> Tier:
    found = _HORIZON.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not N:HORIZON, such as 1:30s or 2:4h")
    count, number, unit = found.groups()
    return Tier(int(count), float(number) * _UNITS[unit])


def _reload() -> int:
    """Run the same command without --reload in a child, again whenever a source file changes."""
    from django.utils import autoreload

    arguments = [sys.executable, *sys.orig_argv[1:]]
    arguments = [argument for argument in arguments if argument != "--reload"]
    if os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) != "true":
        # The outer process: Django's reloader starts us again with the variable set, and again after
        # each change.
        return int(autoreload.restart_with_reloader() or 0)
    worker = subprocess.Popen(arguments, env={**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: ""})

    def stop(number: int, frame: Any) -> None:
        worker.send_signal(signal.SIGTERM)
        raise SystemExit(worker.wait())

    signal.signal(signal.SIGTERM, stop)
    reloader = autoreload.get_reloader()

    def changed(path: Any) -> None:
        worker.send_signal(signal.SIGTERM)
        worker.wait()
        autoreload.trigger_reload(path)

    reloader.notify_file_changed = changed  # type: ignore[method-assign]
    try:
        autoreload.start_django(reloader, worker.wait)
    except KeyboardInterrupt:
        worker.send_signal(signal.SIGINT)
    return worker.wait()
