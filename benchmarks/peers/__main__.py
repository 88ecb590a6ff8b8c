"""``make bench-peers``: visit everybody, round by round, and write the page."""

import argparse
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers import contenders, own_redis, rounds
from benchmarks.peers.environments import python_of, versions
from benchmarks.peers.measures import SIZES
from benchmarks.peers.record import Record, today
from benchmarks.peers.workers import ROOT, Trouble

NAMES = [one.name for one in contenders.CONTENDERS]

#: Where results go unless a path is given. Not part of the repository.
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
PAGE = ROOT / "docs" / "benchmarks"

DESCRIPTION = """\
Measure django-manta and its peers side by side: the same work, one after the other, round by round, each peer in a
virtual environment of its own, and write docs/benchmarks/peers.md with a chart. Needs a PostgreSQL server in
DATABASE_URL, and for some peers redis-server, which it starts itself:
    python scripts/postgres.py run -- python -m benchmarks.peers"""


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="ours against the limits only, small and coarse, no page")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that everything works, no page")
    parser.add_argument("--only", action="append", choices=NAMES, metavar="PEER", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--measure", action="append", metavar="NAME", help="only this measure; may be repeated")
    parser.add_argument("--repeat", type=int, metavar="N", help="rounds (3; quick and tiny: 1)")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help=f"results as JSON ({RESULTS})")
    parser.add_argument("--resume", action="store_true", help="keep in FILE what is not measured again")
    parser.add_argument("--render", type=Path, metavar="FILE", help="measure nothing: make the page from these results")
    parser.add_argument("--page", type=Path, metavar="FOLDER", help=f"where the page and the chart go ({PAGE})")
    parser.add_argument("--minutes", type=float, default=58.0, help="begin no round that would end later (58)")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = parse(argv)
    if options.render:
        publish(Record.load(options.render), options.page or PAGE)
        return 0
    server = os.environ.get("DATABASE_URL")
    if not server:
        print("DATABASE_URL is not set. `make bench-peers` starts a PostgreSQL of its own.", file=sys.stderr)
        return 2
    # Ctrl-C ends the blocks that end the processes; so shall SIGTERM.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    record = measure(options, server)
    if options.page or not (options.quick or options.tiny or options.only):
        publish(record, options.page or PAGE)
    return 0


def measure(options: argparse.Namespace, server: str) -> Record:
    began = time.monotonic()
    sizes = "tiny" if options.tiny else "quick" if options.quick else "full"
    names = options.only or (list(contenders.QUICK) if options.quick else NAMES)
    chosen = [contenders.named(name) for name in names]
    record = Record.load(options.output) if options.resume and options.output.exists() else Record()
    record.forget(names, options.measure or [])
    if unknown := set(options.measure or []) - set(measures_of(sizes)):
        sys.exit(f"There is no measure {', '.join(sorted(unknown))}, but: {', '.join(measures_of(sizes))}.")
    record.sizes, record.date, record.machine = sizes, today(), rounds.machine(server)
    ready = {}
    with ExitStack() as stack:
        redis = start_redis(stack) if any(one.redis for one in chosen) else ""
        # It may have been installed just now.
        record.machine["Redis"] = own_redis.version() or "none"
        for one in chosen:
            say(f"{one.name}: making its environment ready")
            try:
                python = python_of(one)
                record.entry(one.name).versions = versions(python, one)
                if one.redis and not redis:
                    raise Trouble("There is no redis-server here, and it could not be installed.")
                ready[one] = python
            except Trouble as trouble:
                record.entry(one.name).reason = str(trouble)
                say(f"{one.name}: {trouble}")
        tour = rounds.Tour(record=record, server=server, redis=redis, sizes=sizes, measures=options.measure or [])
        count = options.repeat or (3 if sizes == "full" else 1)
        for number in range(count):
            if time.monotonic() - began + tour.expected_seconds() > options.minutes * 60:
                say(f"round {number + 1} would end after {options.minutes:g} minutes: left out")
                break
            for one in rounds.turns(list(ready), number, count):
                say(f"round {number + 1} of {count}: {one.name}")
                tour.visit(one, ready[one], say)
                record.seconds = time.monotonic() - began
                record.save(options.output)
            tour.rounds += 1
    say(f"{record.seconds / 60:.1f} minutes; results in {options.output}")
    print_table(record)
    return record


def measures_of(sizes: str) -> list[str]:
    plain = ("enqueue", "bulk", "pickup", "result", "chain", "fan", "naps", "drain", "memory", "statements")
    return [*plain, *(f"backlog_{size}" for size in SIZES[sizes].backlogs)]


def start_redis(stack: ExitStack) -> str:
    try:
        return stack.enter_context(own_redis.server())
    except Trouble as trouble:
        say(str(trouble))
        return ""


def print_table(record: Record) -> None:
    from benchmarks.peers import page

    print("\n".join(page.table(record)))


def publish(record: Record, folder: Path) -> None:
    from benchmarks.peers import chart, page

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.md").write_text(page.page(record))
    record.save(folder / "peers.json")
    chart.draw(record, folder)
    say(f"written: {folder / 'peers.md'}, peers.json, peers.svg, peers.png")


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
