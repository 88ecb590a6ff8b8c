"""
Run a worker: claim ready runs and execute them in child processes until told to stop.

SIGTERM, SIGINT or Ctrl-C: no more claims, what has not started is given back, what runs may finish
within --stop-timeout and is then interrupted and given back; exit code 0. A second signal: now.
"""

import argparse
import math
import re
from importlib.util import find_spec
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_manta.backend import MantaBackend
from django_manta.backoff import LONGEST_SECONDS
from django_manta.commands import reloading
from django_manta.commands.choosing import backend_of, names
from django_manta.conf import ON_RAY, RUNNERS
from django_manta.exceptions import WrongCluster, WrongKey
from django_manta.worker import events
from django_manta.worker.dispatch import Tier

HELP = "run a worker"
CHECKED = True

_HORIZON = re.compile(r"(\d+):(\d+(?:\.\d+)?)([smhdw]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--queues", metavar="Q1,Q2", help="Only these queues (default: all of the backend).")
    parser.add_argument("--exclude-queues", metavar="Q1,Q2", help="Not these queues.")
    parser.add_argument("--runner", choices=["processes", *ON_RAY], default="processes", help="Where user code runs.")
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
        "--stop-timeout", type=_seconds, metavar="SECONDS", help="How long running runs may take to finish."
    )
    parser.add_argument("--name", default="", help="A name for this worker (default: the host's).")
    parser.add_argument("--reload", action="store_true", help="Restart when code changes (development).")
    parser.add_argument("--log-format", choices=["text", "json"], default="text", help="How to log.")


def handle(command: BaseCommand, options: dict[str, Any]) -> int:
    given = worker_options(options)
    events.configure(options["log_format"], options["verbosity"])
    if options["reload"]:
        return reloading.run()
    from django_manta.worker.loop import Worker

    try:
        return Worker(given).run()
    except (WrongCluster, WrongKey, ImproperlyConfigured) as error:
        raise CommandError(str(error)) from error


def worker_options(options: dict[str, Any]) -> Any:
    """What the flags and the settings mean together; flags win."""
    from django_manta.execution.runners.processes import Recycle
    from django_manta.worker.given import WorkerOptions

    backend = backend_of(options)
    config = backend.config
    if options["runner"] == "ray" and find_spec("ray") is None:
        raise CommandError("The runner 'ray' needs Ray, which is not installed: pip install 'django-manta[ray]'")
    if options["runner"] == "ray_job" and config.ray["DASHBOARD"] is None:
        raise CommandError(
            "The runner 'ray_job' submits to Ray's dashboard: say where it is, as RAY['DASHBOARD'] in OPTIONS."
        )
    queues, excluded = _queues(backend, options)
    processes = options["processes"] or config.processes
    reserved = sum(tier.slots for tier in options["reserve"])
    if reserved >= processes:
        raise CommandError(
            f"--reserve keeps {reserved} of {processes} processes: at least one must be left for every run."
        )
    return WorkerOptions(
        backend=options["backend"],
        queues=queues,
        exclude_queues=excluded,
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


def _queues(backend: MantaBackend, options: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The queues asked for and those excluded. Raise CommandError when a name is wrong or none is left."""
    asked = _declared(backend, options["queues"], "--queues")
    excluded = _declared(backend, options["exclude_queues"], "--exclude-queues")
    for queue in asked:
        if (runner := _runner_of(backend, queue)) != options["runner"]:
            raise CommandError(
                f"--queues names {queue!r}, but QUEUE_OPTIONS gives it to the runner {runner!r}, and this worker "
                f"has the runner {options['runner']!r}."
            )
    known = asked or tuple(sorted(backend.queues))
    left = [queue for queue in known if queue not in excluded]
    # Where QUEUES is empty every name is a queue, and nobody can know beforehand which there will be.
    if known and not left:
        raise CommandError(f"No queue is left to claim from: --exclude-queues takes away {', '.join(known)}.")
    if left and not any(_runner_of(backend, queue) == options["runner"] for queue in left):
        raise CommandError(
            f"No queue is left to claim from: of {', '.join(left)} none has the runner {options['runner']!r} in "
            "QUEUE_OPTIONS."
        )
    return asked, excluded


def _declared(backend: MantaBackend, text: str | None, flag: str) -> tuple[str, ...]:
    found = () if text is None else tuple(dict.fromkeys(names([text], flag)))
    for name in found:
        if backend.queues and name not in backend.queues:
            raise CommandError(
                f"{flag} names {name!r}, which is not among the QUEUES of TASKS[{backend.alias!r}]: "
                f"{', '.join(sorted(backend.queues))}."
            )
    return found


def _runner_of(backend: MantaBackend, queue: str) -> str:
    runner: str = backend.config.queue_options.get(queue, {}).get("runner", RUNNERS[0])
    return runner


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return seconds


def _tier(text: str) -> Tier:
    found = _HORIZON.fullmatch(text)
    if found is None or not int(found[1]) or not float(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not N:HORIZON, such as 1:30s or 2:4h")
    count, number, unit = found.groups()
    return Tier(int(count), float(number) * _UNITS[unit])
