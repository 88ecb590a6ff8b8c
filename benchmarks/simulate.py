"""
Predict throughput and pickup of a plan, from measured costs: ``python -m benchmarks.simulate --workers 8``.

Reads benchmarks/results/costs.json (``python -m benchmarks.costs`` writes it for a machine of yours). ``--tables``
prints the tables of docs/scale.md. ``--check`` measures what this machine can show and puts the prediction beside it:

    python scripts/postgres.py run -- python -m benchmarks.simulate --check
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.costs import RESULTS, Server, prepare, processor_seconds
from benchmarks.measure import percentile
from benchmarks.simulation import Plan, Prediction, predict

type Costs = Mapping[str, Any]

#: How often a drain is repeated.
DRAINS = 3

#: Cores used by others beyond which a prediction for what is left of the machine says nothing.
TOO_MANY = 0.25

#: How a figure is told: its unit, and how many of it are in one of ours.
UNITS = {"throughput": ("/s", 1, 0), "database_run": (" µs", 1e6, 0)}


def main(argv: list[str]) -> int:
    options = parse(argv)
    costs = json.loads(options.costs.read_text())
    if options.check:
        return check(costs, quick=options.quick, ray=options.ray)
    if options.tables:
        print("\n\n".join(tables(costs)))
        return 0
    plan = plan_of(options)
    print(f"costs of {costs['date']}: {costs['machine']}")
    print(told(plan, predict(plan, costs)))
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, none = parser.add_argument, Plan()
    add("--workers", type=int, default=none.workers, metavar="N", help="workers, each on a machine of its own (1)")
    add("--processes", type=int, default=none.processes, metavar="K", help="children of each (2)")
    add("--nodes", type=int, default=none.nodes, metavar="M", help="Ray nodes; above 0 the runner is `ray` (0)")
    add("--node-cores", type=int, default=none.node_cores, metavar="C", help="processors of each node (8)")
    add("--task-ms", type=float, default=0.0, metavar="X", help="how long the task takes (0: a no-op)")
    add("--spread", type=float, default=0.0, metavar="S", help="single runs are up to so much shorter or longer (0)")
    add("--busy", action="store_true", help="it computes all the while; else it waits")
    add("--rate", type=float, default=0.0, metavar="R", help="runs a second that come in (0: a drain of --runs)")
    add("--runs", type=int, default=0, metavar="N", help="runs of a drain (20,000, more for more workers)")
    add("--seconds", type=float, default=0.0, metavar="S", help="simulated, with --rate (5, and 20 tasks long)")
    add("--batch", type=int, default=none.batch, metavar="N", help="runs of one enqueue (1)")
    add("--enqueuers", type=int, default=none.enqueuers, metavar="N", help="processes that enqueue (1)")
    add("--database-cores", type=int, default=none.database_cores, metavar="C", help="the database's (2)")
    add("--worker-cores", type=int, default=none.worker_cores, metavar="C", help="a worker's (children + 1)")
    add("--shared-cores", type=int, default=none.shared_cores, metavar="C", help="all on one machine with so many")
    add("--network-ms", type=float, default=0.0, metavar="X", help="to the database and back, beyond loopback (0)")
    add("--costs", type=Path, default=RESULTS, metavar="FILE", help=f"({RESULTS.name})")
    add("--tables", action="store_true", help="the tables of docs/scale.md")
    add("--check", action="store_true", help="measure, and compare")
    add("--quick", action="store_true", help="with --check: shorter")
    add("--ray", action="store_true", help="with --check: also on a local Ray")
    return parser.parse_args(argv)


def plan_of(options: argparse.Namespace) -> Plan:
    task = options.task_ms / 1000
    slots = options.nodes * options.node_cores or options.workers * options.processes
    return Plan(
        workers=options.workers,
        processes=options.processes,
        nodes=options.nodes,
        node_cores=options.node_cores,
        task_seconds=task,
        spread=options.spread,
        busy=options.busy,
        rate=options.rate,
        runs=options.runs or enough(slots, task),
        seconds=options.seconds or max(5.0, 20 * task),
        batch=options.batch,
        enqueuers=options.enqueuers,
        database_cores=options.database_cores,
        worker_cores=options.worker_cores,
        shared_cores=options.shared_cores,
        network_seconds=options.network_ms / 1000,
    )


def enough(slots: int, task: float) -> int:
    """Runs of a drain whose beginning and end do not matter."""
    return min(200_000, max(20_000, slots * 1_000)) if task < 0.005 else slots * 50


def told(plan: Plan, found: Prediction) -> str:
    parts = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.utilisation.items())
    lines = [f"throughput {found.throughput:,.0f}/s; {parts}"]
    if plan.rate:
        lines.append(f"pickup p50 {found.pickup_p50 * 1000:.1f} ms, p99 {found.pickup_p99 * 1000:.1f} ms")
        if found.throughput < 0.95 * plan.rate:
            lines.append(f"It does not keep up: {found.left:,} runs are left, and more with every second.")
    else:
        lines.append(f"the busiest: {found.bottleneck}")
    return "\n".join(lines)


# -- the tables of the page --------------------------------------------------------------------------


def tables(costs: Costs) -> Iterator[str]:
    yield constants(costs)
    yield by_workers(costs)
    yield by_tasks(costs)
    yield by_load(costs)
    if "ray" in costs:
        yield by_nodes(costs)


def constants(costs: Costs) -> str:
    """The model: what was measured."""
    database, kept, memory = costs["database"], costs["kept_bytes"], costs["memory_mib"]

    def line(cost: Mapping[str, float]) -> str:
        return f"{cost['run'] * 1e6:.0f} µs a run and {cost['statement'] * 1e6:.0f} µs a statement"

    a_run = sum(database[name]["run"] for name in ("enqueue", "claim", "settle"))
    rows = [
        *((f"PostgreSQL, {name}: processor", line(database[name])) for name in ("enqueue", "claim", "settle")),
        ("PostgreSQL, a claim that finds nothing: processor", f"{database['nothing']['statement'] * 1e6:.0f} µs"),
        ("PostgreSQL, a look after a ring: processor", f"{database['look']['statement'] * 1e6:.0f} µs"),
        ("PostgreSQL, a core, large batches, from enqueue to settlement", f"{_rounded(1 / a_run)} runs/s"),
        ("the process that enqueues: processor", line(costs["enqueuer"])),
        ("a worker's loop, a claim or a settlement: processor", line(costs["worker"]["claim"])),
        ("a child: processor", f"{costs['child_run'] * 1e6:.0f} µs a run"),
        ("a round trip to the database, on one machine", f"{costs['moments']['round_trip'] * 1000:.2f} ms"),
        (
            "a commit, beyond that",
            f"{costs['moments']['commit'] * 1000:.2f} ms; p99 {costs['moments']['commit_p99'] * 1000:.1f} ms in all",
        ),
        ("the doorbell, one way", f"{costs['moments']['ring'] * 1000:.2f} ms"),
        ("write-ahead log", ", ".join(f"{name} {count} bytes" for name, count in costs["wal_bytes"].items())),
        ("a finished run that is kept", f"{kept['run']} bytes in the table, {kept['run_indexes']} in its indexes"),
        ("its attempt", f"{kept['attempt']} bytes in the table, {kept['attempt_indexes']} in its indexes"),
        ("connections of a worker whose tasks do not use the database", f"{costs['connections']}"),
        (
            f"memory (PSS), control process; fork server and {memory['children']} children",
            f"{memory['control']:.0f} MiB; {memory['fork_server_and_children']:.0f} MiB",
        ),
    ]
    if ray := costs.get("ray"):
        parts = ("control", "envoy", "foreman", "process", "rest")
        told = ", ".join(f"{part} {ray[f'{part}_run'] * 1e6:.0f}" for part in parts)
        rows.append(("on Ray: processor, µs a run", told))
        rows.append(("on Ray: pickup of a single run, p50", f"{ray['pickup'] * 1000:.1f} ms"))
    return "\n".join(["| what | measured |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)])


def by_workers(costs: Costs) -> str:
    """No-ops: all that there is to do is ours."""
    lines = ["| workers × 4 processes | database: 2 cores | 4 | 8 | 16 |", "|---|---|---|---|---|"]
    for workers in (1, 2, 4, 8, 16, 32, 64):
        cells = []
        for cores in (2, 4, 8, 16):
            plan = Plan(workers=workers, processes=4, database_cores=cores, runs=enough(workers * 4, 0.0))
            found = predict(plan, costs)
            cells.append(f"{_rounded(found.throughput)}/s, {found.bottleneck}")
        lines.append(f"| {workers} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_tasks(costs: Costs) -> str:
    """Tasks that take their time: claimed and settled one by one, as they end."""
    lines = [
        "| workers × 8 processes | 1 ms | 10 ms | 50 ms | 1 s |",
        "|---|---|---|---|---|",
    ]
    for workers in (1, 4, 16, 64):
        cells = []
        for task in (0.001, 0.01, 0.05, 1.0):
            runs = min(60_000, max(4_000, workers * 8 * 40))
            plan = Plan(workers=workers, processes=8, task_seconds=task, spread=0.5, database_cores=8, runs=runs)
            found = predict(plan, costs)
            used = 8 * found.utilisation["database"]
            cells.append(f"{_rounded(found.throughput)}/s, {used:.1f} cores")
        lines.append(f"| {workers} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_load(costs: Costs) -> str:
    """Pickup of single enqueues: what workers that are woken in vain cost."""
    lines = [
        "| workers × 4 processes | runs/s in, one by one | settled/s | pickup p50 | p99 | database |",
        "|---|---|---|---|---|---|",
    ]
    for workers in (1, 8, 64):
        for rate in (100, 1_000, 3_000):
            plan = Plan(workers=workers, processes=4, rate=rate, enqueuers=16, database_cores=8, seconds=5.0)
            found = predict(plan, costs)
            lines.append(
                f"| {workers} | {rate:,} | {_rounded(found.throughput)} | {found.pickup_p50 * 1000:.1f} ms |"
                f" {found.pickup_p99 * 1000:.1f} ms | {100 * found.utilisation['database']:.0f} % |"
            )
    return "\n".join(lines)


def by_nodes(costs: Costs) -> str:
    lines = ["| Ray nodes × 8 cores | no-ops | 10 ms | 100 ms | 1 s |", "|---|---|---|---|---|"]
    for nodes in (1, 2, 5, 10, 20, 50, 100):
        cells = []
        for task in (0.0, 0.01, 0.1, 1.0):
            slots = nodes * 8
            plan = Plan(
                workers=2,
                nodes=nodes,
                task_seconds=task,
                database_cores=8,
                runs=min(100_000, max(10_000, slots * 100)) if task < 0.05 else slots * 20,
            )
            found = predict(plan, costs)
            cells.append(f"{_rounded(found.throughput)}/s, {found.bottleneck}")
        lines.append(f"| {nodes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rounded(value: float) -> str:
    """Two digits: no more is known."""
    digits = max(0, len(str(int(value))) - 2)
    return f"{round(value, -digits):,.0f}"


# -- what this machine can show ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    #: Runs a second, or seconds of pickup.
    values: Mapping[str, float]
    #: Cores that strangers used meanwhile.
    others: float


def check(costs: Costs, *, quick: bool, ray: bool) -> int:
    prepare()
    from benchmarks import scratch

    cores = os.cpu_count() or 1
    drained = 5_000 if quick else 20_000
    naps = 200 if quick else 400
    drains = {
        "1 worker × 2 processes, no-ops": Plan(runs=drained, shared_cores=cores),
        "2 workers × 1 process, no-ops": Plan(workers=2, processes=1, runs=drained, shared_cores=cores),
        "1 worker × 8 processes, 50 ms asleep": Plan(processes=8, task_seconds=0.05, runs=naps, shared_cores=cores),
        "the same, 25 to 75 ms": Plan(processes=8, task_seconds=0.05, spread=0.5, runs=naps, shared_cores=cores),
    }
    ceiling = cores / processor_time_of_a_run(costs, batch=20)
    seconds = 5.0 if quick else 15.0
    inflows = {"1 worker × 2 processes, 10/s, one by one": Plan(rate=10, seconds=2 * seconds, shared_cores=cores)}
    inflows |= {
        f"1 worker × 2 processes, {share:.0%} load, by twenty": Plan(
            rate=round(share * ceiling), batch=20, seconds=seconds, shared_cores=cores
        )
        for share in (0.3, 0.7)
    }
    print(f"{'':44} {'':>14} predicted   measured  ratio  others' cores")
    with scratch.databases(["default"]):
        for what, plan in drains.items():
            compare(what, plan, costs, drain(plan))
        for what, plan in inflows.items():
            compare(what, plan, costs, inflow(plan))
        if ray and "ray" in costs:
            plan = Plan(nodes=1, node_cores=2, runs=drained, shared_cores=cores)
            compare("1 worker, a local Ray with 2 processors, no-ops", plan, costs, drain_on_ray(plan))
    return 0


def processor_time_of_a_run(costs: Costs, batch: int) -> float:
    """From enqueue to settlement, if each batch is claimed and settled as it came."""
    steps = [
        *(costs["database"][name] for name in ("enqueue", "claim", "settle")),
        *costs["worker"].values(),
        costs["enqueuer"],
    ]
    return float(costs["child_run"] + sum(cost["run"] + cost["statement"] / batch for cost in steps))


def compare(what: str, plan: Plan, costs: Costs, found: Measured) -> None:
    """What strangers took away makes everything that much slower."""
    slower = plan.shared_cores / max(0.2, plan.shared_cores - found.others)
    if plan.rate:
        # Who enqueues may not have been able to: what came is what is compared.
        plan = replace(plan, rate=found.values["throughput"])
    predicted = predict(plan, scaled(costs, slower))
    # Processor time is what it is, however long one waits for a processor.
    predicted = replace(predicted, database_run=predict(plan, costs).database_run)
    for name, value in found.values.items():
        theirs = getattr(predicted, name)
        unit, factor, digits = UNITS.get(name, (" ms", 1000, 1))
        print(
            f"{what:44} {name:>14} {theirs * factor:7,.{digits}f}{unit:3} {value * factor:7,.{digits}f}{unit:3}"
            f" {theirs / value:6.2f}  {found.others:.2f}{' too many to compare' * (found.others > TOO_MANY)}",
            flush=True,
        )
        what = ""


def scaled(costs: Costs, factor: float) -> dict[str, Any]:
    """The same costs on slower processors. Moments that nobody computes in stay as they are."""

    def of(value: Any) -> Any:
        return {name: of(each) for name, each in value.items()} if isinstance(value, Mapping) else value * factor

    slower = dict(costs)
    for name in ("database", "enqueuer", "worker", "child_run", "ray"):
        if name in costs:
            slower[name] = of(costs[name])
    return slower


def drain(plan: Plan) -> Measured:
    from benchmarks import scratch, tasks, working

    queue, task = "simulated", tasks.nap if plan.task_seconds else tasks.resize
    dice = random.Random(plan.seed)
    calls: Sequence[Any] = (
        [([plan.task_seconds * (1 + plan.spread * dice.uniform(-1, 1))], {}) for _ in range(plan.runs)]
        if plan.task_seconds
        else [tasks.arguments(number) for number in range(plan.runs)]
    )
    with workers(queue, plan) as begun:
        # So that it is known how long they take.
        for warm in (calls[: 10 * plan.processes * plan.workers], calls[:1_000]):
            working.wait_until_ended(begun[0], working.enqueue(task.using(queue_name=queue), warm)[-1])
        rates = []
        with strangers(begun) as others:
            for _ in range(DRAINS):
                scratch.empty()
                with working.committed(by_database=True) as commit:
                    ids = working.enqueue(task.using(queue_name=queue), calls)
                working.wait_until_ended(begun[0], ids[-1])
                rates.append(plan.runs / working.seconds_since(commit))
    values = {"throughput": median(rates)}
    if plan.task_seconds:
        # Of no-ops hardly more than what they cost in the batches in which that was measured.
        values["database_run"] = others[1] / DRAINS / plan.runs
    return Measured(values, others[0])


def inflow(plan: Plan) -> Measured:
    """Arrivals as the simulation has them: batches at random moments, by one who enqueues."""
    from benchmarks import scratch, tasks, working

    queue, dice = "simulated", random.Random(plan.seed)
    came: list[tuple[int, list[str]]] = []
    with workers(queue, plan) as begun:
        working.enqueue(tasks.stamp.using(queue_name=queue), [([], {})] * 1_000)
        begun[0].wait_for(lambda: not working.unfinished(), "it has warmed up")
        scratch.empty()
        began = due = time.monotonic()
        with strangers(begun) as others:
            while due < began + plan.seconds:
                time.sleep(max(0.0, due - time.monotonic()))
                with working.committed() as commit:
                    ids = working.enqueue(tasks.stamp.using(queue_name=queue), [([], {})] * plan.batch)
                came.append((commit.nanoseconds, ids))
                due += dice.expovariate(plan.rate / plan.batch)
            took = time.monotonic() - began
        begun[0].wait_for(lambda: not working.unfinished(), "every run has ended")
        waits = []
        for moment, ids in came[len(came) // 5 :]:
            waits += [(started - moment) / 1e9 for started, _ in working.values_of(ids)]
    settled = plan.batch * len(came) / took
    return Measured(
        {"throughput": settled, "pickup_p50": percentile(waits, 0.5), "pickup_p99": percentile(waits, 0.99)}, others[0]
    )


def drain_on_ray(plan: Plan) -> Measured:
    from benchmarks import on_ray

    with on_ray.worker() as begun:
        on_ray.drain(begun, plan.runs)
        rates = sorted(plan.runs / on_ray.drain(begun, plan.runs) for _ in range(3))
    return Measured({"throughput": rates[1]}, 0.0)


@contextmanager
def workers(queue: str, plan: Plan) -> Iterator[list[Any]]:
    from contextlib import ExitStack

    from benchmarks import scratch, working

    flags = ("--processes", str(plan.processes), "--queues", queue)
    scratch.empty()
    with ExitStack() as stack:
        begun = [stack.enter_context(working.command("manta", "worker", *flags)) for _ in range(plan.workers)]
        begun[0].wait_for(
            lambda: working.ask("SELECT count(*) FROM manta_worker") == [(plan.workers,)], "they are there"
        )
        yield begun


@contextmanager
def strangers(begun: Sequence[Any]) -> Iterator[list[float]]:
    """How many cores those used who have nothing to do with this; and seconds of processor of the server."""
    server, found = Server(), list[float]()
    ours = [os.getpid(), *(pid for each in begun for pid in each.members())]
    used, busy, began = processor_seconds(ours), _busy_seconds(), time.monotonic()
    with server.spent() as whole:
        yield found
    used, busy, elapsed = processor_seconds(ours) - used, _busy_seconds() - busy, time.monotonic() - began
    found += [max(0.0, (busy - used - whole[0]) / elapsed), whole[0]]


def _busy_seconds() -> float:
    """Of all processors together, since the machine was started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    # The guests' time is in the users' already.
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
