"""
What is to be drawn of a graph: its runs with their durations, what decided when it ended, and layers.

Nothing here asks the database or draws.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django_manta.ledger.around import Link, Stance, Surroundings
from django_manta.states import BAD_ENDS, ENDS, OWNED, Role, State, When
from django_manta.workflow.promise import TASK as PROMISE


@dataclass(slots=True)
class Chart:
    """A graph that can be drawn."""

    runs: dict[UUID, Stance]
    links: list[Link]
    now: datetime
    #: The runs that were asked for.
    centre: frozenset[UUID]
    #: There is more than was read.
    cut: bool = False
    #: The chain that decided when it ended, or decides when it will, from its first run to its last.
    critical_path: list[UUID] = field(default_factory=list)
    waits_for: dict[UUID, list[Link]] = field(default_factory=dict)
    waited_for_by: dict[UUID, list[Link]] = field(default_factory=dict)
    #: Last words of paths that more than one task has.
    unclear: set[str] = field(default_factory=set)

    def name(self, run_id: UUID) -> str:
        """The last word of the task's path, if that is clear here; a promise's own name."""
        run = self.runs[run_id]
        if run.task == PROMISE:
            return f"promise {run.promise or ''}".rstrip()
        short = run.task.rpartition(".")[2]
        return run.task if short in self.unclear else short

    def seconds(self, run_id: UUID) -> float | None:
        """From its first start to its end, or until now; None if it never started."""
        run = self.runs[run_id]
        if run.started_at is None:
            return None
        if run.state not in ENDS and run.state not in OWNED and not run.delegates:
            return None
        return max(0.0, ((run.finished_at or self.now) - run.started_at).total_seconds())

    @property
    def span(self) -> float | None:
        """How long the critical path took, or has taken until now."""
        if not self.critical_path:
            return None
        path = [self.runs[run_id] for run_id in self.critical_path]
        begun = min(run.started_at or run.enqueued_at for run in path)
        return max(0.0, ((path[-1].finished_at or self.now) - begun).total_seconds())

    @property
    def counts(self) -> dict[State, int]:
        counted = Counter(run.state for run in self.runs.values())
        return {state: counted[state] for state in State if counted[state]}

    @property
    def lasts(self) -> list[UUID]:
        """Those that nobody waits for; if all wait in a circle, the centre."""
        return [run_id for run_id in self.runs if not self.waited_for_by.get(run_id)] or sorted(self.centre)

    def data(self) -> dict[str, Any]:
        """All there is to tell, as plain data."""
        path = set(self.critical_path)
        return {
            "now": self.now,
            "cut": self.cut,
            "counts": {state.value: number for state, number in self.counts.items()},
            "critical_path": self.critical_path,
            "critical_path_seconds": self.span,
            "runs": [
                {
                    "id": run.id,
                    "task": run.task,
                    "queue": run.queue,
                    "state": run.state,
                    "reason": run.reason,
                    "enqueued_at": run.enqueued_at,
                    "started_at": run.started_at,
                    "finished_at": run.finished_at,
                    "seconds": self.seconds(run.id),
                    "when": None if run.gate is None else run.gate.mode,
                    "delegates": run.delegates,
                    "promise": run.promise,
                    "critical": run.id in path,
                    "asked_for": run.id in self.centre,
                }
                for run in self.runs.values()
            ],
            "edges": [{"run": link.run, "on": link.on, "role": link.role} for link in self.links],
        }


def chart(found: Surroundings, centre: frozenset[UUID], now: datetime) -> Chart:
    made = Chart(found.stances, found.links, now, centre & found.stances.keys(), found.cut)
    for link in found.links:
        made.waits_for.setdefault(link.run, []).append(link)
        made.waited_for_by.setdefault(link.on, []).append(link)
    words = Counter(task.rpartition(".")[2] for task in {run.task for run in found.stances.values()})
    made.unclear = {word for word, number in words.items() if number > 1}
    made.critical_path = critical_path(made)
    return made


# -- the critical path -------------------------------------------------------------------------------


def critical_path(chart: Chart) -> list[UUID]:
    """
    The chain of runs that decided when the graph ended, or on which it still waits.

    Backwards from the last to end: what each was let pass by. A run that delegated ended with its delegates, and
    began, with them, after what it had waited for itself.
    """
    depths = layers(chart, only_unfinished=True)
    last = _last_to_end(chart, depths)
    if last is None:
        return []
    path, seen = [last], {last}
    delegators: list[UUID] = []
    while True:
        links = chart.waits_for.get(path[-1], [])
        delegates = [link for link in links if link.role is Role.DELEGATE]
        if delegates:
            delegators.append(path[-1])
        step = _decisive(chart, path[-1], delegates or links, seen, depths)
        while step is None and delegators:
            step = _before_delegation(chart, delegators.pop(), path[-1], seen, depths)
        if step is None:
            return path[::-1]
        path.append(step)
        seen.add(step)


def _last_to_end(chart: Chart, depths: dict[UUID, int]) -> UUID | None:
    """Of what nobody waits for: what has not ended and has the most before it, or what ended last."""
    lasts = chart.lasts
    open_ones = [run_id for run_id in lasts if chart.runs[run_id].state not in ENDS]
    if open_ones:
        return max(open_ones, key=lambda run_id: (depths[run_id], run_id))
    return max(lasts, key=lambda run_id: (chart.runs[run_id].finished_at or chart.now, run_id), default=None)


def _before_delegation(
    chart: Chart, delegator: UUID, first: UUID, seen: set[UUID], depths: dict[UUID, int]
) -> UUID | None:
    """What the delegating run had waited for itself, if the first of its delegates did not exist before."""
    started = chart.runs[delegator].started_at
    if started is not None and chart.runs[first].enqueued_at < started:
        return None
    own = [link for link in chart.waits_for[delegator] if link.role is not Role.DELEGATE]
    return _decisive(chart, delegator, own, seen, depths)


def _decisive(chart: Chart, run_id: UUID, links: list[Link], seen: set[UUID], depths: dict[UUID, int]) -> UUID | None:
    """Of what a run waits for, the one that decided."""
    found = {link.on: link for link in links if link.on not in seen}
    if not found:
        return None
    run = chart.runs[run_id]
    unfinished = [on for on in found if chart.runs[on].state not in ENDS]
    if unfinished and (run.state is State.WAITING or run.delegates):
        return max(unfinished, key=lambda on: (depths[on], on))
    ended = sorted(found.keys() - set(unfinished), key=lambda on: (chart.runs[on].finished_at or chart.now, on))
    if not ended:
        return None
    mode = When.ALL_SUCCESSFUL if run.gate is None else run.gate.mode
    bad = [on for on in ended if chart.runs[on].state in BAD_ENDS]
    if run.state in BAD_ENDS and bad and (run.delegates or run.state is State.UPSTREAM_FAILED):
        # The first that failed ended it; of several, any of which would have done, the last.
        return bad[-1] if mode is When.ANY_SUCCESSFUL and not _takes_values(found, bad) else bad[0]
    values = [on for on in ended if found[on].role is not Role.AFTER]
    if values or mode in (When.ALL_SUCCESSFUL, When.ALL_FINISHED):
        # Of runs any of which would have done, the first did; a value is waited for in any case.
        others = ended if mode in (When.ALL_SUCCESSFUL, When.ALL_FINISHED) else values
        return others[-1]
    good = [on for on in ended if on not in bad]
    return (good or ended)[0] if mode is When.ANY_SUCCESSFUL else ended[0]


def _takes_values(found: dict[UUID, Link], bad: list[UUID]) -> bool:
    return any(found[on].role is not Role.AFTER for on in bad)


# -- layers ------------------------------------------------------------------------------------------


def layers(chart: Chart, *, only_unfinished: bool = False) -> dict[UUID, int]:
    """How many runs, or unfinished runs, stand one behind the other before each, along the longest way."""
    depth = dict.fromkeys(chart.runs, 0)
    waiting = {run_id: len(chart.waits_for.get(run_id, ())) for run_id in chart.runs}
    free = [run_id for run_id, number in waiting.items() if not number]
    while waiting:
        if not free:
            # A circle, which arming should have refused: it is opened where it is least in the way.
            free = [min(waiting, key=lambda run_id: waiting[run_id])]
        run_id = free.pop()
        if waiting.pop(run_id, None) is None:
            continue
        counts = not only_unfinished or chart.runs[run_id].state not in ENDS
        for link in chart.waited_for_by.get(run_id, ()):
            if link.run in waiting:
                depth[link.run] = max(depth[link.run], depth[run_id] + int(counts))
                waiting[link.run] -= 1
                if not waiting[link.run]:
                    free.append(link.run)
    return depth
