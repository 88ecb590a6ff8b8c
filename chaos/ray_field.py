"""
What a Ray cluster of three nodes meets in the field.

Nodes are stopped as `ray stop` stops them, drivers and the foreman hang, the database is away, results are large and
the nodes have no database, processes die of a segmentation fault while they send, and two projects share a Ray: each
with workers, a foreman and processes of its own. User code is counted from inside, in a file, and compared with the
attempts that the ledger has. The resident memory of foreman, driver and worker is sampled throughout.

MANTA_CHAOS_SCENARIOS, with names of scenarios and spaces between them, has only those run.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connections

from chaos import gate, memory, ray_field_scenarios, ray_nodes, world
from chaos.ray_scenario import Scenario, Setup, Start

#: What foreman, driver and worker may each have resident.
MOST_BYTES = 600 * 10**6

#: Each returns how many runs it had.
SCENARIOS: list[Callable[[Scenario], int]] = [
    ray_field_scenarios.stopped_nodes,
    ray_field_scenarios.hung_drivers,
    ray_field_scenarios.hung_foreman,
    ray_field_scenarios.outages,
    ray_field_scenarios.large_results,
    ray_field_scenarios.segmentation_faults,
    ray_field_scenarios.two_projects,
]

#: How an attempt may end at any time.
GOOD = {"SUCCESSFUL", "RETURNED"}


#: Of each scenario, and added up.
TOTALS = ("runs", "lost", "fsck", "starts", "attempts", "unexpected", "extra_starts", "attempts_without_start")


def storm(weather: world.Weather, report: world.Report) -> None:
    told: dict[str, str] = {}
    totals, most = Counter[str](), Counter[str]()
    with _three_nodes(weather) as setup:
        for play in _chosen():
            scenario = _run(play, setup, report, most)
            totals.update({name: scenario.figures[name] for name in TOTALS})
            told[scenario.name] = ",".join(f"{name}:{value}" for name, value in scenario.figures.items())
            print(f"ray-field: {scenario.name} {told[scenario.name]}", file=sys.stderr, flush=True)
            for words in scenario.broken:
                report.broken.append(f"{scenario.name}: {words}")
                print(f"ray-field:     BROKEN {words}", file=sys.stderr, flush=True)
    report.figures = {**totals, **{f"most_{role}": f"{size}MB" for role, size in most.items()}, **told}


def _chosen() -> list[Callable[[Scenario], int]]:
    names = os.environ.get("MANTA_CHAOS_SCENARIOS", "").split()
    return [play for play in SCENARIOS if not names or play.__name__ in names]


@contextmanager
def _three_nodes(weather: world.Weather) -> Iterator[Setup]:
    # A process that ignores SIGINT passes that on to every Ray process, where nothing could be cancelled then.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    server = connections["default"].settings_dict
    with gate.before(server) as nodes_gate, gate.before(server) as workers_gate:
        nodes = ray_nodes.Nodes(nodes_gate.url)
        try:
            yield Setup(nodes, nodes_gate, workers_gate, weather.quick)
        finally:
            nodes.end()


def _run(play: Callable[[Scenario], int], setup: Setup, report: world.Report, most: Counter[str]) -> Scenario:
    """One scenario, from an empty database to what is found in it at the end."""
    world.empty()
    began = time.monotonic()
    with world.workers() as begin:
        scenario = Scenario(play.__name__, setup, begin)
        with memory.watch(lambda: [worker.pid for worker in scenario.workers]) as watching:
            try:
                runs = play(scenario)
            except world.Broken as failure:
                scenario.broken.append(str(failure))
                runs = world.number("SELECT count(*) FROM manta_run")
        _check(scenario, runs, report)
    scenario.figures["seconds"] = round(time.monotonic() - began)
    scenario.broken += watching.killed
    for role, size in watching.megabytes().items():
        scenario.figures[role] = f"{size}MB"
        scenario.expect(size * 10**6 < MOST_BYTES, f"a {role} had {size} MB resident")
        most[role] = max(most[role], size)
    return scenario


def _check(scenario: Scenario, runs: int, report: world.Report) -> None:
    """Every run is successful, each attempt was promised, and starts and attempts match."""
    lost = runs - world.successful()
    scenario.expect(lost == 0, f"of {runs} runs {lost} have not succeeded: {world.by_state()}")
    ended = [number for number, worker in enumerate(scenario.workers) if not worker.alive]
    scenario.expect(not ended, f"workers ended: {[scenario.workers[number].log for number in ended]}")
    scenario.expect(not world.lost_workers(), f"{world.lost_workers()} leases were lost")
    attempts: list[tuple[str, str]] = world.look("SELECT run_id::text, outcome FROM manta_attempt")
    starts = scenario.starts()
    scenario.figures = {"runs": runs, "lost": lost, **_matched(scenario, attempts, starts), **scenario.figures}
    others = Counter(outcome for _, outcome in attempts if outcome != "SUCCESSFUL")
    scenario.figures |= dict(sorted(others.items()))
    ledger = world.Report()
    world.judge_ledger(ledger)
    scenario.figures["fsck"] = ledger.figures["fsck"]
    scenario.broken += ledger.broken
    report.double_successes = (report.double_successes or 0) + (ledger.double_successes or 0)
    effects = "SELECT count(*) FROM manta_run AS run WHERE task LIKE '%%_effect' AND state = 'SUCCESSFUL' AND 1 <>"
    twice = world.number(f"{effects} (SELECT count(*) FROM chaos_effect WHERE run_id = run.id)")
    scenario.expect(not twice, f"{twice} atomic runs have not had their effect once")


def _matched(scenario: Scenario, attempts: list[tuple[str, str]], starts: list[Start]) -> dict[str, int]:
    """Compare starts with attempts, and attempts with what was promised."""
    promised = scenario.promised
    started = Counter(start.run for start in starts)
    begun = Counter(run for run, outcome in attempts if outcome != "RETURNED")
    allowed = Counter(run for run, outcome in attempts if outcome in promised.outcomes)
    other = sum(outcome not in GOOD | promised.outcomes for _, outcome in attempts)
    without_start = begun - started
    excused = without_start & allowed if promised.unstarted else Counter[str]()
    unexpected = other + (allowed - promised.runs - excused).total()
    unexplained = (without_start - excused).total()
    extra = (started - begun).total()
    outcomes = dict(Counter(outcome for _, outcome in attempts))
    scenario.expect(not unexpected, f"{unexpected} attempts ended as was not promised: {outcomes}")
    scenario.expect(not extra, f"user code was started {extra} times more than there are attempts")
    scenario.expect(not unexplained, f"{unexplained} attempts ended without a start of user code")
    return {
        "starts": len(starts),
        "attempts": begun.total(),
        "unexpected": unexpected,
        "extra_starts": extra,
        "attempts_without_start": unexplained,
    }
