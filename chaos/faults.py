"""
Something happens to the Nth statement, for every N.

Each verb of the ledger (enqueue, release, retry, cancel, claim, settle, recover, …) is done by a process behind a proxy
(fault_proxy.py) again and again: the first time something happens to its first statement, then to its second, until it
has no more. The connection is cut before the statement or before its answer, the process is killed there, or the server
refuses the statement with one of the SQLSTATEs that servers use. Then the same is done to a real worker.

Afterwards a caller that got an error tries again, as people do, and a healthy worker gets everything. Every run must
come to its right end, none may succeed twice, ``fsck`` must find nothing; no worker may end that was not killed.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.tasks import task_backends

from chaos import fault_proxy, tasks, world
from chaos.fault_proxy import CUTS, KILLS, SQLSTATES, Fault, FaultProxy
from django_manta import promise, resolve, workflow
from django_manta.ids import new_run_id
from django_manta.ledger import Ledger, Settlement, WorkerRecord
from django_manta.result import get_result
from django_manta.states import BAD_ENDS, ENDS, Outcome, State

LEASE_SECONDS = 2

#: No verb has more statements than this.
MOST_STATEMENTS = 60

#: A healthy worker brings everything to its end well within this.
LIMIT_SECONDS = 120

#: What no worker of the storm takes from as long as faults happen: what is claimed by hand.
CLAIMED_QUEUE = "io"

#: In the short form: one of each.
QUICK_KINDS = ["unheard", "kill_unheard", "XX000"]


@dataclass(slots=True)
class Trial:
    """One verb, done once, and what shall have become of its runs in the end."""

    given: dict[str, Any] = field(default_factory=dict)
    #: States that runs must have reached.
    ends: dict[str, str] = field(default_factory=dict)
    #: Runs that exist, all of them or none: all if the caller was told that they do.
    numbers: list[int] = field(default_factory=list)
    #: What a caller does who was told of an error.
    again: Callable[[], object] | None = None
    was_told: bool = False


#: What was tried, for people, and the trial.
type Done = tuple[str, Trial]


@dataclass(slots=True)
class Verb:
    """How to prepare a trial."""

    name: str
    prepare: Callable[["World"], Trial]
    #: What fault_caller calls it, if not by this name.
    verb: str = ""


# -- the world of the trials -------------------------------------------------------------------------


class World:
    """Makes runs to do something to, by hand: nothing but faults happens while trials go on."""

    def __init__(self) -> None:
        self._number = 0
        self._ledger = Ledger()
        self._seal: Any = task_backends["default"].seal  # type: ignore[attr-defined]

    def number(self) -> int:
        self._number += 1
        return self._number

    def worker(self) -> str:
        """A worker that exists in the ledger only."""
        worker = f"hand-{new_run_id()}"
        self._ledger.register(
            WorkerRecord(
                id=worker,
                name="hand",
                host="here",
                pid=0,
                version="",
                cluster="default",
                queues=(CLAIMED_QUEUE,),
                runner="processes",
                lease_seconds=600.0,
                slots=100,
            )
        )
        return worker

    def claimed(self, worker: str, results: Sequence[Any]) -> list[dict[str, Any]]:
        """The executions of runs of CLAIMED_QUEUE, which ``worker`` has claimed."""
        tokens = {str(each.id): each.token for each in self._ledger.claim(worker, [CLAIMED_QUEUE], 100)}
        return [{"run": result.id, "token": tokens[result.id]} for result in results]

    def succeeded(self, claim: dict[str, Any], value: str = "null") -> dict[str, Any]:
        signature = self._seal.sign_result(claim["run"], value)
        return {**claim, "outcome": "SUCCESSFUL", "state": "SUCCESSFUL", "result": value, "signature": signature}

    def settle(self, worker: str, settlement: dict[str, Any]) -> None:
        self._ledger.settle(
            [
                Settlement(
                    run_id=UUID(settlement["run"]),
                    token=settlement["token"],
                    outcome=Outcome(settlement["outcome"]),
                    next_state=State(settlement["state"]),
                    result=settlement.get("result"),
                    result_signature=settlement.get("signature", ""),
                )
            ],
            worker,
        )

    def finished(self) -> Any:
        """A run that has succeeded."""
        return self._ended("SUCCESSFUL")

    def failed(self) -> Any:
        """A run that has failed, and will not fail again."""
        return self._ended("FAILED")

    def _ended(self, state: str) -> Any:
        result = tasks.trial.using(queue_name=CLAIMED_QUEUE, max_attempts=1).enqueue(self.number())
        worker = self.worker()
        [claim] = self.claimed(worker, [result])
        good = self.succeeded(claim)
        self.settle(worker, good if state == "SUCCESSFUL" else {**claim, "outcome": state, "state": state})
        result.refresh()
        assert str(result.state) == state, result.state
        return result

    def tidy(self) -> None:
        """Leave nothing behind that the next trial would claim; what was claimed by hand is lost with its worker."""
        world.run(f"UPDATE manta_run SET queue = 'default' WHERE queue = '{CLAIMED_QUEUE}'")

    def forsake(self) -> None:
        """The workers that exist in the ledger only are gone for good."""
        world.run("UPDATE manta_worker SET lost_at = statement_timestamp() WHERE host = 'here' AND lost_at IS NULL")


SUCCESSFUL, CANCELLED, EXPIRED = "SUCCESSFUL", "CANCELLED", "EXPIRED"


def enqueue(made: World) -> Trial:
    number = made.number()
    return Trial({"number": number}, numbers=[number])


def enqueue_many(made: World) -> Trial:
    numbers = [made.number() for _ in range(4)]
    return Trial({"numbers": numbers}, numbers=numbers)


def enqueue_workflow(made: World) -> Trial:
    numbers = [made.number() for _ in range(2)]
    return Trial({"numbers": numbers}, numbers=numbers)


def enqueue_waiting(made: World) -> Trial:
    number = made.number()
    # One that has ended, and one that will.
    after = [made.finished().id, tasks.trial.enqueue(made.number()).id]
    return Trial({"number": number, "after": after}, numbers=[number])


def release(made: World) -> Trial:
    """Both orders: what it waits for has ended already, or will."""
    ended, before = made.finished(), tasks.trial.enqueue(made.number())
    held = tasks.trial.using(after=[ended, before], hold=True).enqueue(made.number())

    def again() -> None:
        if get_result(held.id).state is State.HELD:
            Ledger().release([UUID(held.id)])

    return Trial({"run": held.id}, {held.id: SUCCESSFUL}, again=again)


def release_behind_an_end(made: World) -> Trial:
    """All that it waits for has ended: no end will ever lead anybody to it again."""
    held = tasks.trial.using(after=[made.finished()], hold=True).enqueue(made.number())

    def again() -> None:
        if get_result(held.id).state is State.HELD:
            Ledger().release([UUID(held.id)])

    return Trial({"run": held.id}, {held.id: SUCCESSFUL}, again=again)


def retry(made: World) -> Trial:
    failed = made.failed()
    dependent = tasks.trial.using(after=[failed]).enqueue(made.number())
    _settled_dependents()

    def again() -> None:
        if get_result(failed.id).state in BAD_ENDS:
            get_result(failed.id).retry()

    return Trial({"run": failed.id}, {failed.id: SUCCESSFUL, dependent.id: SUCCESSFUL}, again=again)


def cancel(made: World) -> Trial:
    unwanted = tasks.trial.using(queue_name=CLAIMED_QUEUE).enqueue(made.number())
    dependent = tasks.trial.using(after=[unwanted], when="all_finished").enqueue(made.number())
    return _cancel(unwanted, False, {unwanted.id: CANCELLED, dependent.id: SUCCESSFUL})


def cancel_cascade(made: World) -> Trial:
    unwanted = tasks.trial.using(queue_name=CLAIMED_QUEUE).enqueue(made.number())
    dependent = tasks.trial.using(after=[unwanted]).enqueue(made.number())
    last = tasks.trial.using(after=[dependent]).enqueue(made.number())
    return _cancel(unwanted, True, dict.fromkeys((unwanted.id, dependent.id, last.id), CANCELLED))


def _cancel(unwanted: Any, cascade: bool, ends: dict[str, str]) -> Trial:
    def again() -> None:
        get_result(unwanted.id).cancel(cascade=cascade)

    return Trial({"run": unwanted.id, "cascade": cascade}, ends, again=again)


def resolve_promise(made: World) -> Trial:
    promised = promise()
    dependent = tasks.trial.enqueue(promised)

    def again() -> None:
        if get_result(promised.id).state not in ENDS:
            resolve(promised.id, 5)

    return Trial({"run": promised.id}, {promised.id: SUCCESSFUL, dependent.id: SUCCESSFUL}, again=again)


def claim(made: World) -> Trial:
    runs = tasks.trial.using(queue_name=CLAIMED_QUEUE).map([made.number() for _ in range(2)])
    waiting = tasks.trial.using(queue_name=CLAIMED_QUEUE).enqueue(made.finished())
    runs = [*runs, waiting]
    return Trial({"worker": made.worker(), "queue": CLAIMED_QUEUE}, {run.id: SUCCESSFUL for run in runs})


def settle(made: World) -> Trial:
    """One of each kind: alone, with a dependent, tried again at once and later, called again after another."""
    runs = tasks.trial.using(queue_name=CLAIMED_QUEUE).map([made.number() for _ in range(5)])
    dependent = tasks.trial.using(after=[runs[1]]).enqueue(made.number())
    other = tasks.trial.enqueue(made.number())
    worker = made.worker()
    claims = made.claimed(worker, runs)
    settlements = [
        made.succeeded(claims[0]),
        made.succeeded(claims[1]),
        {**claims[2], "outcome": "FAILED", "state": "READY"},
        {**claims[3], "outcome": "FAILED", "state": "SCHEDULED", "delay": 0.0},
        {**claims[4], "outcome": "DEFERRED", "state": "WAITING", "after": [other.id]},
    ]
    return Trial(
        {"worker": worker, "settlements": settlements},
        {run.id: SUCCESSFUL for run in (*runs, dependent, other)},
    )


def settle_well(made: World) -> Trial:
    runs = tasks.trial.using(queue_name=CLAIMED_QUEUE).map([made.number() for _ in range(3)])
    dependent = tasks.trial.using(after=list(runs)).enqueue(made.number())
    worker = made.worker()
    settlements = [made.succeeded(each) for each in made.claimed(worker, runs)]
    return Trial({"worker": worker, "settlements": settlements}, {run.id: SUCCESSFUL for run in (*runs, dependent)})


def settle_and_claim(made: World) -> Trial:
    trial = settle_well(made)
    first = UUID(trial.given["settlements"][0]["run"])
    follower = tasks.trial.using(after=[get_result(first)], queue_name=CLAIMED_QUEUE).enqueue(made.number())
    trial.given["queue"] = CLAIMED_QUEUE
    trial.ends[follower.id] = SUCCESSFUL
    return trial


def recover(made: World) -> Trial:
    runs = tasks.trial.using(queue_name=CLAIMED_QUEUE).map([made.number() for _ in range(3)])
    made.claimed(made.worker(), runs)
    made.forsake()
    return Trial({}, {run.id: SUCCESSFUL for run in runs})


def tell(made: World) -> Trial:
    """What ended in the caller's transaction has told nobody yet."""
    unwanted = tasks.trial.using(queue_name=CLAIMED_QUEUE).enqueue(made.number())
    dependents = [tasks.trial.using(after=[unwanted], when="all_finished").enqueue(made.number()) for _ in range(2)]
    held = tasks.trial.using(after=[made.finished()], hold=True).enqueue(made.number())
    with transaction.atomic():
        unwanted.cancel()
        Ledger().release([UUID(held.id)])
    return Trial({}, {unwanted.id: CANCELLED} | {each.id: SUCCESSFUL for each in (*dependents, held)})


