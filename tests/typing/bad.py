"""
Misuses. Both checkers must refuse each line that ends in ``# wrong``, and no other.

Held against mypy and pyright by scripts/check_typing.py; never imported: most of it raises.
"""

from datetime import timedelta

from django_manta import MantaBackend, State, Task, TaskContext, TaskResult, exponential, task


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
def needs_two(a: int, b: str) -> None: ...


@task
def needs_none() -> None: ...


@task
async def fetch(url: str) -> bytes:
    return url.encode()


@task(takes_context=True)
def describe(context: TaskContext, label: str) -> str:
    return label


# -- arguments ---------------------------------------------------------------------------------------

add.enqueue("1")  # wrong
add.enqueue(1, "2")  # wrong
add.enqueue()  # wrong
add.enqueue(1, 2, 3)  # wrong
add.enqueue(1, c=2)  # wrong
needs_two.enqueue(1)  # wrong
needs_two.enqueue(b="b")  # wrong
fetch.enqueue(b"http://localhost/")  # wrong
describe.enqueue()  # wrong
describe.enqueue(1)  # wrong
describe.enqueue("a", "b")  # wrong
describe.enqueue(context=None, label="a")  # wrong
add(1, 2)  # wrong
add.using(timeout=5).enqueue("1")  # wrong


async def asynchronous() -> None:
    await add.aenqueue("1")  # wrong
    await describe.aenqueue()  # wrong
    await add.enqueue(1)  # wrong
    await add.amap(["1"])  # wrong
    (await fetch.aenqueue("")).return_value + 1  # wrong


# -- many --------------------------------------------------------------------------------------------

add.map(["1"])  # wrong
add.map(1)  # wrong
needs_none.map([1])  # wrong
needs_two.map([1])  # wrong
describe.map([1])  # wrong
add.starmap([1, 2])  # wrong
add.starmap(["ab"])  # wrong
add.enqueue_many([(1, 2)])  # wrong
add.enqueue_many([((1, 2), [])])  # wrong
add.map([1]).return_value  # wrong

# -- options of the decorator ------------------------------------------------------------------------


@task(max_attempts="3")  # wrong
def option_1() -> None: ...


@task(retries=3)  # wrong
def option_2() -> None: ...


@task(backoff="linear")  # wrong
def option_3() -> None: ...


@task(retry_on=[1])  # wrong
def option_4() -> None: ...


@task(retry_on=OSError)  # wrong
def option_5() -> None: ...


@task(timeout="1h")  # wrong
def option_6() -> None: ...


@task(deadline=60)  # wrong
def option_7() -> None: ...


@task(deadline=None)  # wrong
def option_8() -> None: ...


@task(atomic=1)  # wrong
def option_9() -> None: ...


@task(metadata=["a"])  # wrong
def option_10() -> None: ...


@task(aliases=[1])  # wrong
def option_11() -> None: ...


@task(hold=True)  # wrong
def option_12() -> None: ...


@task(run_after=timedelta(hours=1))  # wrong
def option_13() -> None: ...


@task(priority="high")  # wrong
def option_14() -> None: ...


@task(unique=True)  # wrong
def option_15() -> None: ...


def too_few(error: BaseException) -> float:
    return 1.0


def too_many(error: BaseException, result: TaskResult, attempt: int) -> float:
    return 1.0


def wrong_answer(error: BaseException, result: TaskResult) -> str:
    return "soon"


@task(backoff=too_few)  # wrong
def backoff_1() -> None: ...


@task(backoff=too_many)  # wrong
def backoff_2() -> None: ...


@task(backoff=wrong_answer)  # wrong
def backoff_3() -> None: ...


exponential(10)  # wrong
exponential(first="10")  # wrong
exponential(base=2)  # wrong

# -- the context -------------------------------------------------------------------------------------


@task(takes_context=True)  # wrong
def context_1() -> None: ...


@task(takes_context=True)  # wrong
def context_2(label: str) -> None: ...


@task(takes_context=True)  # wrong
async def context_3(label: str) -> None: ...


@task(takes_context="yes")  # wrong
def context_4(context: TaskContext) -> None: ...


@task
def context_5(context: TaskContext, label: str) -> None: ...


context_5.enqueue("takes_context=True was forgotten")  # wrong


@task(takes_context=True)
def uses(context: TaskContext) -> None:
    context.progress("half")  # wrong
    context.progress(1, total="10")  # wrong
    context.run_id = "other"  # wrong
    context.attempt()  # wrong
    context.metadata.append(1)  # wrong
    context.save_metadata({"a": 1})  # wrong
    context.task_result.nothing  # wrong
    for number in context.track(["a"]):
        number + 1  # wrong


# -- using -------------------------------------------------------------------------------------------

add.using(priority="high")  # wrong
add.using(run_after=60)  # wrong
add.using(run_after="2100-01-01")  # wrong
add.using(max_attempts=2.5)  # wrong
add.using(timeout="5")  # wrong
add.using(hold="yes")  # wrong
add.using(aliases=["a.b"])  # wrong
add.using(takes_context=True)  # wrong
add.using(retries=3)  # wrong
add.using(5)  # wrong
add.timeout = 5  # wrong

# -- results -----------------------------------------------------------------------------------------

text: str = add.enqueue(1).return_value  # wrong
number: int = fetch.enqueue("").return_value  # wrong
joined: str = add.enqueue(1).join()  # wrong
coroutine_or_not: str = fetch.get_result("id").join()  # wrong
add.enqueue(1).join("5")  # wrong
add.enqueue(1).state = State.READY  # wrong
state: str = add.enqueue(1).history  # wrong
add.enqueue(1).progress.done  # wrong
add.enqueue(1).cancel(because="no")  # wrong
add.enqueue(1).unknown  # wrong
other_task: Task[[str], int] = add  # wrong
other_value: Task[[int, int], str] = add  # wrong


def backend(given: MantaBackend) -> None:
    given.enqueue(add, 1, 2)  # wrong
    given.enqueue_many([add])  # wrong
    given.enqueue(add, [1], {}).return_value.upper()  # wrong
