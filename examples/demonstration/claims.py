"""What the demonstration claims, checked against the database."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Count
from django.tasks import task_backends
from django.utils import timezone
from django_manta import Outcome, Progress, State, TaskResult
from django_manta.ledger import fsck
from django_manta.models import Attempt, Run

from demonstration import starts
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


def of_the_queue(work: Work, events: Events, runner: str) -> Iterator[Claim]:
    """What django-manta promises. The results must be fresh."""
    yield _every_run_succeeded(work)
    if runner == "ray":
        yield _went_on_during_the_deploy(events)
        yield _went_on_after_the_crash(events)
        yield _nothing_was_started_twice()
    else:
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
    given_back = Attempt.objects.filter(worker__startswith="demo-1-", outcome=Outcome.RETURNED).count()
    return Claim(
        f"Worker 1, told to stop, finished what it was at, gave back {given_back} runs and left with exit code 0.",
        *_left_well(events),
    )


def _left_well(events: Events) -> tuple[bool, str]:
    stops = [events.deploy, events.end]
    broken_off = Attempt.objects.filter(outcome=Outcome.INTERRUPTED).count()
    told = ", ".join(f"{stop.code} after {stop.seconds:.1f} s" for stop in stops)
    in_time = all(stop.code == 0 and stop.seconds < STOP_SECONDS + 2 for stop in stops)
    return in_time and not broken_off, f"Exit codes: {told}; {broken_off} runs were interrupted."


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


def _went_on_during_the_deploy(events: Events) -> Claim:
    holds, found = _left_well(events)
    adopted, others, given_back, lost = _came_of(events.left_by_deploy, "demo-1-")
    return Claim(
        f"Worker 1, told to stop, left with exit code 0. What it had on Ray went on, {adopted + others} runs: "
        f"{adopted} were adopted by worker 2, {others} committed by themselves. {given_back} were given back unbegun.",
        holds and not lost,
        f"{found} {lost} were lost.",
    )


def _went_on_after_the_crash(events: Events) -> Claim:
    adopted, others, given_back, lost = _came_of(events.left_by_crash, "demo-2-")
    left = Run.objects.running().count()
    return Claim(
        f"Worker 2 was killed. What it had on Ray went on, {adopted + others} runs: {adopted} were adopted by "
        f"worker 3, {others} committed by themselves. {given_back} were given back unbegun, and none was lost.",
        not lost and not left and adopted + others > 0,
        f"{lost} were lost, {left} are still in somebody's hands.",
    )


def _came_of(tokens: frozenset[int], worker: str) -> tuple[int, int, int, int]:
    """Of executions that a worker left behind: adopted by another, ended without one, given back, lost."""
    attempts = list(Attempt.objects.filter(token__in=tokens))
    ended = [each for each in attempts if each.outcome in (Outcome.SUCCESSFUL, Outcome.FAILED)]
    # An atomic run settles itself, in its own transaction: whoever is its owner then, also a dead one.
    adopted = sum(not each.worker.startswith(worker) for each in ended)
    given_back = sum(each.outcome == Outcome.RETURNED for each in attempts)
    return adopted, len(ended) - adopted, given_back, len(tokens) - len(ended) - given_back


def _nothing_was_started_twice() -> Claim:
    started = starts.counted()
    attempts = Attempt.objects.exclude(outcome=Outcome.RETURNED).values_list("run_id", flat=True)
    tried = Counter(str(run) for run in attempts)
    differ = [run for run in started | tried if started[run] != tried[run]]
    return Claim(
        f"The tasks' code was started {started.total()} times, once for each of {tried.total()} attempts.",
        not differ,
        f"It is otherwise for {len(differ)} runs, such as {', '.join(differ[:3])}.",
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