def expire(made: World) -> Trial:
    late = tasks.trial.using(queue_name=CLAIMED_QUEUE, expires=timedelta(hours=1)).enqueue(made.number())
    dependent = tasks.trial.using(after=[late], when="all_finished").enqueue(made.number())
    world.run(f"UPDATE manta_run SET expires_at = statement_timestamp() WHERE id = '{late.id}'")
    return Trial({}, {late.id: EXPIRED, dependent.id: SUCCESSFUL})


def promote(made: World) -> Trial:
    runs = [tasks.trial.using(run_after=timedelta(milliseconds=1)).enqueue(made.number()) for _ in range(2)]
    return Trial({}, {run.id: SUCCESSFUL for run in runs})


def prune(made: World) -> Trial:
    """What is finished may go, but not what others are still to be given."""
    needed = made.finished()
    reader = tasks.trial.using(hold=True).enqueue(needed)
    for _ in range(2):
        made.finished()

    def again() -> None:
        Ledger().release([UUID(reader.id)])

    trial = Trial({}, {reader.id: SUCCESSFUL}, again=again)
    # Whether or not there was an error, it is held until then.
    trial.was_told = True
    return trial


VERBS = [
    Verb("enqueue", enqueue),
    Verb("enqueue_many", enqueue_many),
    Verb("enqueue_waiting", enqueue_waiting),
    Verb("enqueue_workflow", enqueue_workflow),
    Verb("release", release),
    Verb("release_behind_an_end", release_behind_an_end, "release"),
    Verb("retry", retry),
    Verb("cancel", cancel),
    Verb("cancel_cascade", cancel_cascade, "cancel"),
    Verb("resolve", resolve_promise),
    Verb("claim", claim),
    Verb("settle", settle),
    Verb("settle_well", settle_well, "settle"),
    Verb("settle_and_claim", settle_and_claim),
    Verb("recover", recover),
    Verb("tell", tell),
    Verb("expire", expire),
    Verb("promote", promote),
    Verb("prune", prune),
]


