"""What there is to see of the house when somebody asks why a run is not running: queues, workers, who is to blame."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from uuid import UUID

from django_manta.backend import MantaBackend
from django_manta.commands import workers as leases
from django_manta.commands.pause import paused
from django_manta.commands.printing import duration, moment
from django_manta.conf import RUNNERS
from django_manta.ledger import around, house
from django_manta.ledger.around import Stance
from django_manta.states import BAD_ENDS, ENDS, Role, State

#: Runs that are counted, and that are named as those to blame; and how far to follow from one to the next.
COUNTED, LISTED, STEPS = 10_000, 20, 2_000


class Cause(StrEnum):
    """Why a run stands where it stands."""

    HELD = "held"
    DUE_LATER = "due_later"
    RETRY_LATER = "retry_later"
    CALLED_AGAIN_LATER = "called_again_later"
    REFUSED = "refused"
    DATABASE_UNREACHABLE = "database_unreachable"
    OVERDUE = "overdue"
    PROMISE = "promise"
    NOT_COUNTED = "not_counted"
    DELEGATED = "delegated"
    WAITS_FOR_RUNS = "waits_for_runs"
    NOT_TOLD = "not_told"
    WAITS_FOR_NOTHING = "waits_for_nothing"
    NO_GATE = "no_gate"
    PAUSED_QUEUE = "paused_queue"
    NO_WORKER = "no_worker"
    EXPIRED = "expired"
    SUSPECT = "suspect"
    WORKERS_BUSY = "workers_busy"
    NEXT = "next"
    RUNNING = "running"
    PAST_TIMEOUT = "past_timeout"
    WAITS_FOR_RAY = "waits_for_ray"
    WORKER_GONE = "worker_gone"
    CANCELLING = "cancelling"
    ENDED_WELL = "ended_well"
    ENDED_BADLY = "ended_badly"
    UPSTREAM_FAILED = "upstream_failed"
    DELEGATE_FAILED = "delegate_failed"


@dataclass(slots=True)
class Answer:
    """What is said of one state."""

    cause: Cause
    sentence: str
    advice: str = ""
    also: tuple[str, ...] = ()
    #: The runs that are to blame.
    blamed: list[Stance] = field(default_factory=list)


class Look:
    """One look at the house, for what is said of a run and of the one at the root of it."""

    def __init__(self, backend: MantaBackend) -> None:
        self.backend = backend
        self.ledger = backend.ledger
        self.now = house.clock(self.ledger)

    @cached_property
    def pauses(self) -> dict[str, datetime]:
        return paused(self.backend)

    @cached_property
    def workers(self) -> list[leases.Seen]:
        return leases.seen(self.backend)

    @cached_property
    def running(self) -> dict[str, int]:
        """How much each worker has under way."""
        counted: dict[str, int] = {}
        for (_, worker), number in house.count_owned(self.ledger, COUNTED).items():
            counted[worker] = counted.get(worker, 0) + number
        return counted

    def root_of(self, run_id: UUID, *, failed: bool) -> UUID | None:
        """
        From a run that is waited for, or failed for another's sake, on to the one that is to blame itself. None if
        that is too far away to be found.
        """
        seen: set[UUID] = set()
        while run_id not in seen:
            if len(seen) >= STEPS:
                return None
            seen.add(run_id)
            stance = around.stances(self.ledger, [run_id]).get(run_id)
            if stance is None or not passes_on(stance):
                break
            blamed = self.blamed(stance, failed=failed)
            run_id = blamed[0].id if blamed else run_id
        return run_id

    def blamed(self, stance: Stance, *, failed: bool) -> list[Stance]:
        """What a run waits for that has not ended, or that ended badly: the first of them."""
        links = around.preconditions(self.ledger, stance.id, LISTED, unfinished_first=not failed)
        if stance.delegates:
            links = [link for link in links if link.role is Role.DELEGATE]
        found = around.stances(self.ledger, dict.fromkeys(link.on for link in links)).values()
        blamed = [each for each in found if (each.state in BAD_ENDS if failed else each.state not in ENDS)]
        # One that waits itself tells less than one that does not.
        return blamed if failed else sorted(blamed, key=lambda each: each.state is State.WAITING)

    def ago(self, then: datetime | None) -> str:
        return "some time" if then is None else duration(max(0.0, (self.now - then).total_seconds()))

    # -- what is in the way of all runs of a queue ---------------------------------------------------

    def obstacle(self, queue: str) -> Answer | None:
        if (since := self.pauses.get(queue)) is not None:
            sentence = f"Queue {queue!r} is paused since {moment(since)}."
            return Answer(Cause.PAUSED_QUEUE, sentence, f"`manta resume {queue}` lets workers claim from it.")
        claiming = self.claiming(queue)
        if not claiming:
            return self._no_worker(queue)
        if all(each.obstacle is not None for each in claiming):
            sentence = f"Worker {claiming[0].id} of its queue claims nothing at present. {claiming[0].obstacle}"
            advice = "It goes on when Ray is back." if len(claiming) == 1 else "So it is with all workers of its queue."
            return Answer(Cause.WAITS_FOR_RAY, sentence, advice)
        return None

    def also(self, queue: str) -> tuple[str, ...]:
        found = self.obstacle(queue)
        return () if found is None else (f"{found.sentence} {found.advice}",)

    def claiming(self, queue: str) -> list[leases.Seen]:
        return [each for each in self.workers if each.alive and not each.stopping and queue in each.queues]

    def _no_worker(self, queue: str) -> Answer:
        runner = runner_of(self.backend, queue)
        sentence = f"No live worker claims from queue {queue!r}, whose runner is {runner!r}."
        for worker in self.workers:
            if queue in worker.queues:
                how = "was declared lost" if worker.lost else "is stopping" if worker.alive else "is silent"
                sentence += f" Worker {worker.id} {how}, last seen {duration(worker.seen_seconds_ago)} ago."
        others = leases.claiming(self.workers)
        if others:
            sentence += f" Live workers claim from {', '.join(sorted(others))}."
        if self.backend.queues and queue not in self.backend.queues:
            advice = f"Declare {queue!r} in the QUEUES of TASKS[{self.backend.alias!r}] and start a worker."
        elif runner == "inline":
            advice = "No worker has that runner: what is ready is executed where somebody calls `drain()`."
        else:
            advice = f"Start one: `manage.py manta worker --queues {queue}`."
        return Answer(Cause.NO_WORKER, sentence, advice)


def passes_on(stance: Stance) -> bool:
    """Whether it stands where it stands for another's sake."""
    return stance.state in (State.WAITING, State.UPSTREAM_FAILED) or (stance.delegates and stance.state in BAD_ENDS)


def runner_of(backend: MantaBackend, queue: str) -> str:
    runner: str = backend.config.queue_options.get(queue, {}).get("runner", RUNNERS[0])
    return runner
