"""``make chaos``: run the storms, print a line of figures for each, exit with 1 if a promise was broken."""

import argparse
import os
import random
import shutil
import signal
import sys
import time
import traceback
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from chaos.world import Report, Weather

#: Every storm, a module of the same name, and what it does.
STORMS = {
    "kill": "two workers, one killed (-9) every second until 2,000 runs are done; every other time one is spared",
    "stop": "workers stopped past their lease, continued, and killed, during 1,000 atomic runs",
    "deploy": "SIGTERM to a worker, to its group, and Ctrl-C, with 500 runs under way and a successor starting",
    "postgres": "a server restarted thrice, away for 60 s, cut off for 20 s, crashing eight times; 10,000 runs each",
    "cancel-race": "1,000 runs, each cancelled at a random moment while it waits, runs or ends",
    "mergesort": "2,000 numbers sorted by `examples/workflows`, ten times, a worker killed (-9) every 200 executions",
    "edges": "8 processes adding 20,000 edges to runs that 4 workers are finishing",
    "ray-adoption": "50 runs of 10 s on Ray; their worker killed (-9), stopped, and followed by another release",
    "ray-faults": "processes, a node, the foreman and the head of a Ray cluster killed during 1,000 runs each",
    "ray-away": "a Ray that comes late, and is away for 90 s in the middle of 1,000 runs",
    "ray-field": "three Ray nodes: stopped as `ray stop` does, hangs, outages, 50 MiB results, crashes, two projects",
    "two-rays": "two Rays, then two dashboards, behind one database; workers of both killed (-9) and stopped",
    "echoes": "settlements of 20,000 runs sent twice, at once, in another order, and with old tokens among them",
    "acknowledgements": "connections cut between commit and answer of claims, settlements, both in one, and enqueues",
    "leaders": "whoever leads stopped until another one does, and continued, 40 times, while runs fall due and expire",
    "clocks": "one worker whose clock is ten minutes fast, then ten minutes slow, while runs fall due and expire",
    "xmin": "a drain of 600 s while a transaction and four readers hold their snapshots, and an atomic run of 50 s",
    "soak": "mixed work for 900 s: kills, stops, deploys, cuts and changes of the leader as the dice fall",
    "faults": "every statement of every verb, cut off, killed or refused by the server; then a worker, again and again",
    "rows": "2,000 rows altered by hand, in every column of every table, beside good runs, workers and people who look",
    "rows-sqlite": "the same on SQLite, which keeps what it is given whatever a column's type is",
    "disk-full": "SQLite on a disk of a few megabytes that is full for 20 s, and has room again",
}

#: Those that bring their own database, and need no server.
SERVERLESS = {"disk-full", "rows-sqlite"}

DESCRIPTION = """\
Start real workers, kill, stop and cut them off in the middle of their work, and count what was lost.
Needs a PostgreSQL server in DATABASE_URL, where it creates a scratch database and drops it again:
    python scripts/postgres.py run -- python -m chaos
Only disk-full needs none."""

FIGURES = """\
figures: lost (runs that did not end as promised), fsck (findings), and what each storm counts.
Exit code 0 if every promise was kept, 1 if one was not or a storm could not be run."""


def epilog() -> str:
    width = max(map(len, STORMS))
    lines = [f"  {name:<{width}}  {does}" for name, does in STORMS.items()]
    return "\n".join(["storms:", *lines, "", FIGURES])


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description=DESCRIPTION,
        epilog=epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer trials and shorter outages: a few minutes")
    parser.add_argument(
        "--only",
        action="append",
        choices=STORMS,
        metavar="NAME",
        help="only this storm; may be repeated",
    )
    parser.add_argument(
        "--trials", type=positive, metavar="N", help="trials of each storm (kill: 20, quick 2; others: see above)"
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        metavar="S",
        help="how long xmin holds (600, quick 60) and soak lasts (900, quick 60)",
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of the dice: whom to hit, and when (default: any)")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="PAGE",
        help="put the figures into the table of this page (docs/reliability.md), beside those of other storms",
    )
    parser.add_argument("--list", action="store_true", help="name the storms and leave")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def main(argv: list[str]) -> int:
    options = parse(argv)
    if options.list:
        print("\n".join(STORMS))
        return 0
    if not os.environ.get("DATABASE_URL") and not is_serverless(options):
        print("DATABASE_URL is not set. `make chaos` starts a PostgreSQL of its own.", file=sys.stderr)
        return 2
    # Ctrl-C ends the blocks that end the workers; so shall SIGTERM.
    signal.signal(signal.SIGTERM, leave)
    os.environ["DJANGO_SETTINGS_MODULE"] = "chaos.settings"
    import django

    django.setup()
    return rage(options)


def is_serverless(options: argparse.Namespace) -> bool:
    """Whether no storm that is asked for needs a server, nor the page, which tells of it."""
    return SERVERLESS.issuperset(options.only or STORMS) and not options.report


def leave(signum: int, frame: object) -> NoReturn:
    # Once: whoever sends it to the whole group and to each of it would interrupt what ends the workers.
    signal.signal(signum, signal.SIG_IGN)
    sys.exit(128 + signum)


def rage(options: argparse.Namespace) -> int:
    from chaos import table, world

    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    weather = world.Weather(quick=options.quick, seed=seed, trials=options.trials, seconds=options.seconds)
    print(f"seed {seed}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    broken = 0
    unseen: list[str] = []
    lines: list[str] = []
    with nullcontext() if is_serverless(options) else world.scratch():
        for name in options.only or STORMS:
            report, seconds = suffer(name, weather)
            skipped = "skipped" in report.figures
            verdict = "BROKEN" if report.broken else "NOT RUN" if skipped else "ok"
            print(f"{name:<12} {report.line()} ({seconds:.0f} s) {verdict}", flush=True)
            lines.append(report.line())
            for promise in report.broken:
                print(f"             {promise}", flush=True)
            broken += len(report.broken)
            unseen += [name] if skipped else []
            if options.report and not skipped:
                figures = f"{report.line()} ({seconds:.0f} s)"
                row = table.Row(name, figures, len(report.broken), how(seed, options), table.today())
                table.write(options.report, [row], STORMS)
    print(f"{'in all':<12} {table.total(lines)}")
    if broken:
        print(f"{broken} promises broken; the logs of the workers: {world.LOGS}")
        return 1
    shutil.rmtree(world.LOGS)
    if unseen:
        print(f"not run, so nothing is known of it: {', '.join(unseen)}")
        return 1
    print("every promise kept")
    return 0


def how(seed: int, options: argparse.Namespace) -> str:
    """What it takes to repeat it."""
    asked = {
        "quick": options.quick,
        f"{options.trials} trials": options.trials,
        f"{options.seconds} s": options.seconds,
    }
    return ", ".join([str(seed), *(words for words, given in asked.items() if given)])


def suffer(name: str, weather: "Weather") -> "tuple[Report, float]":
    """One storm: what it counted and saw broken, and how long it took."""
    from chaos import world

    began = time.monotonic()
    report = world.Report()
    try:
        import_module(f"chaos.{name.replace('-', '_')}").storm(weather, report)
    except world.Broken as failure:
        report.broken.append(str(failure))
    except Exception as failure:
        # Whatever it met is not what was promised; the other storms are still to be seen.
        traceback.print_exc()
        report.broken.append(f"the storm itself failed: {type(failure).__name__}: {failure}")
    return report, time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
