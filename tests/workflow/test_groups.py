"""Groups: several results, looked at as one."""

from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_manta import Group, State, gather
from django_manta.models import Dependency
from django_manta.testing import run_all
from tests.app.tasks import add
from tests.workflow.conftest import states
from tests.workflow.tasks import BROKEN, fragile, same, total


def test_map_starmap_and_gather_make_groups() -> None:
    numbers = same.map(range(3))
    sums = add.starmap([(1, 2), (3, 4)])
    lone = same.enqueue("lone")
    all_ = gather(numbers, lone, sums)
    assert [type(group) for group in (numbers, sums, all_)] == [Group] * 3
    assert [result.id for result in all_] == [*[each.id for each in numbers], lone.id, *[each.id for each in sums]]
    run_all()
    all_.refresh()
    assert [each.return_value for each in all_] == [0, 1, 2, "lone", 3, 7]
    with pytest.raises(TypeError, match="gather\\(\\) takes results and groups"):
        gather(7)  # type: ignore[arg-type]


def test_progress_counts_by_state_in_one_statement() -> None:
    BROKEN.add("b")
    group = gather(fragile.map(["a", "b", "c"]), same.using(hold=True).enqueue())
    assert group.progress == {State.READY: 3, State.HELD: 1}
    run_all()
    with CaptureQueriesContext(connection) as captured:
        assert group.progress == {State.SUCCESSFUL: 2, State.FAILED: 1, State.HELD: 1}
    assert len(captured) == 1
    assert Group().progress == {}


def test_refresh_costs_two_statements_for_all() -> None:
    group = same.map(range(50))
    run_all()
    with CaptureQueriesContext(connection) as captured:
        group.refresh()
    assert len(captured) == 2
    assert {each.state for each in group} == {State.SUCCESSFUL}


def test_join_returns_the_values_in_order(ending: str) -> None:
    group = gather(same.map([3, 1, 2]))
    run_all()
    if ending == "within":
        with pytest.raises(RuntimeError, match="join\\(\\) inside atomic"):
            group.join(timeout=1)
        group.refresh()
    assert group.join(timeout=1) == [3, 1, 2]
    assert Group().join() == []


def test_join_tells_how_many_are_missing(ending: str) -> None:
    group = same.map([1, 2])
    if ending == "within":
        return
    with pytest.raises(TimeoutError, match="2 of 2 runs had not ended after 0.05 s"):
        group.join(timeout=0.05)


def test_join_of_a_bad_end_raises() -> None:
    BROKEN.add("b")
    group = fragile.map(["a", "b"])
    run_all()
    group.refresh()
    with pytest.raises(ValueError, match="failed"):
        group.join()


def test_join_inside_a_transaction_is_refused() -> None:
    with transaction.atomic():
        group = same.map([1])
        with pytest.raises(RuntimeError, match="join\\(\\) inside atomic"):
            group.join(timeout=1)


def test_cancel_ends_all_that_have_not_ended() -> None:
    done = same.enqueue(0)
    run_all()
    group = gather(done, same.map(range(5)))
    after = total.enqueue(group)
    group.cancel("Enough.")
    run_all()
    assert group.progress == {State.SUCCESSFUL: 1, State.CANCELLED: 5}
    assert {each.reason for each in group[1:]} == {"Enough."}
    assert states(after) == [State.UPSTREAM_FAILED]


def test_a_wide_group_is_cancelled_a_thousand_at_a_time() -> None:
    group = same.map(range(2_500))
    with CaptureQueriesContext(connection) as captured:
        group.cancel()
    said = [query["sql"] for query in captured if "'CANCELLING'" in query["sql"]]
    assert len(said) == 3
    assert group.progress == {State.CANCELLED: 2_500}
    assert {each.state for each in group} == {State.CANCELLED}


def test_a_wide_map_and_its_join_are_a_handful_of_statements() -> None:
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        group = same.map(range(1_500))
        result = total.enqueue(group)
    said = [query["sql"] for query in captured if "manta" in query["sql"]]
    # Two inserts of runs, the gate and the edges; and, with a commit, counting them.
    assert len(said) <= 12
    assert Dependency.objects.filter(run_id=UUID(result.id)).count() == 1_500
    run_all(max_runs=2_000)
    result.refresh()
    assert result.return_value == sum(range(1_500))


def test_options_go_with_every_run_of_a_map() -> None:
    first = same.enqueue(1)
    group = same.using(after=[first], run_after=timedelta(hours=1)).map([1, 2])
    run_all()
    assert states(*group) == [State.SCHEDULED] * 2
