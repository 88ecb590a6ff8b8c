"""What the demonstration claims, checked against the database."""

from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Count
from django.tasks import task_backends
from django.utils import timezone
from django_manta import Outcome, Progress, State, TaskResult
from django_manta.ledger import fsck
from django_manta.models import Attempt, Run

from demonstration.answers import Answers, Mean
from demonstration.work import Events, Kill, Work
from demonstration.workers import STOP_SECONDS
from montecarlo import mishaps
from montecarlo.models import SimulatedYear


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence that should be true."""

    text: str
    holds: bool
    #: What was found instead, when it does not hold.
    found: str = ""


def of_the_queue(work: Work, events: Events) -> Iterator[Claim]:
    """What django-manta promises. The results must be fresh."""
    yield _every_run_succeeded(work)
    yield _deploy_cost_nothing(events)
    yield _crash_cost_only_time(events.crash)
    yield _failures_were_retried(work)
    yield _rows_are_there_once(work)
    yield _urgent_runs_went_first(work)
    yield _progress_was_told(work)
    yield _ledger_is_clean()


def of_the_answers(answers: Answers) -> Iterator[Claim]:
    """What mathematics promises, provided every run's work counted, and counted once."""
    yield _agrees_with_theory("The option is worth", answers.option_value)
    yield _agrees_with_theory("Leaving the corridor takes", answers.exit_time)
    risk, true_risk = answers.risk, answers.true_risk
    width = risk["high"] - risk["low"]
    yield Claim(
        f"One year in twenty loses more than {risk['value']:.2f} ({risk['low']:.2f} to {risk['high']:.2f}); "
        f"theory says {true_risk:.2f}.",
        risk["low"] - width < true_risk < risk["high"] + width,
        "That is too far away.",
    )


def _agrees_with_theory(sentence: str, answer: Mean) -> Claim:
    return Claim(
        f"{sentence} {answer.last.mean:.3f} ± {answer.last.margin:.3f}; theory says {answer.true_value:.3f}.",
        answer.distance < 4,
        f"They differ by {answer.distance:.1f} standard errors.",
    )


def _every_run_succeeded(work: Work) -> Claim:
    results = list(work)
    bad = [result for result in results if _outcomes(result).count(Outcome.SUCCESSFUL) != 1 or not _succeeded(result)]
    strangers = Run.objects.count() - len(results)
    found = f"{len(bad)} did not; the first is {_described(bad[0])}" if bad else f"{strangers:+} runs in the table."
    return Claim(f"All {len(results)} runs ended SUCCESSFUL, none of them twice.", not bad and not strangers, found)


def _succeeded(result: TaskResult) -> bool:
    return result.state is State.SUCCESSFUL


def _described(result: TaskResult) -> str:
    error = result.history[-1].error_message if result.history else ""
    told = f"{result.task.name} {result.id}, {result.state}: {result.reason} {error}"
    return " ".join(told.split())


def _deploy_cost_nothing(events: Events) -> Claim:
    stops = [events.deploy, events.end]
    given_back = Attempt.objects.filter(worker__startswith="demo-1-", outcome=Outcome.RETURNED).count()
    broken_off = Attempt.objects.filter(outcome=Outcome.INTERRUPTED).count()
    return Claim(
        f"Worker 1, told to stop, finished what it was at, gave back {given_back} runs and left with exit code 0.",
        all(stop.code == 0 and stop.seconds < STOP_SECONDS + 2 for stop in stops) and not broken_off,
        f"Exit codes {[stop.code for stop in stops]} after {[f'{stop.seconds:.1f} s' for stop in stops]}; "
        f"{broken_off} runs were interrupted.",
    )


