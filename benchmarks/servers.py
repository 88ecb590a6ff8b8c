"""
What a worker costs and how soon it starts a run on Debian's PostgreSQL, which compiles statements (JIT), beside the
server that the tests bring.

    python -m benchmarks.servers            both servers are started, with a worker each, and take turns
    python -m benchmarks.servers --quick    shorter; exit code 1 only if a statement was compiled

Figures are printed and judged by nobody but the reader: which statements were compiled is a fact, and times are not.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent

QUEUE = "servers"

#: As in `idle`: by then its first heartbeat and its first look after the house are over.
SETTLE_SECONDS = 8.0

ROUNDS, RUNS, IDLE_SECONDS = 5, 40, 10.0
QUICK_ROUNDS, QUICK_RUNS, QUICK_IDLE_SECONDS = 2, 15, 4.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.servers", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--station", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.station:
        station()
        return 0
    from scripts import debian

    try:
        binaries = debian.postgres()
    except debian.Missing as missing:
        print(f"Not measured: {missing}", file=sys.stderr)
        return 0
    return compare(binaries, quick=options.quick)


def compare(binaries: Path, *, quick: bool) -> int:
    from scripts.postgres import embedded

    rounds, runs, seconds = (QUICK_ROUNDS, QUICK_RUNS, QUICK_IDLE_SECONDS) if quick else (ROUNDS, RUNS, IDLE_SECONDS)
    os.environ.pop("DATABASE_URL", None)
    os.environ.pop("MANTA_POSTGRES_BIN", None)
    pickups: dict[str, list[float]] = {"embedded": [], "debian": []}
    shares: dict[str, list[float]] = {"embedded": [], "debian": []}
    with ExitStack() as stack:
        places = {
            "embedded": stack.enter_context(_station(stack.enter_context(embedded()))),
            "debian": stack.enter_context(_station(stack.enter_context(embedded(binaries)))),
        }
        said = {name: place.ask("say") for name, place in places.items()}
        time.sleep(1.0 if quick else SETTLE_SECONDS)
        for number in range(rounds):
            # They take turns, each time another one first: what else the machine does falls on both.
            for name in sorted(places, reverse=bool(number % 2)):
                shares[name].append(places[name].ask("idle", seconds))
                pickups[name] += places[name].ask("pickup", runs)
        compiled = places["debian"].ask("compiled")
    for name in places:
        print(
            f"{name:<9} {said[name]}: pickup p50 {median(pickups[name]) * 1000:.2f} ms of {len(pickups[name])},"
            f" an idle worker takes {median(shares[name]):.2f} % of a server core"
        )
    print(f"pickup p50, debian / embedded: {median(pickups['debian']) / median(pickups['embedded']):.2f}")
    print(f"statements that were compiled: {json.dumps(compiled, indent=2) if compiled else 'none'}")
    return 1 if compiled else 0


class Place:
    """A process with one server and one worker, which measures when it is asked to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, *question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@contextmanager
def _station(url: str) -> Iterator[Place]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.servers", "--station"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "benchmarks.settings"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Place(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


# -- in a process of its own -------------------------------------------------------------------------


def station() -> None:
    """Answer one question a line, until there are no more."""
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    import django

    django.setup()
    from benchmarks import scratch, working

    with scratch.databases(["default"]):
        _count_compilations()
        with working.worker(QUEUE) as worker:
            for line in sys.stdin:
                question, *given = json.loads(line)
                print(json.dumps(_ANSWERS[question](worker, *given)), flush=True)


def _count_compilations() -> None:
    from benchmarks import scratch, working

    if working.ask("SELECT FROM pg_settings WHERE name = 'shared_preload_libraries' AND setting LIKE '%%stat_st%%'"):
        scratch.execute("CREATE EXTENSION pg_stat_statements")


def _say(worker: Any) -> str:
    from benchmarks import working

    [[version, jit]] = working.ask("SELECT split_part(version(), ' on ', 1), pg_jit_available()")
    return f"{version}, {'with' if jit else 'without'} JIT"


def _idle(worker: Any, seconds: float) -> float:
    """What the server does for a worker that has nothing to do: percent of a core."""
    from benchmarks import idle, working

    backends = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    pids = [pid for [pid] in working.ask(backends)]
    used, began = idle.processor_seconds(pids), time.monotonic()
    time.sleep(seconds)
    return 100 * (idle.processor_seconds(pids) - used) / (time.monotonic() - began)


def _pickup(worker: Any, count: int) -> list[float]:
    """Seconds from the commit of an enqueue to the first line of the task."""
    import random

    from benchmarks import latency

    delays = []
    for number in range(count + 2):
        time.sleep(random.uniform(*latency.PAUSE_SECONDS))
        delay = latency.start_of_one(worker, QUEUE)
        if number >= 2:
            delays.append(delay)
    return delays


def _compiled(worker: Any) -> list[list[Any]]:
    """The statements of this database that were, and how often."""
    from benchmarks import working

    asked = (
        "SELECT left(query, 200), calls, jit_functions FROM pg_stat_statements"
        " JOIN pg_database ON pg_database.oid = dbid WHERE datname = current_database() AND jit_functions > 0"
    )
    return [list(row) for row in working.ask(asked)]


_ANSWERS = {"say": _say, "idle": _idle, "pickup": _pickup, "compiled": _compiled}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
