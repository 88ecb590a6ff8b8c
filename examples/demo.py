#!/usr/bin/env python
"""
A few hundred runs of real work: a share, three questions, and the answers by simulation.

  make demo                        on an embedded PostgreSQL that is there for the demo only
  make demo ARGS="--runs 2000"     more work, better answers
  make demo RUNNER=ray             on a small Ray cluster that is there for the demo only
  python examples/demo.py          on the server that DATABASE_URL names, or on SQLite without one

It makes a scratch database, enqueues the runs and starts `manage.py manta worker`, which executes them in child
processes. A third of the way it stops the worker, as a deploy does, and starts another; two thirds of the way
it kills that one with SIGKILL while it writes, and starts a third. Then it shows what happened, draws what came
out, and checks all that it claims: nothing was lost, and every row was written once. With the runner ray what the
workers leave behind goes on, and the next one adopts it. The scratch database goes at the end, the picture and the
workers' log stay. The project to copy from is examples/montecarlo/.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from urllib.parse import quote

from demonstration import starts
from demonstration.cluster import ray_cluster
from demonstration.scratch import scratch_database

OUTPUT = Path(__file__).resolve().parent.parent / ".cache" / "demo"
SQLITE = f"sqlite:///{quote(str(OUTPUT))}/db.sqlite3"
RUNS, FEWEST_RUNS = 240, 8
RUNNERS = ("processes", "ray")


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parse(arguments)
    told_to_stop = False

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal told_to_stop
        told_to_stop = True
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        with scratch_database(os.environ.get("DATABASE_URL") or SQLITE) as scratch:
            os.environ["DATABASE_URL"] = scratch  # for this process and those that it starts
            starts.begin(asked.output / "starts.log")
            with ray_cluster() if asked.runner == "ray" else nullcontext():
                set_up_django()
                return demonstrate(asked.runs, asked.runner, asked.output)
    except BaseException:
        # Not only KeyboardInterrupt: one that hits a statement on its way may come out as an error of the database.
        if not told_to_stop:
            raise
        print("demo: interrupted", file=sys.stderr)
        return 130


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit code: 0 when every claim holds, 1 when one does not or the database cannot be used.",
    )
    parser.add_argument(
        "--runs", type=run_count, default=RUNS, metavar="N", help=f"how many runs, {FEWEST_RUNS} or more ({RUNS})"
    )
    parser.add_argument("--runner", choices=RUNNERS, default=RUNNERS[0], help=f"where they run ({RUNNERS[0]})")
    parser.add_argument(
        "--output",
        type=Path,
        default=OUTPUT,
        metavar="FOLDER",
        help="where the picture and the workers' log go (.cache/demo)",
    )
    return parser.parse_args(arguments)


def run_count(text: str) -> int:
    if not text.isdecimal() or int(text) < FEWEST_RUNS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number of {FEWEST_RUNS} or more, which is one run of each kind"
        )
    return int(text)


def set_up_django() -> None:
    import django
    from django.core.management import call_command

    os.environ["DJANGO_SETTINGS_MODULE"] = "demonstration.settings"
    django.setup()
    call_command("migrate", verbosity=0)


def demonstrate(runs: int, runner: str, output: Path) -> int:
    # Here, because models can be imported only once Django is set up.
    from demonstration import claims, terminal, work
    from demonstration.answers import answers
    from demonstration.plot import draw
    from demonstration.workers import workers

    out = terminal.console()
    began = time.monotonic()
    done = work.enqueue(runs)
    terminal.show_beginning(out, len(list(done)), time.monotonic() - began)

    began = time.monotonic()
    with workers(runner, output / "workers.log") as start, terminal.progress_of(out, runs) as watch:
        events = work.see_through(done, start, watch)
    terminal.show_table(out, runner, time.monotonic() - began)

    done.refresh()
    terminal.show_story(out, work.most_troubled(done))
    checked = list(claims.of_the_queue(done, events, runner))
    if checked[0].holds:  # every run succeeded, so there is something to add up
        found = answers(done)
        checked += claims.of_the_answers(found)
        terminal.show_picture(out, draw(output / "montecarlo.png", found))
    return terminal.show_claims(out, checked)


if __name__ == "__main__":
    sys.exit(main())
