"""The side-by-side benchmark, as far as it can be held to something without measuring."""

import ast
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from benchmarks.peers import chart, contenders, own_redis, page, visit
from benchmarks.peers.columns import GROUPS
from benchmarks.peers.environments import python_of
from benchmarks.peers.measures import FULL, OPTIONAL, REQUIRED, REQUIRED_OF_LIMITS, SIZES, TINY, Measures, Sample
from benchmarks.peers.record import Entry, Record
from benchmarks.peers.rounds import Tour, turns
from benchmarks.peers.targets import TARGETS
from benchmarks.peers.workers import Trouble, Workers

PEERS = Path(contenders.__file__).parent


@pytest.fixture
def record() -> Record:
    ours = Entry(versions={"django-manta": "0.1.0"}, note="As the quickstart starts it.")
    for value in (7_000.0, 8_000.0, 7_500.0):
        ours.add({"measure": "drain", "value": value, "seconds": 2.0})
    ours.add({"measure": "pickup", "value": 2.0, "samples": [1.0, 2.0, 3.0]})
    theirs = Entry(versions={"django-tasks-db": "0.13.0"})
    theirs.add({"measure": "drain", "value": 350.0, "note": "2,800 of 10,000 within the limit"})
    theirs.add({"measure": "statements", "trouble": "Trouble: a | \x1b[36mb\x1b[0m `c` <d>"})
    limit = Entry()
    limit.add({"measure": "drain", "value": 14_000.0})
    absent = Entry(reason="It could not be installed: no | wheel")
    entries = {"django-manta": ours, "bare SQL": limit, "django-tasks-db": theirs, "dj-queue": absent}
    return Record(machine={"processor": "2 × something"}, date="2026-11-16", seconds=3000, entries=entries)


# -- what comes out ----------------------------------------------------------------------------------


def rows(text: str) -> dict[str, list[str]]:
    """The first row of each name in the first table."""
    table = text.split("## Throughput")[1].split("## ")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {line[0].strip("*"): line[1:] for line in lines}


def test_a_figure_is_the_median_with_its_spread_and_the_best_is_bold(record: Record) -> None:
    found = rows(page.page(record))
    assert found["django-manta"][2] == "**7,500** [7,000 – 8,000]"
    assert found["django-tasks-db"][2] == "350 [1 round] (1)"
    assert found["bare SQL"][2] == "14,000 [1 round]", "A limit is no contender, and never the best."


def test_the_best_in_a_database_is_marked_where_the_best_of_all_is_in_redis(record: Record) -> None:
    record.entry("Dramatiq").add({"measure": "drain", "value": 9_000.0})
    found = rows(page.page(record))
    assert found["Dramatiq"][2] == "**9,000** [1 round]"
    assert found["django-manta"][2] == "7,500† [7,000 – 8,000]"
    assert found["bare SQL"][2] == "14,000 [1 round]"


def test_a_median_latency_has_the_medians_of_the_rounds_behind_it(record: Record) -> None:
    record.entry("django-manta").add({"measure": "pickup", "value": 6.0, "samples": [5.0, 6.0, 7.0]})
    latency = "\n".join(page._table(record, GROUPS["Latency and workflows"], page.Remarks()))
    assert "[2.0 – 6.0; 2 rounds]" in latency
    assert latency.count(" – 6.0") == 1
    assert "**7.0** [2 rounds]" in latency, "A p99 is of all rounds together."


def test_a_figure_that_should_be_there_is_not_told_as_one_that_cannot_be(record: Record) -> None:
    found = rows(page.page(record))
    assert found["django-tasks-db"][0] == "not measured"
    assert found["django-tasks-db"][1] == "–", "Who cannot enqueue many at once."


def test_what_must_be_said_about_a_figure_stands_below_the_table(record: Record) -> None:
    text = page.page(record)
    assert "(1) django-tasks-db: 2,800 of 10,000 within the limit." in text
    assert "failed (1)" in text
    assert "django-tasks-db: Trouble: a / b 'c' ‹d›" in text


