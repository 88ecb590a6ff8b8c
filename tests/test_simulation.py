"""The simulation under benchmarks/: what can be calculated by hand it must reproduce. Nothing is timed."""

import json
import math
import random
from itertools import pairwise
from typing import Any

import pytest

from benchmarks import simulate, simulation
from benchmarks.costs import RESULTS
from benchmarks.measure import percentile
from benchmarks.simulation import Clock, Cores, Plan, Serial, predict
from django_manta import conf, ringing
from django_manta.execution.runners import processes
from django_manta.execution.runners.ray import foreman
from django_manta.worker import afar, dispatch, lookout, settling


def costs(**given: Any) -> dict[str, Any]:
    """Nothing costs anything, unless given."""
    free = {"statement": 0.0, "run": 0.0}
    return {
        "moments": {"round_trip": 0.0, "commit": 0.0, "ring": 0.0},
        "database": dict.fromkeys(("enqueue", "claim", "settle", "nothing", "look"), free) | given.pop("database", {}),
        "enqueuer": free,
        "worker": {"claim": free, "settle": free},
        "child_run": 1e-4,
        "drain": {"control_cpu_a_run": 0.0},
        **given,
    }


RAY = {
    "control_run": 1e-5,
    "envoy_run": 1e-5,
    "foreman_run": 1e-4,
    "process_run": 1e-4,
    "rest_run": 0.0,
    "pickup": 0.005,
}


def waits(cores: int, service: float, arrivals: list[float]) -> list[float]:
    """How long each waits until it has been served."""
    clock, found = Clock(), []
    pool = Cores(clock, cores, "pool")
    for moment in arrivals:
        clock.after(moment, lambda moment=moment: pool.use(service, lambda: found.append(clock.now - moment)))
    clock.run(lambda: False)
    return found


def test_on_one_core_each_waits_for_those_before_it() -> None:
    assert waits(1, 0.001, [0.0, 0.0, 0.0]) == pytest.approx([0.001, 0.002, 0.003])
    assert waits(2, 0.001, [0.0, 0.0, 0.0]) == pytest.approx([0.001, 0.001, 0.002])
    assert waits(1, 0.001, [0.0, 1.0, 2.0]) == pytest.approx([0.001] * 3)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_random_arrivals_of_equal_work_wait_as_long_as_the_formula_says(load: float) -> None:
    """M/D/1: the mean wait before service is ρ / (2 (1 − ρ)) services."""
    dice, service, moment, arrivals = random.Random(7), 0.001, 0.0, []
    for _ in range(100_000):
        moment += dice.expovariate(load / service)
        arrivals.append(moment)
    found = waits(1, service, arrivals)
    queued = sum(found) / len(found) - service
    assert queued == pytest.approx(service * load / (2 * (1 - load)), rel=0.05)


def test_long_work_shares_a_core_with_short_work() -> None:
    clock, ends = Clock(), {}
    pool = Cores(clock, 1, "pool")
    pool.use(1.0, lambda: ends.setdefault("long", clock.now))
    pool.use(0.001, lambda: ends.setdefault("short", clock.now))
    clock.run(lambda: False)
    assert ends["short"] < 0.01
    assert ends["long"] == pytest.approx(1.001)
    assert pool.used == pytest.approx(1.001)


def test_a_process_with_one_thread_does_one_thing_at_a_time() -> None:
    clock, ends = Clock(), []
    serial = Serial(Cores(clock, 8, "pool"))
    for _ in range(4):
        serial.use(0.25, lambda: ends.append(clock.now))
    clock.run(lambda: False)
    assert ends == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_one_process_executes_one_after_the_other() -> None:
    found = predict(Plan(processes=1, runs=1_000), costs())
    assert found.settled == 1_000
    assert found.throughput == pytest.approx(1 / 1e-4, rel=0.05)


def test_runs_that_sleep_need_as_many_rounds_as_there_are_processes_for() -> None:
    found = predict(Plan(processes=8, runs=200, task_seconds=0.05), costs(child_run=0.0))
    assert 200 / found.throughput == pytest.approx(200 / 8 * 0.05, rel=0.01)


def test_runs_that_compute_need_cores_and_not_processes() -> None:
    found = predict(Plan(processes=8, runs=200, task_seconds=0.05, busy=True, worker_cores=2), costs(child_run=0.0))
    assert 200 / found.throughput == pytest.approx(200 / 2 * 0.05, rel=0.05)


