"""
What a run costs each part that it passes, in seconds of processor: the constants of ``benchmarks.simulate``.

    python scripts/postgres.py run -- python -m benchmarks.costs          writes benchmarks/results/costs.json
    python scripts/postgres.py run -- python -m benchmarks.costs --ray    also those of the runner `ray`

Processor time is read from the clocks of the processes themselves, the server's too, so a machine that is busy with
other work makes them little wrong. Only the moments (a commit, a round trip) are waited for by the clock on the wall.
A statement costs something by itself and something for each run in it: measured with one run and with many.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results" / "costs.json"

#: Runs of a large statement, as a busy worker sends them, and how many statements of each size are timed.
MANY = 200
SINGLES, BATCHES = 200, 25

#: Runs that a worker drains while its processes are watched, and runs that it gets one by one.
DRAINED, QUICK_DRAINED = 20_000, 5_000
PICKED_UP, QUICK_PICKED_UP = 200, 50

#: Finished runs whose size is taken.
KEPT = 100_000


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer of everything, and coarse")
    parser.add_argument("--ray", action="store_true", help="also what a run costs on a local Ray with two processors")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help=f"({RESULTS.name})")
    options = parser.parse_args(argv)
    prepare()
    from benchmarks import scratch

    found = json.loads(options.output.read_text()) if options.output.exists() else {}
    with scratch.databases(["default"]):
        found |= {"machine": scratch.machine(), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        found |= measured(options.quick)
        if options.ray:
            found["ray"] = on_ray(options.quick)
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    return 0


def prepare() -> None:
    """For whoever measures outside of ``python -m benchmarks``."""
    if not os.environ.get("DATABASE_URL"):
        sys.exit("DATABASE_URL is not set: python scripts/postgres.py run -- python -m …")
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    import django

    django.setup()


def measured(quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"moments": moments()}
    found |= statements()
    found |= of_a_worker(QUICK_DRAINED if quick else DRAINED, QUICK_PICKED_UP if quick else PICKED_UP)
    found |= kept(KEPT // 5 if quick else KEPT)
    return found


# -- the database ------------------------------------------------------------------------------------


def moments() -> dict[str, float]:
    """Seconds that pass, whoever computes meanwhile: a round trip, a commit, and a ring of the doorbell."""
    from benchmarks import latency, scratch
    from benchmarks.echo import PING
    from benchmarks.measure import percentile

    with scratch.plain_connection() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bench_commit (number int)")
        write = "INSERT INTO bench_commit VALUES (1)"
        trips, commits = [], []
        for _ in range(2 * SINGLES):
            # Spread over some seconds, in turns: a disk has moods.
            time.sleep(0.01)
            trips.append(timed(lambda: connection.execute("SELECT 1", prepare=True)))
            commits.append(timed(lambda: connection.execute(write, prepare=True)))
        connection.execute("DROP TABLE bench_commit")
    rings = []
    with latency.answering() as connection:
        for _ in range(SINGLES):
            time.sleep(0.01)
            began = time.perf_counter()
            connection.execute(f"NOTIFY {PING}")
            # An answer that comes with the end of the question itself is not heard by psycopg: left out.
            if list(connection.notifies(timeout=0.5, stop_after=1)):
                rings.append((time.perf_counter() - began) / 2)
    return {
        "round_trip": median(trips),
        "commit": max(0.0, median(commits) - median(trips)),
        "commit_p99": percentile(commits, 0.99),
        "ring": median(rings),
    }


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def statements() -> dict[str, Any]:
    """
    Processor seconds of the server, by statement and by run in it, and bytes of its log.

    `nothing` is a claim that finds nothing, `look` what a worker asks after a ring.
    """
    from django.db import connection

    from benchmarks import scratch, tasks, wal, working
    from benchmarks.settle import WORKER, success
    from django_manta.ledger import Claimed, Ledger, house

    scratch.empty()
    ours, theirs, logged = {}, {}, {}

    def by_size(name: str, backend: int, work: Callable[[int], Any]) -> None:
        spent = {}
        for size, times in ((1, SINGLES), (MANY, BATCHES)):
            work(size)
            position, mine, yours = wal.wal_position(), time.thread_time(), processor_seconds([backend])
            for _ in range(times):
                work(size)
            spent[size] = (
                (processor_seconds([backend]) - yours) / times,
                (time.thread_time() - mine) / times,
                (wal.wal_position() - position) / times / size,
            )
        theirs[name] = line(spent[1][0], spent[MANY][0])
        ours[name] = line(spent[1][1], spent[MANY][1])
        logged[name] = round(spent[MANY][2])

    [[backend]] = working.ask("SELECT pg_backend_pid()")
    calls = [tasks.arguments(number) for number in range(MANY)]
    by_size("enqueue", backend, lambda size: tasks.resize.enqueue_many(calls[:size]))
    [[waiting]] = working.ask("SELECT count(*) FROM manta_run")
    assert waiting >= SINGLES + BATCHES * MANY
    with scratch.worker_session() as session:
        ledger, claims = Ledger(session), list[list[Claimed]]()
        backend = session.connection.info.backend_pid
        by_size("claim", backend, lambda size: claims.append(ledger.claim(WORKER, ["default"], size)))

        def settle(size: int) -> None:
            batch = claims.pop(0)
            assert len(batch) == size
            ledger.settle([success(claim.id, claim.token) for claim in batch], WORKER)

        by_size("settle", backend, settle)
        while batch := ledger.claim(WORKER, ["default"], MANY):
            ledger.settle([success(claim.id, claim.token) for claim in batch], WORKER)
        scratch.execute("VACUUM manta_run")
        for name, work in {
            "nothing": lambda: ledger.claim(WORKER, ["default"], MANY),
            "look": lambda: house.look(ledger, WORKER, ["default"]),
        }.items():
            yours = processor_seconds([backend])
            for _ in range(SINGLES):
                work()
            theirs[name] = {"statement": (processor_seconds([backend]) - yours) / SINGLES, "run": 0.0}
    connection.close()
    return {"database": theirs, "enqueuer": ours["enqueue"], "wal_bytes": logged}


def line(one: float, many: float) -> dict[str, float]:
    """What a statement costs by itself, and what each run in it adds."""
    each = (many - one) / (MANY - 1)
    return {"statement": max(0.0, one - each), "run": each}


def kept(count: int) -> dict[str, Any]:
    from benchmarks import retained, scratch, working

    with working.worker("costs") as worker:
        scratch.empty()
        working.enqueue_and_wait(worker, "costs", 1)
    retained.fill(count, newest=time.time(), apart=0.001)
    sizes = retained.sizes()
    scratch.empty()
    return {
        "kept_bytes": {
            "run": round(sizes.runs / count),
            "run_indexes": round(sizes.run_indexes / count),
            "attempt": round(sizes.attempts / count),
            "attempt_indexes": round(sizes.attempt_indexes / count),
        }
    }


# -- a worker ----------------------------------------------------------------------------------------


def of_a_worker(count: int, singles: int) -> dict[str, Any]:
    from benchmarks import claims, scratch, tasks, working
    from benchmarks.idle import MIB, memory

    with tempfile.TemporaryDirectory(prefix="manta-bench-") as name:
        strangers = connected()
        with working.worker("costs", MANTA_BENCH_CLAIMS=name) as worker:
            children = [pid for pid in worker.members() if pid != worker.pid]
            server = Server()

            def drain() -> None:
                working.enqueue_and_wait(worker, "costs", count)

            def pick_up() -> None:
                for _ in range(singles):
                    [run_id] = working.enqueue(tasks.resize.using(queue_name="costs"), [tasks.arguments(1)])
                    time.sleep(0.05)
                    worker.wait_for(lambda run_id=run_id: working.has_ended(run_id), "it has ended")

            drain()
            scratch.empty()
            noted = len([claim for claim in claims.noted(Path(name)) if claim.runs])
            with spent([worker.pid], children) as drained, server.spent() as whole:
                drain()
            batches = len([claim for claim in claims.noted(Path(name)) if claim.runs]) - noted
            with spent([worker.pid], children) as picked:
                pick_up()
            found = {
                "worker": of_the_loop(drained[0] / count, picked[0] / singles, batches / count),
                "child_run": drained[1] / count,
                "drain": {
                    "runs": count,
                    "runs_a_claim": round(count / batches, 1),
                    "server_cpu_a_run": whole[0] / count,
                    "control_cpu_a_run": drained[0] / count,
                    "control_cpu_of_a_single_run": picked[0] / singles,
                },
                "connections": connected() - strangers,
                "memory_mib": {
                    "control": round(memory([worker.pid], "Pss") / MIB, 1),
                    "fork_server_and_children": round(memory(children, "Pss") / MIB, 1),
                    "children": len(children) - 1,
                },
            }
            scratch.empty()
    return found


def of_the_loop(drained: float, single: float, claims: float) -> dict[str, dict[str, float]]:
    """
    Of a claim or a settlement, by itself and by run: from what a run costs in a drain and what it costs alone.

    A run alone pays for a claim, for a look after the doorbell's silence that brings nothing, and for a settlement;
    one in a drain for its share of as many claims as settlements.
    """
    # drained = run + 2 claims · statement;  single = run + 3 · statement
    statement = max(0.0, (single - drained) / (3 - 2 * claims))
    run = max(0.0, drained - 2 * claims * statement)
    return {name: {"statement": statement, "run": run / 2} for name in ("claim", "settle")}


def connected() -> int:
    from benchmarks import working

    [[count]] = working.ask(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return int(count)


# -- Ray ---------------------------------------------------------------------------------------------


def on_ray(quick: bool) -> dict[str, float]:
    """By run, of each process that it passes. Who is who is told by the titles that Ray gives its processes."""
    from benchmarks import on_ray, scratch

    count = QUICK_DRAINED if quick else DRAINED
    with on_ray.worker() as worker:
        on_ray.drain(worker, count)
        scratch.empty()
        parts = ray_processes(worker.pid)
        server = Server()
        with spent(*parts.values()) as used, server.spent() as whole:
            seconds = on_ray.drain(worker, count)
        delays = [on_ray.pickup(worker) for _ in range(25 if quick else 100)][5:]
    found = {f"{name}_run": each / count for name, each in zip(parts, used, strict=True)}
    return {**found, "server_run": whole[0] / count, "pickup": median(delays), "drain_rate": count / seconds}


def ray_processes(worker: int) -> dict[str, list[int]]:
    """The control process, the envoy, the foreman, the processes that execute, and the rest of Ray."""
    parents, words = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
    ours, grown = {worker}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        ours, grown = ours | more, bool(more)
    found: dict[str, list[int]] = {"control": [worker], "envoy": [], "foreman": [], "process": [], "rest": []}
    for pid in sorted(ours - {worker}):
        if "Foreman" in words[pid]:
            found["foreman"].append(pid)
        elif words[pid].startswith("ray::"):
            found["process"].append(pid)
        elif parents[pid] == worker and "raylet" not in words[pid]:
            found["envoy"].append(pid)
        else:
            found["rest"].append(pid)
    return found


# -- processor time ----------------------------------------------------------------------------------


def processor_seconds(pids: Sequence[int]) -> float:
    """Of those that are still there: helpers come and go."""
    from benchmarks import idle, working

    total = 0.0
    for pid in pids:
        try:
            total += idle.processor_seconds([pid])
        except (working.Trouble, OSError):
            continue
    return total


@contextmanager
def spent(*groups: Sequence[int]) -> Iterator[list[float]]:
    """What each group of processes uses during the block, in seconds."""
    before = [processor_seconds(group) for group in groups]
    used: list[float] = []
    yield used
    used += [processor_seconds(group) - earlier for group, earlier in zip(groups, before, strict=True)]


class Server:
    """All processes of the server, those that have ended included: the postmaster has counted them."""

    def __init__(self) -> None:
        from benchmarks import working

        [[backend]] = working.ask("SELECT pg_backend_pid()")
        self.postmaster = _stat(backend)[1]

    @contextmanager
    def spent(self) -> Iterator[list[float]]:
        before, used = self._total(), list[float]()
        yield used
        used.append(self._total() - before)

    def _total(self) -> float:
        children = [
            int(entry.name)
            for entry in Path("/proc").glob("[0-9]*")
            if (stat := _stat(int(entry.name))) and stat[1] == self.postmaster
        ]
        waited_for = sum(_stat(self.postmaster)[13:15]) / os.sysconf("SC_CLK_TCK")
        return processor_seconds([self.postmaster, *children]) + waited_for


def _stat(pid: int) -> list[int]:
    """The numbers of /proc/PID/stat from the state on, which is given as 0; the parent is [1]."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [0, *(int(field) for field in fields[1:])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
