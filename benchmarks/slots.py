"""How well a worker fills its processes: runs that sleep, against the time that they sleep."""

from collections.abc import Iterator

from benchmarks import scratch, tasks, working
from benchmarks.measure import Figure, compared

TITLE = "Runs of 50 ms on two processes, against the ideal"

QUEUE = "slots"
SECONDS = 0.05

#: A round takes five seconds, and hardly differs from the next.
MOST_ROUNDS = 3


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = 60 if quick else 200
    ideal = count * SECONDS / working.PROCESSES
    with working.worker(QUEUE) as worker:
        # The first counts too: nobody warms a worker up for the kind of run it will meet.
        taken = [drain(worker, count) for _ in range(min(rounds, MOST_ROUNDS))]
    yield compared(f"{count} runs, ideal {ideal:g} s", count, taken, [ideal] * len(taken), at_least=0.95)


def drain(worker: working.Command, count: int) -> float:
    scratch.empty()
    with working.committed(by_database=True) as commit:
        ids = working.enqueue(tasks.nap.using(queue_name=QUEUE), [([SECONDS], {})] * count)
    working.wait_until_ended(worker, ids[-1])
    return working.seconds_since(commit)
