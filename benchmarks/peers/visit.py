"""
One visit to one contender, in its own environment: measure everything once and tell it line by line.

    python -m benchmarks.peers.visit SIZES MEASURE…

The environment says who it is (MANTA_PEER, MANTA_PEER_VARIANT) and where its servers are (MANTA_PEERS_DATABASE,
MANTA_PEERS_REDIS). Each line on standard output is a JSON object: a measure, its value, and what must be said.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers.measures import SIZES, Measures, Sample, Sizes
from benchmarks.peers.workers import Workers

#: After so many measures in a row that came to nothing the visit is over.
ENOUGH = 3


def main(arguments: list[str]) -> int:
    sizes, wanted = SIZES[arguments[0]], arguments[1:]
    # What libraries print goes to the log; standard output is for the one who asked.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))

    def tell(**line: Any) -> None:
        print(json.dumps(line), file=answer, flush=True)

    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    adapter: Any = import_module(f"benchmarks.peers.adapters.{os.environ['MANTA_PEER']}")
    tell(note=adapter.NOTE)
    if hasattr(adapter, "prepare"):
        adapter.prepare()
    if hasattr(adapter, "measures"):
        return limit(adapter, sizes, wanted, tell)
    return contender(adapter, sizes, wanted, tell)


def contender(adapter: Any, sizes: Sizes, wanted: list[str], tell: Callable[..., None]) -> int:
    with tempfile.TemporaryDirectory(prefix="manta-peers-") as directory:
        log = Path(directory) / "log"
        log.touch()
        stamps = Path(directory) / "stamps"
        stamps.mkdir()
        os.environ["MANTA_PEERS_STAMPS"] = str(stamps)
        measures = Measures(adapter, sizes, lambda commands: Workers(commands, log))
        try:
            each(wanted, measures.names(), measures.measure, tell, measures.at_rest)
        finally:
            if measures.workers is not None:
                measures.workers.end()
            print(log.read_text(errors="replace")[-4_000:], file=sys.stderr)
    return 0


def limit(adapter: Any, sizes: Sizes, wanted: list[str], tell: Callable[..., None]) -> int:
    """Something that is no queue: what it can measure it measures itself."""
    known: dict[str, Callable[[], Sample]] = adapter.measures(sizes)
    each(wanted, list(known), lambda name: known[name](), tell, lambda: None)
    return 0


def each(
    wanted: list[str],
    possible: list[str],
    measure: Callable[[str], Sample],
    tell: Callable[..., None],
    recover: Callable[[], None],
) -> None:
    """Told first is what there will be: who asked can tell what is missing if this process is ended."""
    troubles, left = 0, [name for name in possible if not wanted or name in wanted]
    tell(measures=list(left))
    while left:
        name = left.pop(0)
        began = time.perf_counter()
        try:
            sample = measure(name)
        except Exception as error:
            troubles += 1
            tell(measure=name, trouble=f"{type(error).__name__}: {error}"[:500])
            if troubles >= ENOUGH:
                for other in left:
                    tell(measure=other, trouble=f"Not tried after {ENOUGH} measures in a row that came to nothing.")
                return
            recover()
        else:
            troubles = 0
            tell(measure=name, seconds=round(time.perf_counter() - began, 2), **sample.record())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
