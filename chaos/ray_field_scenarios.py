"""The scenarios of the storm `ray-field`. Each returns how many runs it had; ray_field checks what became of them."""

import re
import time
from collections import Counter
from contextlib import suppress
from io import StringIO
from itertools import batched

import psutil
from django.core.management import CommandError, call_command

from chaos import ray_neighbour, ray_nodes, tasks, world
from chaos.ray_scenario import Promised, Scenario

#: How often nodes are stopped, how long drivers and foremen hang, and how long the database is away.
STOPS, QUICK_STOPS = 4, 2
DRIVER_SECONDS, FOREMAN_SECONDS, OUTAGE_SECONDS = 60.0, 45.0, 15.0

#: A driver that hangs is replaced within this.
REPLACED_SECONDS = 60.0

RESULT_CHARACTERS = 50 * 2**20
LIMIT_SECONDS = 180.0


def stopped_nodes(scenario: Scenario) -> int:
    """Nodes are stopped while runs execute on them: in the order of `ray stop`, then all processes at once."""
    runs, stops = scenario.setup.count(300, 80), scenario.setup.count(STOPS, QUICK_STOPS)
    scenario.start_worker()
    _enqueue_mixed(scenario, runs, 0.5)
    pids: set[int] = set()
    for nth in range(stops):
        scenario.wait_until_done((nth + 1) * runs // (stops + 2))
        pids |= scenario.setup.nodes.stop_one(at_once=nth % 2 == 1)
        scenario.setup.nodes.add_one()
    scenario.let_end()
    scenario.figures["stops"] = stops
    on_them = Counter(start.run for start in scenario.starts() if start.pid in pids)
    scenario.expect(world.by_outcome().keys() - {"SUCCESSFUL"}, "no run was hit")
    scenario.promised = Promised({"LOST", "INTERRUPTED"}, on_them, unstarted=True)
    return runs


def hung_drivers(scenario: Scenario) -> int:
    """The driver of one worker hangs for a minute, that of another worker for ever."""
    runs = scenario.setup.count(300, 100)
    first, second = scenario.start_worker("default"), scenario.start_worker("io")
    for queue in ("default", "io"):
        tasks.note_start.using(queue_name=queue).starmap([(scenario.starts_file, 0.3)] * (runs // 2))
    scenario.wait_until_done(runs // 10)
    for_ever = scenario.driver_of(second)
    for_ever.suspend()
    began, resumed = time.monotonic(), 0.0
    known: list[int] = []

    def is_over() -> bool:
        nonlocal resumed
        # What the drivers had told before they hung is settled within a second.
        if not known and time.monotonic() - began > 1:
            known.append(world.successful())
        if known and not resumed and world.successful() > known[0]:
            resumed = time.monotonic() - began
        return not world.unfinished()

    try:
        ray_nodes.hang(scenario.driver_of(first), DRIVER_SECONDS, is_over)
        scenario.let_end(LIMIT_SECONDS - DRIVER_SECONDS)
    finally:
        with suppress(psutil.NoSuchProcess):
            for_ever.kill()
    scenario.figures |= {"resumed": f"{resumed:.0f}s", "ended": f"{time.monotonic() - began:.0f}s"}
    late = f"nothing was settled within {REPLACED_SECONDS:g} s of the moment at which the drivers hung"
    scenario.expect(0 < resumed < REPLACED_SECONDS, late)
    scenario.expect(not world.unfinished(), f"with a driver that hangs runs do not end: {world.by_state()}")
    return runs


def hung_foreman(scenario: Scenario) -> int:
    """The foreman hangs for 45 seconds; `doctor` says so, and nothing is lost."""
    runs = scenario.setup.count(200, 80)
    scenario.start_worker()
    tasks.note_start.starmap([(scenario.starts_file, 0.3)] * runs)
    scenario.wait_until_done(runs // 10)
    began, told = time.monotonic(), 0.0

    def has_told() -> bool:
        nonlocal told
        if not told and re.search(r"does not answer|Ray is away", _doctor()):
            told = time.monotonic() - began
        return False

    ray_nodes.hang(scenario.foreman(), FOREMAN_SECONDS, has_told)
    scenario.let_end()
    scenario.figures |= {"told": f"{told:.0f}s", "ended": f"{time.monotonic() - began:.0f}s"}
    scenario.expect(told > 0, "doctor did not say that Ray does not answer")
    return runs


def outages(scenario: Scenario) -> int:
    """Twice the database is away for 15 seconds, for workers and nodes, while atomic and plain runs are in flight."""
    runs, nap = scenario.setup.count(300, 100), 0.3
    scenario.start_worker()
    _enqueue_mixed(scenario, runs, nap, atomic=3)
    away: list[float] = []
    for nth in range(2):
        scenario.wait_until_done(runs * (2 * nth + 1) // 6)
        away.append(time.time())
        for each in (scenario.setup.workers_gate, scenario.setup.nodes_gate):
            each.shut()
        time.sleep(OUTAGE_SECONDS)
        for each in (scenario.setup.workers_gate, scenario.setup.nodes_gate):
            each.open()
    scenario.let_end()
    scenario.figures |= {"outages": len(away), "away": f"{OUTAGE_SECONDS:g}s"}
    # The transaction of an atomic run that was executing is gone, through no fault of its own.
    hit = Counter(start.run for start in scenario.starts() if any(-nap - 0.5 < start.at - at < 0.2 for at in away))
    scenario.promised = Promised({"INTERRUPTED"}, hit)
    return runs


def large_results(scenario: Scenario) -> int:
    """Results of 50 MiB, of nodes that cannot reach the database."""
    runs = scenario.setup.count(40, 16)
    scenario.setup.nodes_gate.shut()
    try:
        scenario.start_worker()
        tasks.note_start.starmap([(scenario.starts_file, 0.1, RESULT_CHARACTERS)] * runs)
        began = time.monotonic()
        scenario.let_end(2 * LIMIT_SECONDS)
    finally:
        scenario.setup.nodes_gate.open()
    scenario.figures |= {"MiB": runs * RESULT_CHARACTERS // 2**20, "ended": f"{time.monotonic() - began:.0f}s"}
    # The quotes are JSON's.
    whole = world.number("SELECT count(*) FROM manta_run WHERE length(result) = %s", RESULT_CHARACTERS + 2)
    scenario.expect(whole == runs, f"{whole} of {runs} results are whole")
    return runs


def segmentation_faults(scenario: Scenario) -> int:
    """Processes die while they send a large outcome; at first by chance, then while the foreman does not read."""
    crashes = scenario.setup.count(10, 4)
    others = scenario.setup.count(40, 20)
    runs = 0
    scenario.setup.nodes_gate.shut()
    try:
        scenario.start_worker()
        for hung in (False, True):
            tasks.crash_while_sending.starmap([(scenario.starts_file, 20 * 2**20)] * crashes)
            tasks.note_start.starmap([(scenario.starts_file, 0.1)] * others)
            runs += crashes + others
            known = len(scenario.starts(".crashed"))
            while hung and _goes_on(scenario, known + crashes // 2):
                # Long enough for the sockets to be full while the outcome is being sent.
                ray_nodes.hang(scenario.foreman(), 2.5, lambda: False)
                time.sleep(0.5)
            scenario.let_end()
    finally:
        scenario.setup.nodes_gate.open()
    crashed = Counter(start.run for start in scenario.starts(".crashed"))
    scenario.figures["faults"] = crashed.total()
    scenario.expect(crashed.total() >= crashes, f"only {crashed.total()} processes died while they sent")
    scenario.promised = Promised({"CRASHED"}, crashed)
    return runs


def two_projects(scenario: Scenario) -> int:
    """Another project, with the same key and a database of its own, on the same Ray at the same time."""
    pairs = scenario.setup.count(50, 20)
    with ray_neighbour.neighbour(scenario.setup.workers_gate.url) as other:
        scenario.start_worker()
        scenario.begin_worker(other.environment)
        for _ in range(2):
            tasks.tell_project.map([scenario.starts_file] * pairs)
            tasks.tell_project_atomically.map([scenario.starts_file] * pairs)
            other.enqueue(scenario.starts_file + ".theirs", pairs)
        scenario.let_end()
        with suppress(world.Broken):
            world.wait_for(
                lambda: not other.unfinished() or not scenario.is_alive, LIMIT_SECONDS, "their runs have ended"
            )
        ours, theirs = ray_neighbour.our_results(), other.results()
        starts, outcomes = len(scenario.starts(".theirs")), other.outcomes()
        scenario.figures |= {"their_starts": starts, "their_attempts": sum(outcomes.values())}
        scenario.expect(outcomes == {"SUCCESSFUL": 4 * pairs}, f"their attempts: {outcomes}")
        scenario.expect(starts == 4 * pairs, f"their user code was started {starts} times, not {4 * pairs}")
    for name, found, own in (("first", ours, ray_neighbour.our_project()), ("second", theirs, other.project())):
        scenario.figures[f"{name}_saw_the_other"] = len(found) - found.count(own)
        words = f"runs of the {name} project, {own}, saw {dict(Counter(found))}"
        scenario.expect(found == [own] * 4 * pairs, words)
    return 4 * pairs


def _goes_on(scenario: Scenario, crashes: int) -> bool:
    """Fewer processes have crashed, and more may."""
    return len(scenario.starts(".crashed")) < crashes and bool(world.unfinished()) and scenario.is_alive


def _enqueue_mixed(scenario: Scenario, runs: int, nap: float, atomic: int = 10) -> None:
    """Plain runs, and every ``atomic``-th one atomic."""
    each = [(scenario.starts_file, nap)]
    for batch in batched(range(runs), atomic):
        tasks.note_start.starmap(each * (len(batch) - 1))
        tasks.note_start_and_effect.starmap(each)


def _doctor() -> str:
    said = StringIO()
    with suppress(SystemExit, CommandError):
        call_command("manta", "doctor", stdout=said, stderr=said)
    return said.getvalue()
