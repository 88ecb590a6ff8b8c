"""``make bench``: measure, and print each figure beside its limit and its target."""

import argparse
import os
import signal
import sys
import time

MEASUREMENTS = (
    "enqueue",
    "bulk",
    "settle",
    "backlog",
    "wal",
    "drain",
    "slots",
    "latency",
    "fairness",
    "idle",
    "memory",
    "workflows",
    "dependents",
)

#: Measured when they are asked for by name, because they take minutes, or need what not everybody has installed; and
#: their modules.
OPTIONAL = {"budget": "budget", "first": "first", "ray": "on_ray", "xmin": "xmin", "steady": "steady"}

DESCRIPTION = """\
Measure django-manta against the plain limits of the same machine, in the same run, taking turns.
Only the ratios mean something: this machine is not yours, and neither is quiet.
Needs a PostgreSQL server in DATABASE_URL, where it creates scratch databases and drops them again:
    python scripts/postgres.py run -- python -m benchmarks"""

EPILOG = """\
measurements:
  enqueue     enqueue() against Model.objects.create() of the same row
  bulk        enqueue_many(10,000) against COPY and against bulk_create()
  settle      claim and settle by 100 against the same two writes as plain SQL
  backlog     the time of a claim with 1,000, 100,000 and 1,000,000 ready runs
  wal         bytes of write-ahead log and statements per run
  drain       a worker draining no-ops against bare claim and settle, and against django-tasks-db
  slots       200 runs of 50 ms on two processes against the ideal
  latency     from the commit of an enqueue to the first line of the task, beside a bare NOTIFY
  fairness    what a run waits for a backlog of others, and for a slow one
  idle        processor, memory and statements of a worker that has nothing to do
  memory      the growth of the control process over 200,000 runs
  workflows   a hop of a chain against a pickup, a map and its join against a drain, an edge to what is running
  dependents  the transactions that tell 100,000 runs how the one ended that they wait for
  budget      only when asked for: what each step of a short run costs
  first       only when asked for: the first 1,000 of 1,000,000, against 1,000 alone, at once and after as long a stop
  ray         only when asked for: a worker with the runner `ray` against plain Ray tasks
  xmin        only when asked for: a drain while a transaction stays open, against the same without
  steady      only when asked for: 15 minutes of a constant inflow beside 10,000,000 finished runs that are kept"""


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: about three minutes, and coarse")
    parser.add_argument(
        "--only",
        action="append",
        choices=(*MEASUREMENTS, *OPTIONAL),
        metavar="NAME",
        help=f"only this measurement; may be repeated ({', '.join((*MEASUREMENTS, *OPTIONAL))})",
    )
    parser.add_argument(
        "--repeat", type=positive, metavar="N", help="rounds of each comparison (9; quick: 3; long ones take fewer)"
    )
    parser.add_argument(
        "--rows",
        type=positive,
        metavar="N",
        help="rows of `settle` and `drain` (20,000; quick: 5,000) and of the largest `backlog`"
        " and of `first` (1,000,000; quick: 100,000), or those that `steady` keeps (10,000,000; quick: 500,000)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def main(argv: list[str]) -> int:
    options = parse(argv)
    if not os.environ.get("DATABASE_URL"):
        print("DATABASE_URL is not set. `make bench` starts a PostgreSQL of its own.", file=sys.stderr)
        return 2
    # Ctrl-C ends the blocks that end the workers; so shall SIGTERM.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    import django

    django.setup()
    return measure(options)


def measure(options: argparse.Namespace) -> int:
    from importlib import import_module

    from benchmarks import scratch
    from benchmarks.measure import Figure, Measurement, show

    rounds = options.repeat or (3 if options.quick else 9)
    missed: list[Figure] = []
    began = time.perf_counter()
    with scratch.databases(["default"]):
        print(f"{scratch.machine()}; {rounds} rounds each, medians, spread = least to greatest\n", flush=True)
        for name in options.only or MEASUREMENTS:
            measurement: Measurement = import_module(f"benchmarks.{OPTIONAL.get(name, name)}")
            figures = list(measurement.figures(rounds=rounds, quick=options.quick, rows=options.rows))
            show(measurement.TITLE, figures)
            missed += [figure for figure in figures if figure.met is False]
    verdict = f"{len(missed)} missed" if missed else "every target met"
    print(f"{verdict}; {time.perf_counter() - began:.0f} s; load at the end {os.getloadavg()[0]:.1f}")
    return 1 if missed and options.strict else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
