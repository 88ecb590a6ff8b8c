"""What is shown: colours and a moving bar on a terminal, plain lines everywhere else."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from django.db import connection
from django.db.models import Count, F, Q, Sum
from django_manta import Outcome, State, TaskResult
from django_manta.models import Attempt, Run
from rich import box, progress
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demonstration.claims import Claim
from demonstration.work import Watch
from demonstration.workers import PROCESSES

#: Without a terminal, progress is a line each time another such share of the runs has ended.
LINES = 10


def console() -> Console:
    """Plain without a terminal, whatever the environment says about colours: a file has no use for them."""
    terminal = sys.stdout.isatty()
    if not terminal and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a file that takes only ASCII is no reason to fail
    return Console(force_terminal=terminal, width=None if terminal else 110, highlight=False)


def show_beginning(out: Console, runs: int, seconds: float) -> None:
    out.print(f"[bold]{runs} runs[/] enqueued in {connection.display_name} in {seconds:.2f} s; two more will follow.")


@contextmanager
def progress_of(out: Console, runs: int) -> Iterator[Watch]:
    """Show how many runs have ended, and what befell the workers."""
    if out.is_interactive:
        with _bar(out, runs) as watch:
            yield watch
    else:
        yield _lines(out, runs)


@contextmanager
def _bar(out: Console, runs: int) -> Iterator[Watch]:
    columns = (
        progress.SpinnerColumn(finished_text="[green]✓"),
        progress.BarColumn(bar_width=None),
        progress.MofNCompleteColumn(),
        progress.TextColumn("[dim]runs ·[/] {task.fields[failures]} [dim]failed attempts ·[/]"),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns, console=out) as shown:
        bar = shown.add_task("runs", total=runs, failures=0)

        def update(ended: int, failures: int) -> None:
            shown.update(bar, completed=ended, failures=failures)

        yield Watch(update, lambda text: out.print(f"  {escape(text)}", soft_wrap=True))


def _lines(out: Console, runs: int) -> Watch:
    told = 0

    def update(ended: int, failures: int) -> None:
        nonlocal told
        if ended * LINES // runs > told:
            told = ended * LINES // runs
            out.print(f"  {ended:>5} of {runs} runs ended, {failures} failed attempts")

    return Watch(update, lambda text: out.print(f"  {text}", soft_wrap=True, markup=False))


def show_table(out: Console, runner: str, seconds: float) -> None:
    """What happened, by task. ``seconds``: how long it took by the clock on the wall."""
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    rows = list(_by_task())
    totals = [sum(column) for column in zip(*(numbers for _, numbers in rows), strict=True)]
    table.add_column("task", footer="all together")
    for name, total in zip(COLUMNS, totals, strict=True):
        table.add_column(name, footer=_number(total), justify="right")
    for task, numbers in rows:
        table.add_row(task, *map(_number, numbers))
    out.print(table)
    where = f"on {PROCESSES} processors of a Ray" if runner == "ray" else f"in {PROCESSES} processes"
    out.print(
        f"{totals[0]:g} runs in [bold]{seconds:.1f} s[/] {where}, three starts of a worker and the wait for a dead one "
        "included.\n"
    )


#: Runs, and those that succeeded; then attempts, and how those ended that did not succeed.
COLUMNS = ("runs", "successful", "attempts", "failed", "lost", "given back", "seconds")


def _by_task() -> Iterator[tuple[str, list[float]]]:
    """Two questions to the database, however many runs there are."""
    tried = {
        each.pop("run__task"): each
        for each in Attempt.objects.values("run__task").annotate(
            attempts=Count("token"),
            failed=Count("token", filter=Q(outcome=Outcome.FAILED)),
            lost=Count("token", filter=Q(outcome=Outcome.LOST)),
            returned=Count("token", filter=Q(outcome__in=[Outcome.RETURNED, Outcome.INTERRUPTED])),
            spent=Sum(F("finished_at") - F("started_at"), filter=~Q(outcome=Outcome.LOST)),
        )
    }
    counted = Run.objects.values("task").annotate(
        runs=Count("id"), successful=Count("id", filter=Q(state=State.SUCCESSFUL))
    )
    for each in counted.order_by("task"):
        of_task = tried.get(each["task"], {})
        numbers = [of_task.get(name, 0) for name in ("attempts", "failed", "lost", "returned")]
        seconds = (of_task.get("spent") or timedelta()).total_seconds()
        yield each["task"].rpartition(".")[2], [each["runs"], each["successful"], *numbers, seconds]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def show_story(out: Console, result: TaskResult) -> None:
    """One run's attempts, as its result remembers them."""
    named = (f"{name}={value!r}" for name, value in result.kwargs.items())
    arguments = ", ".join([*map(repr, result.args), *named])
    out.print(
        f"[bold]The story of one run:[/] {result.task.name}({escape(arguments)})  [dim]{result.id}[/]",
        soft_wrap=True,
    )
    before = result.enqueued_at
    for attempt in result.history:
        waited = (attempt.started_at - before).total_seconds() if before else 0.0
        took = (attempt.finished_at - attempt.started_at).total_seconds()
        error = f"{attempt.error_class.rpartition('.')[2]}: {attempt.error_message}" if attempt.error_class else ""
        told = f"attempt {attempt.number}: waited {waited:.2f} s, ran {took:.3f} s, {attempt.outcome}"
        out.print(f"  {told}  {escape(error)}".rstrip(), soft_wrap=True)
        before = attempt.finished_at
    ending = f"returned {result.return_value!r}" if result.state is State.SUCCESSFUL else result.reason
    out.print(f"  {result.state}: {escape(ending)}\n", soft_wrap=True)


def show_picture(out: Console, file: Path) -> None:
    out.print(f"[bold]The picture:[/] {escape(str(file))}\n", soft_wrap=True)


def show_claims(out: Console, claims: Sequence[Claim]) -> int:
    """Each claim and whether it holds. The exit code."""
    out.print("[bold]What this claims, checked:[/]")
    for claim in claims:
        mark = "[green]holds [/]" if claim.holds else "[bold red]BROKEN[/]"
        out.print(f"  {mark}  {escape(claim.text)}", soft_wrap=True)
        if not claim.holds:
            out.print(f"          [red]{escape(claim.found)}[/]", soft_wrap=True)
    broken = sum(not claim.holds for claim in claims)
    if broken:
        print(f"demo: {broken} of {len(claims)} claims do not hold; see above.", file=sys.stderr)
    return 1 if broken else 0
