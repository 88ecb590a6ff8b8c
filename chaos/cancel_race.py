"""
Cancel against finish.

Waves of short runs, each cancelled at a random moment while two workers execute them: a run that was
still pending is CANCELLED and never succeeds; one that was running ends CANCELLED or SUCCESSFUL; one
that had ended stays SUCCESSFUL.
"""

import random
import time
from uuid import UUID

from django.tasks import default_task_backend

from chaos import tasks, world
from django_manta.ringing import CANCEL, ring_after_commit
from django_manta.states import ENDS, State

RUNS = 1_000
WAVE = 100
NAP_SECONDS = 0.001

_PACE = "SELECT EXTRACT(EPOCH FROM max(finished_at) - min(enqueued_at)) FROM manta_run"


def storm(weather: world.Weather, report: world.Report) -> None:
    trials = weather.count(3, 1)
    tally = {"pending": 0, "running_cancelled": 0, "running_successful": 0, "too_late": 0}
    lost = wrong = findings = 0
    for trial in range(trials):
        world.empty()
        dice = random.Random(weather.seed + trial)
        with world.workers() as start:
            world.fresh_workers(start)
            # The first wave waits for the children, the second shows how long one takes.
            for _ in range(2):
                world.empty_runs()
                tasks.nap.map([NAP_SECONDS] * WAVE)
                world.drained(60)
            [[pace]] = world.look(_PACE)
            world.empty_runs()
            answers: dict[UUID, State | None] = {}
            for _ in range(RUNS // WAVE):
                answers |= _wave(dice, float(pace))
                world.let_end(30)
        wrong += _judge(report, answers, tally)
        lost += RUNS - _ended()
        findings += report.figures.get("fsck", 0)
    report.figures = {"runs": trials * RUNS, "lost": lost, "wrong": wrong, **tally, "fsck": findings}
    report.expect(lost == 0, f"{lost} runs have vanished or not ended")


def _ended() -> int:
    return sum(count for state, count in world.by_state().items() if state in ENDS)


def _wave(dice: random.Random, pace: float) -> dict[UUID, State | None]:
    """Enqueue a wave and cancel each of it at a moment of its own. What each cancel reached, if anything."""
    ledger = default_task_backend.ledger  # type: ignore[attr-defined]
    config = default_task_backend.config  # type: ignore[attr-defined]
    results = tasks.nap.map([NAP_SECONDS] * WAVE)
    began = time.monotonic()
    moments = sorted((began + dice.uniform(0, pace), UUID(result.id)) for result in results)
    answers: dict[UUID, State | None] = {}
    while moments:
        now = time.monotonic()
        due = [run_id for moment, run_id in moments if moment <= now]
        moments = moments[len(due) :]
        if due:
            answers |= dict.fromkeys(due) | ledger.cancel(due)
            ring_after_commit("default", config.cluster, CANCEL)
        if moments:
            time.sleep(max(0.0, moments[0][0] - time.monotonic()))
    return answers


def _judge(report: world.Report, answers: dict[UUID, State | None], tally: dict[str, int]) -> int:
    """How many runs did not end as the table of moves says."""
    ended = world.look(
        "SELECT run.id, run.state, (SELECT count(*) FROM manta_attempt AS attempt"
        " WHERE attempt.run_id = run.id AND attempt.outcome = 'SUCCESSFUL') FROM manta_run AS run"
    )
    wrong = []
    for run_id, state, successes in ended:
        match answers[run_id], state, successes:
            case State.CANCELLED, "CANCELLED", 0:
                tally["pending"] += 1
            case State.CANCELLING, "CANCELLED", 0:
                tally["running_cancelled"] += 1
            case State.CANCELLING, "SUCCESSFUL", 1:
                tally["running_successful"] += 1
            case None, "SUCCESSFUL", 1:
                tally["too_late"] += 1
            case answer:
                wrong.append((str(run_id), *map(str, answer)))
    report.expect(len(ended) == RUNS, f"{len(ended)} runs of {RUNS} are there")
    report.expect(not wrong, f"{len(wrong)} runs ended against the table: {wrong[:5]}")
    world.judge_ledger(report)
    return len(wrong)
