"""
Typical uses. mypy (strict) and pyright find nothing wrong here, and every ``assert_type`` holds.

Checked by scripts/check_typing.py and imported by tests/test_typing_examples.py; the functions that
are not tasks are there to be read by checkers, never called.
"""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from django.tasks import Task as DjangoTask
from django.tasks import TaskContext as DjangoTaskContext
from django.tasks import TaskResult as DjangoTaskResult

from django_manta import MantaBackend, Progress, State, Task, TaskContext, TaskResult, exponential, task

# -- definitions -------------------------------------------------------------------------------------


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task()
def greet(name: str) -> str:
    return f"Hello {name}"


@task
async def fetch(url: str) -> dict[str, int]:
    return {url: 200}


@task
def anything(*args: Any, **kwargs: Any) -> Any:
    return [list(args), kwargs]


def patient(error: BaseException, result: TaskResult) -> float | timedelta | None:
    if isinstance(error, ValueError) or result.attempts > 3:
        return None
    return timedelta(minutes=result.attempts) if result.state is State.RUNNING else 5.0


def careless(error: BaseException, result: "DjangoTaskResult[..., Any]") -> int:
    return result.attempts


@task(
    priority=10,
    queue_name="urgent",
    backend="default",
    max_attempts=5,
    max_losses=0,
    backoff=patient,
    retry_on=[OSError, "requests.exceptions.ConnectionError"],
    no_retry_on=(FileNotFoundError,),
    atomic=False,
    timeout=timedelta(minutes=5),
    expires=timedelta(hours=1),
    deadline=datetime(2100, 1, 1, tzinfo=UTC),
    metadata={"team": "billing", "tags": ["a", "b"]},
    aliases=["old.tasks.import_rows"],
)
def import_rows(path: str, *, limit: int | None = None) -> list[int]:
    return [len(path), limit or 0]


@task(backoff="exponential", retry_on=None, timeout=None, expires=None, deadline=timedelta(days=1))
def by_name() -> None: ...


@task(backoff=exponential(first=1, limit=timedelta(minutes=5)), timeout=2.5, retry_on={OSError})
def doubling() -> None: ...


@task(backoff=30, atomic=True)
def every_half_minute() -> None: ...


@task(backoff=careless)
def with_django_s_result() -> None: ...


@task(takes_context=True)
def describe(context: TaskContext, label: str) -> str:
    return f"{label} {context.run_id} {context.attempt}"


@task(takes_context=True, max_attempts=2)
async def crawl(context: TaskContext, urls: list[str]) -> int:
    await context.aprogress(0, len(urls))
    context.metadata["seen"] = 0
    await context.asave_metadata()
    async for _url in context.atrack(urls):
        context.metadata["seen"] += 1
    return len(urls)


@task(takes_context=True)
def for_any_backend(context: "DjangoTaskContext[..., Any]", label: str) -> int:
    return context.attempt + len(label)


@task(takes_context=True)
def parametrized(context: TaskContext[[str], int], label: str) -> int:
    return len(label)


def undecorated(a: int) -> str:
    return str(a)


def undecorated_with_context(context: TaskContext, a: int) -> str:
    return str(a)


async def undecorated_coroutine(a: int) -> str:
    return str(a)


# -- checks ------------------------------------------------------------------------------------------


def what_the_decorator_gives() -> None:
    plain = task(undecorated, max_attempts=2)
    assert_type(plain.enqueue(1).return_value, str)
    with_context = task(undecorated_with_context, takes_context=True)
    assert_type(with_context.enqueue(1).return_value, str)
    coroutine = task(undecorated_coroutine)
    assert_type(coroutine.enqueue(1).return_value, str)
    assert_type(coroutine.call(1), str)
    by_keyword: Task[[int], str] = task(undecorated)
    like_django_s: DjangoTask[[int], str] = by_keyword
    assert_type(like_django_s.enqueue(1).return_value, str)


def enqueueing() -> None:
    assert_type(add.enqueue(1, b=2).return_value, int)
    assert_type(add.enqueue(1).join(), int)
    assert_type(greet.enqueue(name="Ada").join(timeout=5), str)
    assert_type(import_rows.enqueue("rows.csv", limit=3).return_value, list[int])
    assert_type(by_name.enqueue().return_value, None)
    assert_type(anything.enqueue(1, "two", three=3).return_value, Any)
    assert_type(fetch.enqueue("http://localhost/").return_value, dict[str, int])
    assert_type(describe.enqueue("here").return_value, str)
    assert_type(describe.enqueue(label="here").return_value, str)
    assert_type(crawl.enqueue(["http://localhost/"]).join(), int)
    assert_type(for_any_backend.enqueue("here").return_value, int)
    assert_type(parametrized.enqueue("here").return_value, int)
    assert_type(add.get_result("id").return_value, int)


