"""
A picture of queues, workers and rates.

It costs the same however many runs there are: no more than 10,000 of a state are counted ("10000+"
means at least so many), and what is held or waits for other runs is counted among the newest 50,000.
"""

import argparse
import time
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_manta.backend import MantaBackend
from django_manta.commands import choosing, workers
from django_manta.commands.pause import paused
from django_manta.commands.printing import Printer, add_format, duration, moment
from django_manta.ledger import Ledger, house
from django_manta.states import BAD_ENDS, State

HELP = "a picture of queues, workers and rates"

#: No more of a state are counted.
COUNT_LIMIT = 10_000

#: Held and waiting runs, which no index finds, are counted among so many of the newest.
NEWEST = 50_000

#: The rates are those of the last so many seconds.
WINDOWS = (60, 900)

_STATES = ("ready", "scheduled", "waiting", "held", "running")
_FAILURES = BAD_ENDS - {State.CANCELLED}
_CLEAR = "\x1b[2J\x1b[H"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", metavar="SECONDS", help="Again and again, so many seconds apart, until Ctrl-C.")
    add_format(parser)


def handle(command: BaseCommand, options: dict[str, Any]) -> None:
    printer = Printer(command, options)
    backend = choosing.backend_of(options)
    if options["watch"] is None:
        _show(printer, picture(backend))
        return
    pause = _seconds(options["watch"])
    try:
        while True:
            drawn = picture(backend)
            if printer.wants_json:
                printer.data(drawn, on_one_line=True)
            else:
                if printer.is_terminal:
                    command.stdout.write(_CLEAR, ending="")
                _show(printer, drawn)
            command.stdout.flush()
            time.sleep(pause)
    except KeyboardInterrupt:
        return


def _seconds(given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise CommandError(f"--watch is {given!r}, but it takes a number of seconds above 0.")
    return seconds


# -- looking ---------------------------------------------------------------------------------------


def picture(backend: MantaBackend) -> dict[str, Any]:
    """What there is to see, as plain data."""
    owned = house.count_owned(backend.ledger, COUNT_LIMIT)
    return {
        "now": house.clock(backend.ledger),
        "database": backend.database,
        "cluster": backend.config.cluster,
        "queues": _queues(backend, owned),
        "workers": _workers(backend, owned),
        "rates": [_rate(backend.ledger, seconds) for seconds in WINDOWS],
    }


def _queues(backend: MantaBackend, owned: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    ledger = backend.ledger
    ready = house.count_ready(ledger, COUNT_LIMIT)
    scheduled = house.count_scheduled(ledger, COUNT_LIMIT)
    newest = house.count_newest(ledger, NEWEST)
    pauses = paused(backend)
    # What was cut short was cut short for all queues at once; ready runs are counted queue by queue.
    everywhere = [
        *(["scheduled"] if sum(scheduled.values()) >= COUNT_LIMIT else []),
        *(["waiting", "held"] if sum(newest.values()) >= NEWEST else []),
        *(["running"] if sum(owned.values()) >= COUNT_LIMIT else []),
    ]
    kept = {queue for state, queue in newest if state in (State.WAITING, State.HELD)}
    named = {*backend.queues, *ready, *scheduled, *kept, *pauses, *(queue for queue, _ in owned)}
    return [
        {
            "queue": queue,
            "ready": ready[queue].runs if queue in ready else 0,
            "scheduled": scheduled.get(queue, 0),
            "waiting": newest.get((State.WAITING, queue), 0),
            "held": newest.get((State.HELD, queue), 0),
            "running": sum(runs for (name, _), runs in owned.items() if name == queue),
            "paused": queue in pauses,
            "paused_at": pauses.get(queue),
            "oldest_ready_seconds": ready[queue].seconds if queue in ready else None,
            "capped": [*(["ready"] if queue in ready and ready[queue].runs >= COUNT_LIMIT else []), *everywhere],
        }
        for queue in sorted(named)
    ]


def _workers(backend: MantaBackend, owned: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    def running(worker: str) -> int:
        return sum(runs for (_, name), runs in owned.items() if name == worker)

    return [
        {name: getattr(seen, name) for name in seen.__dataclass_fields__} | {"running": running(seen.id)}
        for seen in workers.seen(backend)
    ]


def _rate(ledger: Ledger, seconds: int) -> dict[str, Any]:
    ended = house.count_ended(ledger, timedelta(seconds=seconds), COUNT_LIMIT)
    capped = [state for state, counted in ended.items() if counted.runs >= COUNT_LIMIT]
    # Of what was cut short only the newest were counted: they took no longer than since the oldest of them.
    per_second = sum(
        counted.runs / (max(counted.seconds or 0.0, 0.001) if state in capped else seconds)
        for state, counted in ended.items()
    )
    return {
        "seconds": seconds,
        "settled": sum(counted.runs for counted in ended.values()),
        "failures": sum(ended[state].runs for state in _FAILURES),
        "per_second": round(per_second, 3),
        "capped": sorted(capped),
    }


# -- printing --------------------------------------------------------------------------------------


def _show(printer: Printer, drawn: dict[str, Any]) -> None:
    if printer.wants_json:
        printer.data(drawn)
        return
    printer.line(f"{moment(drawn['now'])}  database {drawn['database']}, cluster {drawn['cluster']}")
    printer.line()
    printer.table(["queue", *_STATES, "oldest ready", "paused"], [_queue_row(queue) for queue in drawn["queues"]])
    printer.line()
    if drawn["workers"]:
        printer.table(
            ["worker", "host", "pid", "runner", "queues", "running", "seen", ""],
            [_worker_row(worker) for worker in drawn["workers"]],
        )
    else:
        printer.line("No workers: `manage.py manta worker` runs one.")
    printer.line()
    printer.table(["last", "settled", "per second", "failures"], [_rate_row(rate) for rate in drawn["rates"]])


def _queue_row(queue: dict[str, Any]) -> list[Any]:
    numbers = [f"{queue[state]}{'+' if state in queue['capped'] else ''}" for state in _STATES]
    oldest = queue["oldest_ready_seconds"]
    return [
        queue["queue"],
        *numbers,
        "" if oldest is None else duration(oldest),
        f"since {moment(queue['paused_at'])}" if queue["paused"] else "",
    ]


def _worker_row(worker: dict[str, Any]) -> list[Any]:
    remarks = [
        *(["lost"] if worker["lost"] else []),
        *(["silent"] if not worker["alive"] and not worker["lost"] else []),
        *(["stopping"] if worker["stopping"] else []),
    ]
    return [
        worker["id"],
        worker["host"],
        worker["pid"],
        worker["runner"],
        worker["queues"],
        worker["running"],
        f"{duration(worker['seen_seconds_ago'])} ago",
        ", ".join(remarks),
    ]


def _rate_row(rate: dict[str, Any]) -> list[Any]:
    more = "+" if rate["capped"] else ""
    failed = "+" if set(rate["capped"]) & _FAILURES else ""
    return [
        f"{rate['seconds'] // 60} min",
        f"{rate['settled']}{more}",
        f"{rate['per_second']:.1f}",
        f"{rate['failures']}{failed}",
    ]