def test_a_peer_that_could_not_run_has_a_row_with_the_reason(record: Record) -> None:
    assert rows(page.page(record))["dj-queue"][0] == "could not run: It could not be installed: no / wheel"


def test_every_row_has_as_many_cells_as_its_table_has_columns(record: Record) -> None:
    for columns in GROUPS.values():
        table = page._table(record, columns, page.Remarks())
        assert {len(line.strip("|").split("|")) for line in table} == {len(columns) + 1}


def test_every_column_has_a_paragraph_on_what_it_says(record: Record) -> None:
    text = " ".join(page.page(record).split())
    for columns in GROUPS.values():
        for column in columns:
            assert f"**{column.heading}** ({column.unit}). {column.says}" in text


def test_the_page_names_machine_versions_settings_and_date(record: Record) -> None:
    text = page.page(record)
    for words in ("2 × something", "django-tasks-db 0.13.0", "As the quickstart starts it.", "2026-11-16"):
        assert words in text


def target(text: str, words: str) -> list[str]:
    """The cells of a row of what is won and what is not."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {words}, ")]
    return line.strip("| ").split(" | ")[1:]


def test_what_is_won_is_computed_from_the_record(record: Record) -> None:
    text = page.page(record)
    assert target(text, "drain, among all") == ["7,500", "350", "django-tasks-db", "21.43", "≥ 5", "yes"]
    assert target(text, "drain, against the limit") == ["7,500", "14,000", "bare SQL", "0.5357", "≥ 0.6", "**no**"]
    assert target(text, "enqueue, among those in a database")[-1] == "not measured"
    assert f"2 of {len(TARGETS)} are won" in " ".join(text.split())

    record.entry("Dramatiq").add({"measure": "drain", "value": 1_501.0})
    text = page.page(record)
    assert target(text, "drain, among all") == ["7,500", "1,501", "Dramatiq", "4.997", "≥ 5", "**no**"]
    assert target(text, "drain, among those in a database")[-1] == "yes", "Dramatiq keeps its queue in Redis."


def test_less_is_better_is_won_from_below(record: Record) -> None:
    record.entry("django-tasks-db").add({"measure": "pickup", "value": 1.9, "samples": [1.9]})
    assert target(page.page(record), "start p50, among those in a database")[-2:] == ["≤ 1", "**no**"]
    record.entry("django-tasks-db").rounds["pickup"] = [{"value": 2.0, "samples": [2.0]}]
    assert target(page.page(record), "start p50, among those in a database")[-3:] == ["1", "≤ 1", "yes"]


def test_the_chart_is_drawn_also_where_figures_are_missing(record: Record, tmp_path: Path) -> None:
    chart.draw(record, tmp_path)
    assert "django-tasks-db" in (tmp_path / "peers.svg").read_text()
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


# -- what is measured --------------------------------------------------------------------------------


class Still:
    """Workers that are none: what they do is in the adapter."""

    def check(self) -> None: ...

    def end(self) -> None: ...

    def last_words(self) -> str:
        return "(nothing)"

    @contextmanager
    def still(self) -> Iterator[None]:
        yield


def peer(**offers: Any) -> SimpleNamespace:
    """An adapter whose workers are there, in two processes, and whose ``offers`` are what is to be measured."""
    processes = count()
    common = {
        "commands": list,
        "purge": lambda: None,
        "enqueue": lambda name, *args: name,
        "value": lambda handle, timeout: [0, next(processes)],
        "fill": lambda count: None,
    }
    return SimpleNamespace(**common | offers)


def test_who_is_cut_off_is_judged_by_the_limit_and_not_by_how_long_it_took_to_count_him() -> None:
    def slowly() -> int:
        time.sleep(0.3)
        return 30

    sizes = replace(TINY, limit=0.6)
    counted = Measures(peer(finished=slowly), sizes, lambda commands: cast(Workers, Still()))
    assert 30 / 0.95 < counted.drain().value <= 30 / 0.6
    filled: list[float] = []
    told = peer(
        finished=slowly,
        fill=lambda count: filled.append(time.time()),
        moments=lambda most: [filled[0] + 0.1] * 30,
    )
    sample = Measures(told, sizes, lambda commands: cast(Workers, Still())).drain()
    assert sample.value == 30 / 0.6
    assert sample.note == "30 of 200 within the limit"


def test_workers_that_do_not_come_up_are_started_once_more() -> None:
    started: list[int] = []

    def start(commands: list[list[str]]) -> Workers:
        started.append(len(started))
        if len(started) == 1:
            raise Trouble("No result.")
        return cast(Workers, Still())

    Measures(peer(), TINY, start).at_work()
    assert len(started) == 2

    def never(commands: list[list[str]]) -> Workers:
        raise Trouble("No result.")

    with pytest.raises(Trouble, match="did not come up, started twice. No result."):
        Measures(peer(), TINY, never).at_work()


def test_a_visit_tells_first_what_it_will_measure_and_what_it_did_not_try() -> None:
    told: list[dict[str, Any]] = []

    def fails(name: str) -> Sample:
        raise Trouble(name)

    visit.each([], ["a", "b", "c", "d"], fails, lambda **line: told.append(line), lambda: None)
    assert told[0] == {"measures": ["a", "b", "c", "d"]}
    assert [line["measure"] for line in told[1:]] == ["a", "b", "c", "d"]
    assert told[-1]["trouble"] == "Not tried after 3 measures in a row that came to nothing."


def test_what_goes_wrong_with_one_does_not_end_the_tour(record: Record) -> None:
    said: list[str] = []
    tour = Tour(record=record, server="postgresql://127.0.0.1:1/nobody", redis="", sizes="tiny", measures=[])
    tour.visit(contenders.named("django-ox"), Path("python"), said.append)
    assert "OperationalError" in record.entry("django-ox").reason
    assert said


def test_who_is_cut_off_in_the_middle_has_a_reason_for_each_measure_that_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(
        "#!/bin/sh\n"
        """echo '{"measures": ["drain", "naps"]}'; echo '{"measure": "drain", "value": 5.0}'\n"""
        "echo Ended. >&2; exit 1\n"
    )
    script.chmod(0o755)
    entry, tour = Entry(), Tour(record=Record(), server="postgresql:///x", redis="", sizes="tiny", measures=[])
    tour._measure(contenders.named("django-ox"), script, "nothing", "mark", entry, lambda words: None)
    assert entry.median("drain") == 5.0
    assert entry.troubles("naps") == ["Its visit was over before. Ended."]
    assert not entry.reason


# -- what is measured again --------------------------------------------------------------------------


def test_what_took_long_is_not_measured_again_unless_its_work_was_short(record: Record) -> None:
    ours, theirs = record.entry("django-manta"), record.entry("django-tasks-db")
    for entry, rate in ((ours, 8_000.0), (theirs, 300.0)):
        entry.add({"measure": "backlog_1000000", "value": rate, "seconds": 30.0})
        # Long for the workers' start, which whoever comes first would have.
        entry.add({"measure": "pickup", "value": 5.0, "seconds": 40.0})
    tour = Tour(record=record, server="", redis="", sizes="full", measures=[])
    assert tour._wanted(ours) == []
    assert tour._wanted(theirs) == ["drain", "statements", "pickup"]
    assert tour._wanted(Entry()) == [], "All of them."
    tour.lasted = {"django-manta": 60.0, "django-tasks-db": 70.0}
    tour.rounds = 1
    assert tour.expected_seconds() == 60.0 + 40.0
    tour.rounds = 2
    assert tour.expected_seconds() == 60.0 + 70.0


def test_redis_has_nothing_left_in_any_database_after_a_flush() -> None:
    if not shutil.which("redis-server"):
        pytest.skip("There is no redis-server here.")
    with own_redis.server() as url:
        where = urlsplit(url)
        with socket.create_connection((where.hostname, where.port), timeout=5) as connection:
            lines = connection.makefile("rwb", buffering=0)

            def ask(words: bytes) -> bytes:
                lines.write(words + b"\r\n")
                return lines.readline().strip()

            for number in (b"0", b"1"):
                assert ask(b"SELECT " + number) == b"+OK"
                assert ask(b"SET key value") == b"+OK"
            own_redis.flush(url)
            for number in (b"0", b"1"):
                assert ask(b"SELECT " + number) == b"+OK"
                assert ask(b"DBSIZE") == b":0"


# -- what is kept ------------------------------------------------------------------------------------


def test_a_record_that_was_saved_gives_the_same_page(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "results.json")
    assert page.page(Record.load(tmp_path / "results.json")) == page.page(record)
    assert '"samples": [ 1.0, 2.0, 3.0 ]' in (tmp_path / "results.json").read_text(), "Not a line for each."


def test_what_is_measured_again_is_forgotten_and_the_rest_is_kept(record: Record) -> None:
    record.forget(["django-manta"], ["drain"])
    assert record.entries["django-manta"].median("drain") is None
    assert record.entries["django-manta"].percentile("pickup", 0.5) == 2.0
    assert record.entries["django-tasks-db"].median("drain") == 350.0
    record.forget(["dj-queue"], [])
    assert not record.entries["dj-queue"].reason


def test_who_gave_no_figure_at_all_has_a_reason() -> None:
    entry = Entry()
    entry.add({"measure": "drain", "trouble": "A worker ended."})
    entry.conclude()
    assert entry.reason == "A worker ended."


# -- who is measured ---------------------------------------------------------------------------------


def test_every_peer_of_the_comparison_is_there() -> None:
    names = {one.name for one in contenders.CONTENDERS}
    assert names >= {"django-manta", "django-tasks-db", "django-ox", "dj-queue", "django-q2 (ORM)", "django-q2 (Redis)"}
    assert names >= {"django-goals", "procrastinate", "Celery", "Dramatiq", "RQ", "django-ray (sync)"}
    assert names >= {"django-ray (Ray Core)", "bare SQL", "bare ProcessPoolExecutor", "bare Ray"}
    assert len(names) == len(contenders.CONTENDERS)


@pytest.mark.parametrize("file", sorted((PEERS / "requirements").iterdir()), ids=lambda file: file.stem)
def test_requirements_are_pinned_exactly_and_used(file: Path) -> None:
    lines = contenders.pins(file.stem)
    assert lines
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+(\[[a-z,]+\])?==[0-9][0-9a-z.]*", line), line
    assert file.stem in {one.requirements for one in contenders.CONTENDERS}


@pytest.mark.parametrize("adapter", sorted({one.adapter for one in contenders.CONTENDERS}))
def test_an_adapter_offers_what_is_asked_of_it(adapter: str) -> None:
    """Read, not imported: its peer is installed somewhere else."""
    tree = ast.parse((PEERS / "adapters" / f"{adapter}.py").read_text())
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    required = REQUIRED_OF_LIMITS if adapter.startswith("limit_") else REQUIRED
    assert not set(required) - names
    assert ast.get_docstring(tree)


def test_every_adapter_belongs_to_somebody() -> None:
    files = {file.stem for file in (PEERS / "adapters").glob("*.py")} - {"__init__"}
    assert files == {one.adapter for one in contenders.CONTENDERS}
    assert not set(OPTIONAL) & set(REQUIRED)


def test_a_peer_that_cannot_be_installed_is_told_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("benchmarks.peers.environments._answers", lambda command: False)
    with pytest.raises(Trouble, match="uv is not here"):
        python_of(contenders.named("dj-queue"))


def test_the_columns_show_what_the_full_sizes_measure() -> None:
    shown = {column.measure for columns in GROUPS.values() for column in columns}
    assert {f"backlog_{size}" for size in FULL.backlogs} <= shown
    assert set(SIZES) == {"full", "quick", "tiny"}


def test_nobody_is_visited_twice_in_a_row_and_everybody_once_a_round() -> None:
    everybody = list(range(17))
    rounds = [turns(everybody, number, 3) for number in range(3)]
    assert [sorted(each) for each in rounds] == [everybody] * 3
    visited = [one for each in rounds for one in each]
    for one in everybody:
        places = [place for place, other in enumerate(visited) if other == one]
        assert min(later - sooner for sooner, later in pairwise(places)) > len(everybody) / 2