async def enqueueing_async() -> None:
    result = await add.aenqueue(1, 2)
    assert_type(await result.ajoin(1.5), int)
    assert_type((await add.aget_result(result.id)).return_value, int)
    assert_type((await fetch.aenqueue("http://localhost/")).return_value, dict[str, int])
    assert_type((await crawl.aenqueue(urls=[])).return_value, int)
    assert_type(await fetch.acall("http://localhost/"), dict[str, int])
    assert_type(await result.acancel(), State)
    assert_type(await result.aretry(), State)
    await result.arefresh()


def other_options() -> None:
    later = add.using(
        priority=-5,
        queue_name="slow",
        run_after=timedelta(hours=1),
        backend="default",
        max_attempts=3,
        max_losses=1,
        backoff=timedelta(seconds=10),
        retry_on=["OSError"],
        no_retry_on=[KeyError],
        timeout=None,
        expires=datetime(2100, 1, 1, tzinfo=UTC),
        deadline=timedelta(hours=2),
        atomic=True,
        metadata={"asked_by": 7},
        hold=True,
    )
    assert_type(later.enqueue(1, 2).return_value, int)
    add.using(priority=None, queue_name=None, run_after=None, backend=None)
    add.using(run_after=datetime(2100, 1, 1, tzinfo=UTC)).using(hold=True).map([1])
    takes_any_task(later)
    takes_any_task(describe)
    takes_tasks([add, greet, describe])


def takes_any_task(given: Task) -> TaskResult:
    return given.using(timeout=5).enqueue(1, anything=True)


def takes_tasks(given: list[Task]) -> None: ...


def many() -> None:
    for result in add.map([1, 2, 3]):
        assert_type(result.return_value, int)
    for result in add.map(range(3)):
        assert_type(result.join(), int)
    for greeting in greet.map({"Ada", "Grace"}):
        assert_type(greeting.return_value, str)
    for page in fetch.map(line.strip() for line in ["http://localhost/"]):
        assert_type(page.return_value, dict[str, int])
    for described in describe.map(["a", "b"]):
        assert_type(described.return_value, str)
    for total in add.starmap([(1, 2), [3, 4], (5,)]):
        assert_type(total.return_value, int)
    for total in add.enqueue_many([((1, 2), {}), ((3,), {"b": 4}), ([], {"a": 5})]):
        assert_type(total.return_value, int)


async def many_async() -> None:
    assert_type((await add.amap([1, 2]))[0].return_value, int)
    assert_type((await add.astarmap([(1, 2)]))[0].return_value, int)
    assert_type((await add.aenqueue_many([((1, 2), {})]))[0].return_value, int)


def results(result: TaskResult[[int], str], unknown: TaskResult) -> None:
    assert_type(result.state, State)
    assert_type(result.reason, str)
    assert_type(result.deadline, datetime)
    assert_type(result.expires_at, datetime | None)
    assert_type(result.metadata, dict[str, Any])
    assert_type(result.progress, Progress | None)
    assert_type([attempt.error_message for attempt in result.history], list[str])
    assert_type(result.return_value, str)
    assert_type(result.join(), str)
    assert_type(result.cancel("not needed"), State)
    assert_type(result.retry(), State)
    assert_type(result.id, str)
    assert_type(result.attempts, int)
    assert_type(unknown.return_value, Any)
    if result.progress is not None:
        assert_type(result.progress.done, float)
        assert_type(result.progress.share, float | None)
    result.refresh()


def contexts(context: TaskContext) -> None:
    assert_type(context.run_id, str)
    assert_type(context.attempt, int)
    assert_type(context.is_last_attempt, bool)
    assert_type(context.deadline, datetime)
    assert_type(context.metadata, dict[str, Any])
    assert_type(context.task_result.state, State)
    assert_type(context.track([1, 2]), Iterator[int])
    assert_type(context.track(iter("ab"), total=2, message="letters"), Iterator[str])
    assert_type(context.atrack([1, 2]), AsyncIterator[int])
    context.progress(1)
    context.progress(0.5, 10, "half")
    context.save_metadata()


async def backends(backend: MantaBackend) -> None:
    assert_type(backend.enqueue(add, [1, 2], {}).return_value, int)
    assert_type((await backend.aenqueue(add, (1,), {"b": 2})).return_value, int)
    backend.enqueue_many([(add, (1, 2), {}), (greet, ["Ada"], {})])
    assert_type(backend.get_result("id").state, State)
    assert_type((await backend.aget_result("id")).return_value, Any)