def _crash_cost_only_time(crash: Kill) -> Claim:
    lost = Attempt.objects.filter(outcome=Outcome.LOST)
    last = max([crash.at, *lost.values_list("finished_at", flat=True)])
    left = Run.objects.running().count()
    return Claim(
        f"Worker 2 was killed. {(last - crash.at).total_seconds():.1f} s later worker 3 had missed it and taken over "
        f"what it held, {len(lost)} in all.",
        not left and all(each.worker.startswith("demo-2-") for each in lost),
        f"{left} runs are still in somebody's hands; lost with {', '.join(sorted({each.worker for each in lost}))}.",
    )


def _failures_were_retried(work: Work) -> Claim:
    doomed = {each.id for each in work.walks if mishaps.drops(each.args[0])}
    doomed |= {each.id for each in work.years if mishaps.stumbles(each.args[0])}
    wrong = [result for result in work if not _went_as_planned(result, result.id in doomed)]
    attempts = [attempt for result in work for attempt in result.history]
    failed = sum(attempt.outcome is Outcome.FAILED for attempt in attempts)
    return Claim(
        f"Of {len(attempts)} attempts {failed} failed, as they were made to, and each was retried.",
        not wrong,
        f"{len(wrong)} runs went otherwise; the first is {_described(wrong[0])}" if wrong else "",
    )


def _went_as_planned(result: TaskResult, doomed: bool) -> bool:
    """Apart from what was lost or given back, which nobody planned: the attempts failed that should, and no others."""
    ran = [attempt for attempt in result.history if attempt.outcome in (Outcome.FAILED, Outcome.SUCCESSFUL)]
    planned = [doomed and attempt.number <= mishaps.FAILING_ATTEMPTS for attempt in ran]
    return _succeeded(result) and planned == [attempt.outcome is Outcome.FAILED for attempt in ran]


def _outcomes(result: TaskResult) -> list[Outcome]:
    return [attempt.outcome for attempt in result.history]


def _rows_are_there_once(work: Work) -> Claim:
    outcomes = [outcome for result in work.years for outcome in _outcomes(result)]
    rows = SimulatedYear.objects.count()
    by_seed = SimulatedYear.objects.values("seed").annotate(rows=Count("id"), numbers=Count("number", distinct=True))
    found = {each["seed"]: (each["rows"], each["numbers"]) for each in by_seed}
    expected = {result.args[0]: (result.kwargs["years"], result.kwargs["years"]) for result in work.years}
    wrong = sorted(seed for seed in found.keys() | expected.keys() if found.get(seed) != expected.get(seed))
    return Claim(
        f"{len(work.years)} atomic runs left {sum(years for years, _ in expected.values()):,} rows, each exactly once, "
        f"though {outcomes.count(Outcome.FAILED)} attempts failed after writing and {outcomes.count(Outcome.LOST)} "
        "lost their worker.",
        not wrong,
        f"There are {rows:,} rows; wrong for seeds {', '.join(map(str, wrong[:10]))}.",
    )


def _urgent_runs_went_first(work: Work) -> Claim:
    others = [result.started_at for result in work.prices if result.started_at]
    limit = min(others, default=timezone.now())
    first = [each for each in work.previews if each.started_at and each.started_at <= limit]
    return Claim(
        f"Runs with priority 50, enqueued last, started first: {len(first)} of {len(work.previews)}.",
        len(first) == len(work.previews),
    )


def _progress_was_told(work: Work) -> Claim:
    told = [result.progress for result in work.reports]
    return Claim(
        f"The report told how far it was, and ended at {', '.join(_share(each) for each in told)}.",
        all(each is not None and each.share == 1 for each in told),
    )


def _share(progress: Progress | None) -> str:
    return "nothing" if progress is None else f"{progress.done:g} of {progress.total:g} {progress.message}"


def _ledger_is_clean() -> Claim:
    findings = fsck.check(task_backends["default"].ledger)  # type: ignore[attr-defined]
    return Claim(
        "The ledger is consistent: fsck finds nothing.",
        not findings,
        f"It finds {len(findings)}: " + "; ".join(f"{each.check} {each.run_id}" for each in findings[:5]),
    )
