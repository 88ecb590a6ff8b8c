"""Plain functions on Ray, from a driver and from inside a run."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_manta import State, parallel
from tests.app import tasks
from tests.ray.clusters import SLOW_SECONDS
from tests.ray.conftest import StartOnRay
from tests.worker.conftest import ended


@pytest.fixture
def driver(cluster: Any) -> Iterator[None]:
    import ray

    ray.init(address=cluster.address, namespace="tests", log_to_driver=False)
    yield
    ray.shutdown()


def test_functions_are_called_on_ray_in_order_and_a_few_at_a_time(driver: None) -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(12):
            taken.append(number)
            yield number

    assert parallel.parallel_map(tasks.square, numbers(), concurrency=3, num_cpus=0.1) == [n * n for n in range(12)]
    assert parallel.starmap(pow, [(2, 3), (3, 2)], num_cpus=0.1) == [8, 9]
    assert parallel.scatter_gather(sum, range(10), sum, size=4, concurrency=2, num_cpus=0.1) == 45
    taken.clear()

    def first_of(values: Iterator[int]) -> int:
        return next(values)

    assert parallel.scatter_gather(sum, numbers(), first_of, size=1, concurrency=3, num_cpus=0.1) == 0
    # Three were on Ray when the first was awaited, and a fourth was wanted.
    assert taken == [0, 1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        parallel.starmap(divmod, [(1, 1), (1, 0), (1, 1)], num_cpus=0.1)


def test_what_cannot_be_is_refused_before_anything_is_called() -> None:
    for asked, words in (
        ({"concurrency": 0}, "concurrency must be 1 or more, not 0"),
        ({"runtime_env": "x"}, "runtime_env cannot be given here"),
        ({"cpus": 1}, "has no 'cpus'. Did you mean 'num_cpus'?"),
    ):
        with pytest.raises(ValueError, match=words.replace(".", r"\.").replace("?", r"\?")):
            parallel.parallel_map(abs, [1], **asked)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size must be 1 or more"):
        parallel.scatter_gather(sum, [1], sum, size=0)


def test_without_ray_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'django-manta\[ray\]'"):
        parallel.parallel_map(abs, [1])


def test_a_run_may_call_functions_on_ray(start_on_ray: StartOnRay) -> None:
    worker = start_on_ray().ready()
    run = tasks.sum_of_squares.enqueue(10)
    ended(run, limit=SLOW_SECONDS, worker=worker)
    assert (run.state, run.return_value) == (State.SUCCESSFUL, 285)
