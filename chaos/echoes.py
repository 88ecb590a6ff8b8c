"""
Settlements that arrive twice, late, and in another order.

What ended is sent by two processes at once, each in an order and in batches of its own, mixed with settlements
of earlier executions of the same runs, whose tokens are old. Now and then the lease is lost first, and a third process
recovers what was held, while the two send or after that. Each execution may be settled once, and by nothing that is
stale.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import batched
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Any

import django

from chaos import tasks, world
from django_manta.ids import new_run_id
from django_manta.ledger import (
    Claimed,
    Ledger,
    Settleable,
    Settled,
    Settlement,
    WorkerRecord,
    graph,
    own_session,
    written,
)
from django_manta.states import Outcome, State

RUNS = 20_000
BATCH = 400

#: So many runs have another one that waits for their end.
FAMILY = 20

#: Before every so many rounds are settled, the lease is lost.
LOST_EVERY = 3

#: So many old settlements travel with those of a round.
STALE = 100

#: How an execution ends, and how often.
ENDINGS = {
    (Outcome.SUCCESSFUL, State.SUCCESSFUL): 6,
    (Outcome.FAILED, State.READY): 2,
    (Outcome.FAILED, State.SCHEDULED): 1,
    (Outcome.RETURNED, State.READY): 1,
}

#: What everything has that went well.
WELL: dict[str, Any] = {"result": "null", "result_signature": "signed", "executor": "echo:0"}

#: How long the two wait for each other.
_TOGETHER_SECONDS = 30

type Answer = tuple[list[int], int]


def storm(weather: world.Weather, report: world.Report) -> None:
    trials, runs = weather.count(2, 1), RUNS // (20 if weather.quick else 1)
    tally: Counter[str] = Counter()
    for trial in range(trials):
        world.empty()
        with senders() as pool:
            # Not with +=, which would forget what is below zero: attempts that nobody acknowledged.
            tally.update(_Trial(pool, random.Random(weather.seed + trial)).play(runs))
        everything = runs + runs // FAMILY
        world.judge(report, everything)
        tally["runs"] += everything
        tally["lost"] += report.figures["lost"]
        tally["fsck"] += report.figures["fsck"]
    names = ("runs", "lost", "sent", "settled", "stale_sent", "late_sent", "stale_accepted", "double_settlements")
    report.figures = {"trials": trials, **{name: tally[name] for name in (*names, "fsck")}}
    report.expect(not tally["stale_accepted"], f"{tally['stale_accepted']} stale settlements were accepted")
    report.expect(not tally["double_settlements"], f"{tally['double_settlements']} executions were settled twice")
    report.expect(not tally["unsettled"], f"{tally['unsettled']} executions were settled by nobody")
    report.expect(
        not tally["unwritten"], f"{tally['unwritten']} more (or less) executions were settled than attempts written"
    )


class _Trial:
    """One drain by hand: claim, send twice, send what is old, until all have succeeded."""

    def __init__(self, pool: ProcessPoolExecutor, dice: random.Random) -> None:
        self.pool = pool
        self.dice = dice
        self.tally: Counter[str] = Counter()
        #: Of every execution that is over: what was sent of it.
        self.old: list[Settlement] = []
        #: How often each execution was settled.
        self.settled: Counter[int] = Counter()

    def play(self, runs: int) -> Counter[str]:
        for size in (len(batch) for batch in batched(range(runs), FAMILY)):
            group = tasks.nap.map([0.0] * size)
            tasks.nap.using(after=list(group), when="all_finished").enqueue(0.0)
        with closing(own_session()) as session:
            ledger = Ledger(session)
            worker = _register(ledger)
            number = 0
            while world.unfinished():
                ledger.promote()
                claims = ledger.claim(worker, ["default"], BATCH)
                number += bool(claims)
                if claims and number % LOST_EVERY == 0:
                    worker = self._lose(ledger, worker, claims)
                elif claims:
                    self._settle_twice(worker, claims)
                else:
                    # Where two settle at once, one may leave it to the caretaker to tell who waits.
                    graph.tell_leftovers(ledger)
        self.tally["double_settlements"] = sum(times > 1 for times in self.settled.values())
        self.tally["settled"] = len(self.settled)
        written = world.number("SELECT count(*) FROM manta_attempt WHERE outcome <> 'LOST'")
        self.tally["unwritten"] = abs(self.settled.total() - written)
        return self.tally

    def _settle_twice(self, worker: str, claims: list[Claimed]) -> None:
        fresh = [self._ending(claim) for claim in claims]
        stale = self.dice.sample(self.old, min(STALE, len(self.old)))
        self.tally["stale_sent"] += 2 * len(stale)
        self._send(worker, fresh, stale)
        self.tally["unsettled"] += sum(each.token not in self.settled for each in fresh)
        self.old += fresh

    def _lose(self, ledger: Ledger, worker: str, claims: list[Claimed]) -> str:
        """The lease is lost before anything is sent: nothing of it may be accepted. Who works from now on."""
        [[seen_at]] = world.look("SELECT seen_at FROM manta_worker WHERE id = %s", worker)
        if not ledger.mark_lost(worker, seen_at):
            raise world.Broken("a lease that nobody renews could not be marked lost")
        late = [self._ending(claim) for claim in claims]
        self.tally["late_sent"] += 2 * len(late)
        if self.dice.random() < 0.5:
            # The lease alone is the fence: nobody has taken the tokens back yet.
            self._send(worker, [], late)
            self.pool.submit(recover, worker).result()
        else:
            recovering = self.pool.submit(recover, worker)
            self._send(worker, [], late)
            recovering.result()
        self.old += late
        return _register(ledger)

    def _send(self, worker: str, fresh: list[Settlement], stale: list[Settlement]) -> None:
        """Two processes send the same at once. Stale ones of them say, falsely, that their run has succeeded."""
        lies = [
            replace(each, outcome=Outcome.SUCCESSFUL, next_state=State.SUCCESSFUL, delay=None, **WELL) for each in stale
        ]
        answers = [self.pool.submit(send, worker, list(self._shuffled([*fresh, *lies]))) for _ in range(2)]
        old = {each.token for each in stale}
        for answer in answers:
            moved, sent = answer.result()
            self.tally["sent"] += sent
            for token in moved:
                if token in old:
                    self.tally["stale_accepted"] += 1
                else:
                    self.settled[token] += 1

    def _shuffled(self, settlements: list[Settlement]) -> Iterator[list[Settlement]]:
        mixed = self.dice.sample(settlements, len(settlements))
        while mixed:
            size = self.dice.randint(1, BATCH)
            yield mixed[:size]
            mixed = mixed[size:]

    def _ending(self, claim: Claimed) -> Settlement:
        [(outcome, state)] = self.dice.choices(list(ENDINGS), list(ENDINGS.values()))
        return Settlement(
            run_id=claim.id,
            token=claim.token,
            outcome=outcome,
            next_state=state,
            delay=0.0 if state is State.SCHEDULED else None,
            **(WELL if state is State.SUCCESSFUL else {}),
        )


def _register(ledger: Ledger) -> str:
    """A worker that exists in the ledger only."""
    worker = f"echo-{new_run_id()}"
    ledger.register(
        WorkerRecord(
            id=worker,
            name="echo",
            host="here",
            pid=0,
            version="",
            cluster="default",
            queues=("default",),
            runner="processes",
            lease_seconds=600.0,
            slots=BATCH,
        )
    )
    return worker


# -- in the processes that send ----------------------------------------------------------------------


@contextmanager
def senders() -> Iterator[ProcessPoolExecutor]:
    """Two that send, and one that recovers."""
    context = get_context("spawn")
    with ProcessPoolExecutor(3, context, initializer=_prepare, initargs=(context.Barrier(2),)) as pool:
        yield pool


_ledger: Ledger
_together: Any


def _prepare(together: "Barrier") -> None:
    global _ledger, _together
    django.setup()
    _ledger, _together = Ledger(own_session()), together


def send(worker: str, batches: Sequence[list[Settlement]]) -> Answer:
    """Send every batch, again as long as somebody holds a row. What was accepted, and how many were sent."""
    _together.wait(_TOGETHER_SECONDS)
    moved: list[int] = []
    sent = 0
    for left in _by_kind(batches):
        while left:
            sent += len(left)
            settled: Settled = _ledger.settle(left, worker)
            moved += settled.moved
            left = [each for each in left if each.token in settled.busy]
    return moved, sent


def _by_kind(batches: Sequence[list[Settlement]]) -> Iterator[list[Settleable]]:
    """Every other batch is split: what went well, as its executor writes it down, has a statement of its own."""
    for number, batch in enumerate(batches):
        if number % 2:
            yield list(batch)
            continue
        yield [written(each) for each in batch if each.outcome is Outcome.SUCCESSFUL]
        yield [each for each in batch if each.outcome is not Outcome.SUCCESSFUL]


def recover(worker: str) -> None:
    """What a lost worker held, until nothing of it is left."""
    while _ledger.orphans(worker):
        _ledger.recover(lambda orphan: 1_000_000, worker)
