"""Whether the control process of a worker grows with the runs that pass through it."""

from collections.abc import Iterator

from benchmarks import scratch, working
from benchmarks.idle import MIB, memory
from benchmarks.measure import Figure, measured

TITLE = "The control process of a worker, as runs pass through it"

QUEUE = "memory"

#: Drained before the first look, so that buffers and caches have their size.
WARM_UP = 5_000

#: Enqueued at a time: the table is emptied in between, and the backlog stays ordinary.
PORTION = 20_000


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = 20_000 if quick else 200_000
    portion = min(PORTION, count // 4)
    with working.worker(QUEUE) as worker:
        working.enqueue_and_wait(worker, QUEUE, WARM_UP)
        sizes = [memory([worker.pid], "Rss")]
        for _ in range(count // portion):
            scratch.empty()
            working.enqueue_and_wait(worker, QUEUE, portion)
            sizes.append(memory([worker.pid], "Rss"))
    grown = (max(sizes) - sizes[0]) / MIB
    yield measured(
        f"growth over {count:,} runs (RSS)", [grown], "MiB", limit=f"{sizes[0] / MIB:.0f} MiB at first", at_most=20
    )
