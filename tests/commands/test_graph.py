"""graph: what is drawn of the runs around a run, and how."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management.base import CommandError
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_manta import State, promise, workflow
from django_manta.commands import drawing
from django_manta.commands.charting import Chart, chart, layers
from django_manta.commands.printing import clean
from django_manta.ledger import Ledger
from django_manta.ledger.around import GateSeen, Link, Stance, Surroundings, surroundings
from django_manta.states import ENDS, Role, When
from django_manta.testing import run_all
from tests.app import flows, tasks
from tests.commands.conftest import manta, manta_json
from tests.ledger.given import sql

T0 = datetime(2026, 11, 15, 9, 0, tzinfo=UTC)


# -- charts without a database -----------------------------------------------------------------------


class Drawing:
    """Runs by letter. Moments are seconds after nine."""

    def __init__(self) -> None:
        self.found = Surroundings()
        self.names: dict[str, UUID] = {}

    def run(
        self,
        name: str,
        state: State = State.SUCCESSFUL,
        started: float | None = None,
        ended: float | None = None,
        *,
        when: When | None = None,
        delegates: bool = False,
        enqueued: float = 0,
    ) -> None:
        run_id = UUID(int=len(self.names) + 1)
        self.names[name] = run_id
        gate = None if when is None else GateSeen(when, True, T0, 0)
        self.found.stances[run_id] = Stance(
            id=run_id,
            task=f"app.{name}",
            queue="default",
            state=state,
            reason="",
            enqueued_at=T0 + timedelta(seconds=enqueued),
            started_at=None if started is None else T0 + timedelta(seconds=started),
            last_attempted_at=None if started is None else T0 + timedelta(seconds=started),
            finished_at=None if ended is None else T0 + timedelta(seconds=ended),
            refused_at=None,
            suspect=False,
            delegates=delegates,
            promise=None,
            gate=gate,
        )

    def edge(self, run: str, *ons: str, role: Role = Role.VALUE) -> None:
        for on in ons:
            self.found.links.append(Link(self.names[run], self.names[on], role, False, False))

    @property
    def chart(self) -> Chart:
        return chart(self.found, frozenset([next(iter(self.names.values()))]), T0 + timedelta(seconds=100))

    @property
    def critical(self) -> str:
        letters = {run_id: name for name, run_id in self.names.items()}
        return "".join(letters[run_id] for run_id in self.chart.critical_path)


def test_the_critical_path_is_what_ended_last_before_each() -> None:
    drawn = Drawing()
    drawn.run("a", started=0, ended=10)
    drawn.run("b", started=10, ended=12)
    drawn.run("c", started=10, ended=30)
    drawn.run("d", started=30, ended=31, when=When.ALL_SUCCESSFUL)
    drawn.edge("b", "a")
    drawn.edge("c", "a")
    drawn.edge("d", "b", "c")
    assert drawn.critical == "acd"
    assert drawn.chart.span == 31


def test_of_any_the_first_decides() -> None:
    for mode, expected in ((When.ANY_FINISHED, "bd"), (When.ANY_SUCCESSFUL, "ad"), (When.ALL_FINISHED, "cd")):
        drawn = Drawing()
        drawn.run("a", started=0, ended=10)
        drawn.run("b", State.FAILED, started=0, ended=5)
        drawn.run("c", started=0, ended=30)
        drawn.run("d", started=30, ended=31, when=mode)
        drawn.edge("d", "a", "b", "c", role=Role.AFTER)
        assert drawn.critical == expected, mode


def test_a_value_is_waited_for_whatever_the_others_do() -> None:
    drawn = Drawing()
    drawn.run("a", started=0, ended=10)
    drawn.run("b", started=0, ended=20)
    drawn.run("d", started=20, ended=31, when=When.ANY_FINISHED)
    drawn.edge("d", "a", role=Role.AFTER)
    drawn.edge("d", "b")
    assert drawn.critical == "bd"


def test_the_first_failure_decides_when_all_must_succeed_and_the_last_when_any_will_do() -> None:
    for mode, expected in ((When.ALL_SUCCESSFUL, "ad"), (When.ANY_SUCCESSFUL, "bd")):
        drawn = Drawing()
        drawn.run("a", State.FAILED, started=0, ended=10)
        drawn.run("b", State.FAILED, started=0, ended=20)
        drawn.run("c", started=0, ended=30)
        drawn.run("d", State.UPSTREAM_FAILED, ended=20, when=mode)
        drawn.edge("d", "a", "b", "c", role=Role.AFTER)
        assert drawn.critical == expected, mode


def test_of_what_goes_on_the_longest_chain_is_waited_for() -> None:
    drawn = Drawing()
    drawn.run("a", State.RUNNING, started=0)
    drawn.run("b", State.READY)
    drawn.run("c", State.WAITING)
    drawn.run("d", State.WAITING, when=When.ALL_SUCCESSFUL)
    drawn.run("e", started=0, ended=90)
    drawn.edge("c", "b")
    drawn.edge("d", "a", "c", "e")
    assert drawn.critical == "bcd"


def test_a_delegating_run_ends_with_its_delegates_and_begins_after_what_it_waited_for() -> None:
    drawn = Drawing()
    drawn.run("a", started=0, ended=10)
    drawn.run("r", started=10, ended=40, when=When.ALL_SUCCESSFUL, delegates=True)
    drawn.run("x", started=12, ended=20, enqueued=11)
    drawn.run("y", started=20, ended=39, enqueued=11)
    drawn.edge("r", "a")
    drawn.edge("y", "x")
    drawn.edge("r", "y", role=Role.DELEGATE)
    assert drawn.critical == "axyr"
    assert drawn.chart.span == 40
    # Arrows lead along the path, also to the run that delegated.
    kept = drawing._critical_links(drawn.chart)
    assert len(kept) == 3


def test_what_existed_before_the_run_that_delegated_to_it_has_its_own_beginning() -> None:
    drawn = Drawing()
    drawn.run("a", started=0, ended=10)
    drawn.run("r", started=10, ended=40, when=When.ALL_SUCCESSFUL, delegates=True)
    drawn.run("x", started=1, ended=39)
    drawn.edge("r", "a")
    drawn.edge("r", "x", role=Role.DELEGATE)
    assert drawn.critical == "xr"


def test_a_circle_is_drawn_all_the_same() -> None:
    drawn = Drawing()
    for name in "abc":
        drawn.run(name, State.WAITING, when=When.ALL_SUCCESSFUL)
    drawn.edge("a", "b")
    drawn.edge("b", "c")
    drawn.edge("c", "a")
    assert sorted(drawn.critical) == ["a", "b", "c"]
    assert sorted(layers(drawn.chart).values()) == [0, 1, 2]
    assert drawing.plain(drawing.tree(drawn.chart)).count("WAITING") == 4
    ET.fromstring(drawing.svg(drawn.chart))


def test_nothing_is_drawn_over_anything_else() -> None:
    drawn = Drawing()
    for number in range(40):
        drawn.run(f"r{number}", started=number, ended=number + 1)
        for earlier in range(max(0, number - 4), number, 2):
            drawn.edge(f"r{number}", f"r{earlier}")
    places = list(drawing._placed(drawn.chart).values())
    for place, (x, y) in enumerate(places):
        for left, top in places[place + 1 :]:
            assert abs(x - left) >= drawing._WIDTH or abs(y - top) >= drawing._HEIGHT


def test_a_chain_longer_than_python_s_stack_is_drawn() -> None:
    drawn = Drawing()
    drawn.run("r0", started=0, ended=1)
    for number in range(1, 3000):
        drawn.run(f"r{number}", started=number, ended=number + 1, when=When.ALL_SUCCESSFUL)
        drawn.edge(f"r{number}", f"r{number - 1}")
    assert len(drawn.chart.critical_path) == 3000
    assert sum(1 for _ in drawing.tree(drawn.chart)) == 3000


def test_a_chain_goes_straight_down_and_what_branches_is_indented() -> None:
    drawn = Drawing()
    for name in "abcdef":
        drawn.run(name, State.WAITING, when=When.ALL_SUCCESSFUL)
    drawn.edge("a", "b", "f")
    drawn.edge("b", "c")
    drawn.edge("c", "d")
    drawn.edge("d", "e", "f")
    lines = drawing.plain(drawing.tree(drawn.chart)).splitlines()
    assert [line.split(" WAITING")[0] for line in lines] == [
        "* a",
        "├─* b",
        "│ └─* c",
        "│ └─* d",
        "│   ├─* f",
        "│   └─ e",
        "└─* f",
    ]


def test_tasks_of_one_name_are_told_apart() -> None:
    drawn = Drawing()
    drawn.run("a")
    drawn.run("b")
    [first, second] = drawn.found.stances
    drawn.found.stances[second] = _renamed(drawn.found.stances[second], "other.a")
    assert [drawn.chart.name(run_id) for run_id in (first, second)] == ["app.a", "other.a"]


def _renamed(stance: Stance, task: str) -> Stance:
    return Stance(**{name: getattr(stance, name) for name in stance.__dataclass_fields__} | {"task": task})


@pytest.mark.parametrize("task", ['x."]<b>&#;|%%', "nul \x00 bell \x07 \ufffe", "l\nines", "end-->", "ünï 🦈"])
def test_no_task_s_name_breaks_a_drawing(task: str) -> None:
    drawn = Drawing()
    drawn.run("a", State.RUNNING, started=0)
    [run_id] = drawn.found.stances
    drawn.found.stances[run_id] = _renamed(drawn.found.stances[run_id], task)
    told = "".join(ET.fromstring(drawing.svg(drawn.chart)).itertext())
    assert "RUNNING" in told
    [node] = [line for line in drawing.mermaid(drawn.chart).splitlines() if "RUNNING" in line]
    assert re.fullmatch(r'    r0\["[\w .,:#;-]*<br/>RUNNING 1m40s"\]:::running', node)
    assert "\x07" not in drawing.plain(drawing.tree(drawn.chart))
    assert clean("\x07") == "\\x07"


# -- the verb ----------------------------------------------------------------------------------------


@pytest.fixture
def diamond(db: None) -> dict[str, Any]:
    """a → b, c → d, and e, which waits for a alone."""
    a = tasks.add.enqueue(1, 1)
    b, c = tasks.add.enqueue(a, 1), flows.note.enqueue(a)
    d = flows.note.using(after=[c], when="all_finished").enqueue(b)
    e = flows.note.enqueue(a)
    return {"a": a, "b": b, "c": c, "d": d, "e": e}


def ids(drawn: dict[str, Any]) -> set[str]:
    return {run["id"] for run in drawn["runs"]}


def test_around_a_run_is_what_comes_after_it_and_all_that_these_wait_for(diamond: dict[str, Any]) -> None:
    for name, expected in {"a": "abcde", "b": "abcd", "c": "abcd", "d": "abcd", "e": "ae"}.items():
        drawn = manta_json("graph", diamond[name].id)
        assert ids(drawn) == {diamond[each].id for each in expected}, name
        assert [run["id"] for run in drawn["runs"] if run["asked_for"]] == [diamond[name].id]
        assert drawn["cut"] is False
    edges = {(edge["run"], edge["on"], edge["role"]) for edge in manta_json("graph", diamond["d"].id)["edges"]}
    assert edges == {
        (diamond["b"].id, diamond["a"].id, "value"),
        (diamond["c"].id, diamond["a"].id, "value"),
        (diamond["d"].id, diamond["b"].id, "value"),
        (diamond["d"].id, diamond["c"].id, "after"),
    }


def test_a_run_is_found_by_way_of_dependents_also_if_it_was_first_found_otherwise(db: None) -> None:
    """The longer way to it leads through those that come after, and so does what comes after it."""
    start = tasks.add.enqueue(1, 1)
    middle = tasks.add.enqueue(start, 1)
    far = tasks.add.enqueue(middle, 1)
    tasks.add.enqueue(start, far)
    beyond = tasks.add.enqueue(far, 1)
    assert beyond.id in ids(manta_json("graph", start.id))


def test_graph_in_the_terminal(diamond: dict[str, Any]) -> None:
    run_all()
    shown = manta("graph", diamond["d"].id)
    assert shown.lines[0].startswith("4 runs: 4 SUCCESSFUL. * is the critical path: 3 runs in ")
    assert re.fullmatch(rf"\* note SUCCESSFUL \S+  {diamond['d'].id}  \(all_finished, asked for\)", shown.lines[2])
    assert len([line for line in shown.lines if diamond["a"].id in line]) == 2
    assert not any("\x1b" in line for line in shown.lines)
    assert "see above" not in shown.out  # a waits for nothing: there is nothing above to see


def test_graph_on_a_terminal_has_colours(diamond: dict[str, Any]) -> None:
    assert "\x1b[" in manta("graph", diamond["d"].id, terminal=True).out
    assert diamond["a"].id in manta("graph", diamond["d"].id, terminal=True).out


def test_many_that_look_alike_are_counted(db: None) -> None:
    group = tasks.add.starmap([(n, n) for n in range(30)])
    result = flows.total.enqueue(group)
    shown = manta("graph", result.id)
    assert "└─ … and 21 more: add READY" in shown.lines[-1]
    assert len(manta_json("graph", result.id)["runs"]) == 31


def test_what_was_drawn_already_does_not_fill_the_terminal(db: None) -> None:
    """Thirty that wait for the same thirty, which wait for one."""
    first = tasks.add.enqueue(1, 1)
    middle = tasks.add.starmap([(first, n) for n in range(30)])
    last = flows.total.enqueue([flows.total.enqueue(middle) for _ in range(30)])
    shown = manta("graph", last.id)
    assert len(manta_json("graph", last.id)["edges"]) == 30 + 30 * 30 + 30
    assert len(shown.lines) < 500
    assert "see above" in shown.out


def test_graph_of_delegates_and_promises(db: None) -> None:
    result = flows.delegate.enqueue(1, 2)
    run_all()
    drawn = manta_json("graph", result.id)
    assert [edge["role"] for edge in drawn["edges"]] == ["delegate"]
    assert [run["critical"] for run in drawn["runs"]] == [True, True]
    assert all(run["state"] in ENDS and run["seconds"] >= 0 for run in drawn["runs"])
    assert "|delegate|" in manta("graph", result.id, "--format", "mermaid").out
    waiting = tasks.add.enqueue(promise("approval"), 1)
    assert "promise approval WAITING" in manta("graph", waiting.id).out


def test_graph_of_a_workflow(db: None) -> None:
    with workflow("orders") as former:
        tasks.add.enqueue(1, 1)
    with workflow("orders") as flow:
        two = tasks.add.enqueue(1, 1), tasks.add.enqueue(2, 2)
    after = tasks.add.enqueue(two[0], 1)
    assert ids(manta_json("graph", "--workflow", "orders")) == {two[0].id, two[1].id, after.id}
    assert len(ids(manta_json("graph", "--workflow", former.id))) == 1
    assert manta_json("graph", "--workflow", flow.id, "--limit", 1)["cut"] is True
    with pytest.raises(CommandError, match="There is no workflow 'none'"):
        manta("graph", "--workflow", "none")
    with workflow("empty"):
        pass
    with pytest.raises(CommandError, match="Workflow 'empty' has no runs"):
        manta("graph", "--workflow", "empty")


def test_graph_stops_at_its_limit_and_says_so(db: None) -> None:
    result = flows.total.enqueue(tasks.add.starmap([(n, n) for n in range(30)]))
    drawn = manta_json("graph", result.id, "--limit", 10)
    assert (len(drawn["runs"]), drawn["cut"]) == (10, True)
    assert result.id in ids(drawn)
    note = "There is more: only the 10 nearest runs are drawn. --limit draws more."
    assert manta("graph", result.id, "--limit", 10).lines[-1] == note
    assert f"%% {note}" in manta("graph", result.id, "--limit", 10, "--format", "mermaid").out
    assert note in manta("graph", result.id, "--limit", 10, "--format", "svg").out
    assert manta_json("graph", result.id, "--limit", 31)["cut"] is False
    with pytest.raises(CommandError, match="--limit is '0'"):
        manta("graph", result.id, "--limit", 0)


def test_a_graph_costs_a_statement_a_step_and_not_a_run(db: None) -> None:
    result = flows.total.enqueue(tasks.add.starmap([(n, n) for n in range(200)]))
    with CaptureQueriesContext(connection) as said:
        surroundings(Ledger(), [UUID(result.id)], 500)
    assert len(said) == 3


def test_a_run_that_is_gone_is_not_drawn(diamond: dict[str, Any]) -> None:
    sql(Ledger(), "DELETE FROM manta_run WHERE id = %s", [UUID(diamond["a"].id).hex])
    assert ids(manta_json("graph", diamond["d"].id)) == {diamond[name].id for name in "bcd"}


def test_svg_is_valid_and_says_everything_in_words(diamond: dict[str, Any], tmp_path: Path) -> None:
    tasks.fail.enqueue()
    run_all()
    drawn = ET.fromstring(manta("graph", diamond["d"].id, "--format", "svg").out)
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    told = "".join(drawn.itertext())
    for result in (diamond[name] for name in "abcd"):
        assert result.id in told
    assert told.count("SUCCESSFUL") >= 4
    groups = list(drawn.iter("{http://www.w3.org/2000/svg}g"))
    assert len(groups) == 4


@pytest.mark.parametrize(("name", "begins"), [("g.svg", "<svg "), ("g.mmd", "flowchart LR"), ("g.json", "{")])
def test_output_chooses_the_format_by_its_name(diamond: dict[str, Any], tmp_path: Path, name: str, begins: str) -> None:
    done = manta("graph", diamond["d"].id, "--output", tmp_path / name)
    assert done.out == ""
    assert f"Wrote {tmp_path / name}: 4 runs" in done.err
    assert (tmp_path / name).read_text().startswith(begins)


def test_output_of_text(diamond: dict[str, Any], tmp_path: Path) -> None:
    run_all()
    manta("graph", diamond["d"].id, "--output", tmp_path / "g.txt")
    assert (tmp_path / "g.txt").read_text() == manta("graph", diamond["d"].id).out
    with pytest.raises(CommandError, match="cannot be written: No such file or directory"):
        manta("graph", diamond["d"].id, "--output", tmp_path / "none" / "g.txt")


def test_graph_must_be_told_what_to_draw(diamond: dict[str, Any]) -> None:
    for given in ([], [diamond["a"].id, "--workflow", "x"]):
        with pytest.raises(CommandError, match="Say what to draw"):
            manta("graph", *given)
    with pytest.raises(CommandError, match="There is no run"):
        manta("graph", uuid4())
    with pytest.raises(CommandError, match="is not the id of a run"):
        manta("graph", "x")


def test_a_lonely_run_is_a_graph_too(db: None) -> None:
    result = tasks.add.enqueue(1, 1)
    assert manta("graph", result.id).lines == [
        "1 run: 1 READY.",
        "",
        f"* add READY  {result.id}  (asked for)",
    ]
