"""Who has to wait for whom: behind a backlog, and behind a slow run in the same process."""

import random
from collections.abc import Iterator

from benchmarks import scratch, tasks, working
from benchmarks.measure import Figure, measured

TITLE = "Delay from commit to first line, in the middle of other work"

BULK, OTHER, MIXED = "fairness-bulk", "fairness-other", "fairness-mixed"

READY = 5_000

#: So many of them have ended when the others come.
ENDED = 1_000

#: The run that turns out to be slow, and those that were claimed with it.
SLOW_SECONDS = 2.0
MATES = 10

#: So many short ones make a worker sure again that the task is short.
SHORT_RUNS = 150

MOST_SLOW_ROUNDS = 5


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    with working.worker(BULK, OTHER, MIXED) as worker:
        delays = [behind_a_backlog(worker) for _ in range(rounds)]
        dice = random.Random(READY)
        waits = [behind_a_slow_one(worker, dice) for _ in range(min(rounds, MOST_SLOW_ROUNDS))]
    yield _figure(f"in another queue, beside {READY:,} ready", [other for other, _ in delays])
    yield _figure(f"of higher priority, among {READY:,} ready", [urgent for _, urgent in delays])
    yield _figure(f"the last of {MATES} claimed with one of {SLOW_SECONDS:g} s, one process free", waits)


def _figure(what: str, delays: list[float]) -> Figure:
    # The worst of all rounds counts: fairness that holds half of the time is none.
    return measured(f"{what}, worst of {len(delays)}", [max(delays) * 1000], "ms", at_most=100)


def behind_a_backlog(worker: working.Command) -> tuple[float, float]:
    """
    The delays of a run in another queue and of an urgent one, enqueued in the middle of a drain.

    In the first round the worker has never met their task, and does not know that it is short.
    """
    scratch.empty()
    bulk = tasks.resize.using(queue_name=BULK)
    ids = working.enqueue(bulk, [tasks.arguments(number) for number in range(READY)])
    worker.wait_for(lambda: working.has_ended(ids[ENDED]), "a part of the backlog is done", every=0.002)
    singles = [tasks.stamp.using(queue_name=OTHER), tasks.stamp.using(queue_name=BULK, priority=50)]
    commits, late = [], []
    for single in singles:
        with working.committed() as commit:
            late += working.enqueue(single, [([], {})])
        commits.append(commit)
    working.wait_until_ended(worker, ids[-1])
    [[waiting]] = working.ask(
        "SELECT count(*) FROM manta_run WHERE last_attempted_at > (SELECT enqueued_at FROM manta_run WHERE id = %s)",
        late[-1],
    )
    if waiting < READY // 10:
        raise working.Trouble(f"Only {waiting} were left when the others came: nobody had to wait for them.")
    other, urgent = (
        (started - commit.nanoseconds) / 1e9
        for (started, _), commit in zip(working.values_of(late), commits, strict=True)
    )
    return other, urgent


def behind_a_slow_one(worker: working.Command, dice: random.Random) -> float:
    """
    The longest wait among the mates of a run that takes two seconds where all before took none.

    The worker has every reason to give several to each process; the slow one is among the first. The
    other process is done with its own in no time, and free.
    """
    scratch.empty()
    task = tasks.stamp.using(queue_name=MIXED)
    shorts = working.enqueue(task, [([], {})] * SHORT_RUNS)
    working.wait_until_ended(worker, shorts[-1])
    place = dice.randrange(MATES // 2)
    calls: list[tuple[list[float], dict[str, float]]] = [([], {}) for _ in range(MATES + 1)]
    calls[place] = [SLOW_SECONDS], {}
    with working.committed() as commit:
        ids = working.enqueue(task, calls)
    working.wait_until_ended(worker, ids[place])
    stamps = working.values_of(ids)
    last = max(started for number, (started, _) in enumerate(stamps) if number != place)
    return float(last - commit.nanoseconds) / 1e9
