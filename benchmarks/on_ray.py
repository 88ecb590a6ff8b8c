"""A worker with the runner ``ray``: throughput against plain Ray tasks, pickup latency, and what chunks cost others."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import scratch, tasks, working
from benchmarks.measure import Figure, Stopwatch, compared, in_turns, measured, percentile
from benchmarks.plain_ray import CPUS
from django_manta.execution.runners.flights import GRACE_SECONDS

TITLE = "A worker on a local Ray with two processors"

QUEUE = "on_ray"
PLAIN = 10_000


def figures(*, rounds: int, quick: bool, rows: int | None) -> Iterator[Figure]:
    count = rows or (5_000 if quick else 20_000)
    with worker() as begun:
        with plain_ray() as plain:

            def ours(watch: Stopwatch) -> None:
                watch.seconds = drain(begun, count)

            def theirs(watch: Stopwatch) -> None:
                watch.seconds = plain(PLAIN)

            taken = in_turns(min(rounds, 5), ours=ours, plain=theirs)
        yield compared(
            f"{count:,} no-ops, against ray.get() of {PLAIN:,}",
            1,
            [seconds / count for seconds in taken["ours"]],
            [seconds / PLAIN for seconds in taken["plain"]],
            at_least=4,
        )
        yield measured(f"{count:,} no-ops", [count / seconds for seconds in taken["ours"]], "runs/s", at_least=2_700)
        delays = [pickup(begun) for _ in range(25 if quick else 100)][5:]
        yield measured(f"{len(delays)} single runs, p50", [delay * 1000 for delay in delays], "ms", at_most=15)
        yield measured(f"{len(delays)} single runs, p99", [percentile(delays, 0.99) * 1000], "ms")
        ideal = 200 * 0.05 / CPUS
        yield measured("200 runs of 50 ms, of the ideal", [ideal / naps(begun) for _ in range(2)], "", at_least=0.9)
        for how, most in (("busy", 1.0), ("asleep", GRACE_SECONDS + 1), ("stubborn", GRACE_SECONDS + 1)):
            took = [cancelled(begun, how) for _ in range(1 if quick else 3)]
            yield measured(f"a cancel of one that is {how}", took, "s", at_most=most)


@contextmanager
def worker() -> Iterator[working.Command]:
    options = {"QUEUE_OPTIONS": {QUEUE: {"runner": "ray"}}, "RAY": {"NUM_CPUS": CPUS}}
    scratch.empty()
    flags = ("--runner", "ray", "--queues", QUEUE)
    with working.command("manta", "worker", *flags, MANTA_BENCH_OPTIONS=json.dumps(options)) as begun:
        # Here they share no directory that a process could be met in: enough runs, often enough.
        for _ in range(3):
            working.enqueue_and_wait(begun, QUEUE, working.WARM_UP_RUNS)
        scratch.empty()
        yield begun


@contextmanager
def plain_ray() -> Iterator[Callable[[int], float]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.plain_ray"],
        cwd=working.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None
    try:
        if stdout.readline().strip() != "ready":
            raise working.Trouble("Plain Ray did not start.")

        def run(count: int) -> float:
            stdin.write(f"{count}\n")
            stdin.flush()
            return float(stdout.readline())

        yield run
    finally:
        stdin.close()
        process.wait(30)


def drain(begun: working.Command, count: int) -> float:
    scratch.empty()
    commit = working.enqueue_and_wait(begun, QUEUE, count)
    outcomes = dict(working.ask("SELECT outcome, count(*) FROM manta_attempt GROUP BY outcome"))
    assert outcomes.keys() <= {"SUCCESSFUL", "RETURNED"}, f"{count} runs left the attempts {outcomes}."
    assert outcomes.get("SUCCESSFUL") == count, f"{count} runs left the attempts {outcomes}."
    return working.seconds_since(commit)


def pickup(begun: working.Command) -> float:
    """Seconds from the commit of an enqueue to the first line of the task."""
    time.sleep(0.06)
    with working.committed() as commit:
        [run_id] = working.enqueue(tasks.stamp.using(queue_name=QUEUE), [([], {})])
    time.sleep(0.02)
    begun.wait_for(lambda: working.has_ended(run_id), "the run has ended", every=0.005)
    [[started, _]] = working.values_of([run_id])
    return float(started - commit.nanoseconds) / 1e9


def cancelled(begun: working.Command, how: str) -> float:
    """Seconds from the request to cancel a run to its end, while another one beside it goes on."""
    scratch.empty()
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as name:
        places = [str(Path(name) / "beside"), str(Path(name) / "cancelled")]
        half = {"num_cpus": 0.5}
        [beside] = working.enqueue(tasks.stay.using(queue_name=QUEUE, ray=half), [([places[0], "asleep", 6.0], {})])
        [run_id] = working.enqueue(tasks.stay.using(queue_name=QUEUE, ray=half), [([places[1], how, 60.0], {})])
        begun.wait_for(lambda: all(Path(place).exists() for place in places), "both have begun")
        asked = time.monotonic()
        tasks.stay.get_result(run_id).cancel()
        begun.wait_for(lambda: working.has_ended(run_id), "it has ended", every=0.005)
        took = time.monotonic() - asked
        begun.wait_for(lambda: working.has_ended(beside), "the one beside it has ended")
    states = dict(working.ask("SELECT id::text, state FROM manta_run"))
    assert (states[run_id], states[beside]) == ("CANCELLED", "SUCCESSFUL"), states
    [[attempts]] = working.ask("SELECT count(*) FROM manta_attempt WHERE run_id = %s", beside)
    assert attempts == 1, "The one beside it was executed more than once."
    return took


def naps(begun: working.Command) -> float:
    scratch.empty()
    # So that it is known how long they take.
    working.wait_until_ended(begun, working.enqueue(tasks.nap.using(queue_name=QUEUE), [([0.05], {})] * 4)[-1])
    scratch.empty()
    with working.committed(by_database=True) as commit:
        ids = working.enqueue(tasks.nap.using(queue_name=QUEUE), [([0.05], {})] * 200)
    working.wait_until_ended(begun, ids[-1])
    return working.seconds_since(commit)