def _settled_dependents() -> None:
    """Who waited for what has ended knows it."""
    from django_manta.worker import caretaker

    caretaker.spread_the_word(task_backends["default"], Ledger())


# -- who is hit --------------------------------------------------------------------------------------


class Caller:
    """See fault_caller."""

    def __init__(self, url: str) -> None:
        self._log = world.LOGS / "fault-caller.log"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.fault_caller"],
            cwd=world.ROOT,
            env={**os.environ, "DATABASE_URL": url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
        )

    def call(self, proxy: FaultProxy, verb: str, given: dict[str, Any], kind: str, nth: int) -> dict[str, Any]:
        self._say(json.dumps({"verb": verb, "given": given}))
        pid = self._hear()["pid"]
        proxy.arm(Fault(kind, nth, pid))
        self._say("go")
        return self._hear()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise world.Broken(f"the caller ended with {self._process.wait()}; its log is {self._log}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def calling(url: str) -> Iterator[Caller]:
    caller = Caller(url)
    try:
        yield caller
    finally:
        caller.end()


# -- the storm ---------------------------------------------------------------------------------------


def storm(weather: world.Weather, report: world.Report) -> None:
    kinds = [*CUTS, *KILLS, *SQLSTATES]
    groups = [[verb] for verb in VERBS]
    if weather.quick:
        kinds = QUICK_KINDS
        # Fewer healthy workers. What prunes would take away what the others look for.
        groups = [[verb for verb in VERBS if verb.prepare is not prune], [Verb("prune", prune)]]
    tally: Counter[str] = Counter()
    with fault_proxy.before(connections["default"].settings_dict) as proxy:
        with calling(proxy.url) as caller:
            for verbs in groups:
                world.empty()
                made, trials = World(), list[Done]()
                for verb in verbs:
                    trials += _try_everywhere(report, tally, verb, kinds, proxy, caller, made)
                _heal(made, trials)
                _judge(report, tally, trials)
        for number in range(weather.count(3, 1)):
            world.empty()
            _hit_a_worker(report, tally, kinds, proxy, random.Random(weather.seed + number))
    names = ("runs", "verbs", "statements", "faults", "errors_seen", "killed", "worker_faults", "worker_kills")
    wrong = ("lost", "strange_errors", "exited", "fsck")
    report.figures = {name: tally[name] for name in (*names, *wrong)}
    for name in wrong:
        report.expect(not tally[name], f"{tally[name]} {name.replace('_', ' ')}")


def _try_everywhere(
    report: world.Report,
    tally: Counter[str],
    verb: Verb,
    kinds: Sequence[str],
    proxy: FaultProxy,
    caller: Caller,
    made: World,
) -> list[Done]:
    """Every kind of fault at every statement of a verb."""
    done: list[Done] = []
    began, most = time.monotonic(), 0
    for kind in kinds:
        for nth in range(1, MOST_STATEMENTS):
            trial = verb.prepare(made)
            answer = caller.call(proxy, verb.verb or verb.name, trial.given, kind, nth)
            fired = proxy.disarm()
            made.tidy()
            what = f"{verb.name}, {kind} at statement {nth}"
            _note(report, tally, what, trial, answer)
            done.append((what, trial))
            if not fired:
                break
            most = max(most, nth)
            tally["faults"] += 1
        else:
            report.broken.append(f"{verb.name} has more than {MOST_STATEMENTS} statements")
    tally["verbs"] += 1
    tally["statements"] += most
    print(f"faults: {verb.name}: {len(done)} trials, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return done


def _heal(made: World, trials: Sequence[Done]) -> None:
    """Callers who were told of an error try again, and there is a healthy worker."""
    made.forsake()
    for _, trial in trials:
        if trial.was_told and trial.again is not None:
            # It has happened all the same.
            with suppress(ValueError):
                trial.again()
    with world.workers(LEASE_SECONDS=LEASE_SECONDS) as start:
        world.fresh_workers(start, 1)
        world.let_end(LIMIT_SECONDS)
        world.wait_for(lambda: not world.number("SELECT count(*) FROM manta_herald"), 30, "everybody is told")


def _note(report: world.Report, tally: Counter[str], what: str, trial: Trial, answer: dict[str, Any]) -> None:
    if "answer" in answer:
        trial.given["heard"] = True
        return
    trial.was_told = True
    if "signal" in answer:
        tally["killed"] += 1
    elif answer["expected"]:
        tally["errors_seen"] += 1
    else:
        tally["strange_errors"] += 1
        report.broken.append(f"{what}: {answer['text']}")


def _judge(report: world.Report, tally: Counter[str], trials: Sequence[Done]) -> None:
    states = dict(world.look("SELECT id::text, state FROM manta_run"))
    by_number: Counter[int] = Counter()
    for arguments, state in world.look("SELECT arguments, state FROM manta_run WHERE task = 'chaos.tasks.trial'"):
        [given, _] = json.loads(arguments)
        if state == SUCCESSFUL and given and isinstance(given[0], int):
            by_number[given[0]] += 1
    wrong = 0
    for what, trial in trials:
        found = {run: states.get(run, "gone") for run in trial.ends}
        if found != trial.ends:
            wrong += 1
            report.broken.append(f"{what}: {found} instead of {trial.ends}")
        counts = {by_number[number] for number in trial.numbers}
        allowed = [{1}] if "heard" in trial.given else [{0}, {1}]
        if trial.numbers and counts not in allowed:
            wrong += 1
            report.broken.append(f"{what}: its runs succeeded {sorted(counts)} times")
    tally["runs"] += len(states)
    tally["lost"] += wrong + world.unfinished()
    world.judge_ledger(report)
    tally["fsck"] += report.figures["fsck"]


# -- a real worker -----------------------------------------------------------------------------------


def _hit_a_worker(
    report: world.Report, tally: Counter[str], kinds: Sequence[str], proxy: FaultProxy, dice: random.Random
) -> None:
    """A real worker behind the proxy, hit at a random statement of each round of work; a healthy one follows."""
    rounds = 2 * len(kinds)
    with world.workers({"DATABASE_URL": proxy.url}, LEASE_SECONDS=LEASE_SECONDS) as start:
        [victim] = world.fresh_workers(start, 1)
        for number in range(rounds):
            kind = kinds[number % len(kinds)]
            proxy.arm(Fault(kind, dice.randint(1, 25), victim.pid))
            runs = _work()
            world.wait_for(lambda: proxy.fired, 60, f"the worker was hit by {kind}")
            print(f"faults: a worker, {number + 1} of {rounds}: {kind}", file=sys.stderr, flush=True)
            proxy.disarm()
            tally["worker_faults"] += 1
            if kind in KILLS:
                victim.wait(10)
                victim.end()
                tally["worker_kills"] += 1
            if not victim.alive:
                if kind not in KILLS:
                    tally["exited"] += 1
                    report.broken.append(f"the worker ended after {kind}; its log is {victim.log}")
                [victim] = world.fresh_workers(start, 1)
            tally["runs"] += runs
            # Of a statement that was committed without an answer a worker may learn when its time limit is over.
            world.let_end(LIMIT_SECONDS)
            left = world.unfinished()
            if left:
                tally["lost"] += left
                report.broken.append(f"{left} runs have not ended after {kind}: {world.by_state()}")
                world.empty_runs()
    bad = {state: count for state, count in world.by_state().items() if state != SUCCESSFUL}
    report.expect(not bad, f"a worker that was hit left {bad}")
    twice = world.number(
        "SELECT count(*) FROM (SELECT 1 FROM chaos_effect GROUP BY run_id HAVING count(*) > 1) AS twice"
    )
    report.expect(not twice, f"{twice} atomic runs had their effect twice")
    world.judge_ledger(report)
    tally["fsck"] += report.figures["fsck"]


def _work() -> int:
    """Some of everything that a worker does. How many runs."""
    plain = tasks.trial.map(range(10))
    tasks.mark_effect.map([0.0] * 2)
    tasks.stumble.using(max_attempts=4, backoff=0).enqueue(1)
    tasks.total.enqueue(tasks.double.map([1, 2, 3]))
    with workflow("faults"):
        last = tasks.trial.enqueue(0)
        for number in range(5):
            last = tasks.trial.using(after=[last]).enqueue(number)
    tasks.trial.using(after=list(plain)).enqueue(1)
    tasks.trial.using(run_after=timedelta(milliseconds=20)).enqueue(1)
    return 10 + 2 + 1 + 4 + 6 + 2
