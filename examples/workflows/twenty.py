"""Twenty runs of which some fail, and a report that is made whatever became of them."""

from random import Random

from django_manta import Group, State, TaskContext, TaskResult, task


@task
def toss(seed: int) -> str:
    """Fails for about half of the seeds."""
    if Random(seed).random() < 0.5:
        raise RuntimeError(f"Tails, with seed {seed}.")
    return "heads"


@task(takes_context=True)
def report(context: TaskContext) -> dict[str, int]:
    """How the runs that it waited for ended."""
    states = [each.state for each in context.upstream]
    return {"heads": states.count(State.SUCCESSFUL), "tails": states.count(State.FAILED)}


def start(first_seed: int = 0) -> tuple[Group[str], TaskResult]:
    tosses = toss.map(range(first_seed, first_seed + 20))
    return tosses, report.using(after=tosses, when="all_finished").enqueue()
