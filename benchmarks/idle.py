"""What a worker costs that has nothing to do: processor time, memory, statements."""

import ctypes
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import tracing, working
from benchmarks.measure import Figure, measured

TITLE = "One idle worker with two processes"

QUEUE = "idle"

#: The worker is left alone so long before it is watched: then its first heartbeat and its first look after the
#: house are over, for which it opens connections.
SETTLE_SECONDS = 8.0

MIB = 2**20


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    seconds = 5.0 if quick else 20.0
    with (
        tempfile.TemporaryDirectory(prefix="manta-bench-") as name,
        # Traced: at one or two statements a second that costs nothing that could be measured.
        working.worker(QUEUE, MANTA_BENCH_TRACE=name) as worker,
    ):
        time.sleep(SETTLE_SECONDS)
        yield from watch(worker, Path(name), seconds)


def watch(worker: working.Command, traces: Path, seconds: float) -> list[Figure]:
    members = worker.members()
    before, used, began = tracing.sent(traces), processor_seconds(members), time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    used, sent = processor_seconds(members) - used, tracing.sent(traces) - before
    if worker.members() != members:
        raise working.Trouble("Processes came or went while the worker was idle.")
    heart = _of("heart", sent)
    rest = sent.total() - heart
    return [
        measured(
            f"processor, {seconds:g} s, {len(members)} processes", [100 * used / elapsed], "% of a core", at_most=1
        ),
        measured("memory of all (PSS)", [memory(members, "Pss") / MIB], "MiB", at_most=150),
        measured("statements, the heartbeat's apart", [rest / elapsed], "a second", at_most=1),
        measured("statements of the heartbeat", [heart / elapsed], "a second"),
    ]


def _of(part: str, sent: Counter[str]) -> int:
    return sum(count for thread, count in sent.items() if part in thread)


def processor_seconds(pids: Sequence[int]) -> float:
    """What these processes have used so far, by their own clocks: /proc counts in hundredths of a second."""
    library = ctypes.CDLL(None, use_errno=True)
    total = 0.0
    for pid in pids:
        clock = ctypes.c_int()
        if library.clock_getcpuclockid(pid, ctypes.byref(clock)):
            raise working.Trouble(f"Process {pid} has gone.")
        total += time.clock_gettime(clock.value)
    return total


def memory(pids: Sequence[int], kind: str) -> int:
    """Bytes of ``Rss`` or ``Pss`` together. In PSS a page that several share counts once among all of them."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        [kilobytes] = [line.split()[1] for line in lines if line.startswith(f"{kind}:")]
        total += int(kilobytes) * 1024
    return total