@pytest.mark.parametrize("workers", [1, 2, 8, 32])
@pytest.mark.parametrize("cores", [1, 4])
def test_no_number_of_workers_gets_more_out_of_a_database_than_it_has(workers: int, cores: int) -> None:
    dear = {"claim": {"statement": 1e-3, "run": 5e-5}, "settle": {"statement": 1e-3, "run": 5e-5}}
    found = predict(Plan(workers=workers, database_cores=cores, runs=20_000), costs(database=dear))
    assert found.settled == 20_000
    assert found.throughput <= cores / 1e-4
    assert found.throughput <= workers * 2 / 1e-4
    assert all(share <= 1 + 1e-9 for share in found.utilisation.values())


def test_more_workers_are_never_slower_while_the_database_is_idle() -> None:
    rates = [predict(Plan(workers=workers, runs=20_000), costs()).throughput for workers in (1, 2, 4, 8)]
    assert all(more > less for less, more in pairwise(rates))


def test_a_machine_that_all_share_is_never_used_more_than_there_is_of_it() -> None:
    dear = {name: {"statement": 1e-3, "run": 1e-4} for name in ("enqueue", "claim", "settle")}
    found = predict(Plan(rate=50_000, batch=100, shared_cores=2, seconds=1.0), costs(database=dear))
    assert found.utilisation["machine"] <= 1 + 1e-9
    # 4e-4 seconds of processor a run.
    assert found.throughput <= 2 / 4e-4


def test_what_comes_in_slowly_is_settled_at_the_same_rate() -> None:
    found = predict(Plan(rate=500, seconds=20.0), costs())
    assert found.throughput == pytest.approx(500, rel=0.05)
    assert not found.left


def test_a_run_that_rings_for_itself_is_picked_up_as_soon_as_messages_travel() -> None:
    moments = {"round_trip": 0.0, "commit": 0.001, "ring": 0.002}
    found = predict(Plan(rate=2, seconds=100.0), costs(moments=moments))
    # The ring, the claim with its commit, half of the child's work.
    assert found.pickup_p50 == pytest.approx(0.002 + 0.001 + 5e-5, abs=1e-6)


def test_what_does_not_ring_waits_at_most_for_the_end_of_the_silence() -> None:
    found = predict(Plan(rate=1_000, seconds=10.0, processes=8), costs())
    assert found.pickup_p99 <= simulation.DEBOUNCE_SECONDS + 0.002


def test_the_one_foreman_is_the_end_of_what_ray_can_do() -> None:
    rates = [predict(Plan(nodes=nodes, workers=2, runs=20_000), costs(ray=RAY)).throughput for nodes in (1, 10, 100)]
    assert max(rates) <= 1 / RAY["foreman_run"]
    assert rates[2] >= 0.8 / RAY["foreman_run"]


def test_long_runs_fill_all_slots_of_ray() -> None:
    found = predict(Plan(nodes=4, node_cores=8, runs=320, task_seconds=1.0), costs(ray=RAY))
    assert 320 / found.throughput == pytest.approx(10, rel=0.05)


def test_the_same_seed_gives_the_same_prediction() -> None:
    plan = Plan(rate=1_000, seconds=3.0)
    assert predict(plan, costs()) == predict(plan, costs())


def test_it_has_the_habits_of_the_real_parts() -> None:
    for module, names in {
        dispatch: (
            *("WINDOW_SECONDS", "WINDOW_RUNS", "FIRST_RUNS", "GROWTH", "CLAIM_LIMIT", "SLOW_SECONDS"),
            *("HELPING_RUNS", "HELPING_SMALL", "HELPING_SECONDS", "HELPING_LEFT", "HELPING_LEFT_SECONDS"),
        ),
        settling: ("LINGER_SECONDS", "BUSY_LINGER_SECONDS", "WORTHWHILE", "BATCH", "MANY", "BATCHES"),
        lookout: ("LOOK_SECONDS",),
        ringing: ("DEBOUNCE_SECONDS",),
        processes: ("NAP_RUNS", "NAP_SECONDS"),
        foreman: ("CHUNK_SECONDS", "CHUNK_RUNS"),
    }.items():
        for name in names:
            assert getattr(simulation, name) == getattr(module, name), f"{module.__name__}.{name}"
    assert simulation.RAY_WINDOW_SECONDS == afar.WINDOW_SECONDS
    assert simulation.HANDFUL_SECONDS == afar.HANDFUL_SECONDS
    assert conf.RAY_KEYS["AHEAD"][1] == simulation.AHEAD
    assert conf.RAY_KEYS["MAX_IN_FLIGHT"][1] == simulation.MAX_IN_FLIGHT


def test_percentiles_are_of_those_who_waited() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert math.isclose(percentile(list(range(1, 101)), 0.99), 99)


def test_the_page_tells_the_costs_that_were_measured() -> None:
    page = RESULTS.parent.parent.parent / "docs" / "scale.md"
    assert simulate.constants(json.loads(RESULTS.read_text())) in page.read_text()
