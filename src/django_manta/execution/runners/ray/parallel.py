"""
Plain functions, many at a time on Ray: see ``django_manta.parallel``.

Whoever executes a call is a process of Ray that may know nothing of the project. So what is submitted is a function of
ours, which loads the project first and then the user's function and its arguments, pickled.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.tasks import task_backends

from django_manta import resources
from django_manta.backend import MantaBackend
from django_manta.execution.runners.ray.chunk import load_django, loaded_environment

#: How many calls are on Ray at a time for each of its processors, unless one says: one runs, and one waits.
AHEAD = 2


def parallel_map[Item, Value](
    function: Callable[[Item], Value], items: Iterable[Item], *, concurrency: int | None = None, **asked: Any
) -> list[Value]:
    """``[function(item) for item in items]``, on Ray. ``asked`` is what a task may say as ``ray={...}``."""
    return list(_map(function, ((item,) for item in items), concurrency, asked))


def starmap[Value](
    function: Callable[..., Value], items: Iterable[Iterable[Any]], *, concurrency: int | None = None, **asked: Any
) -> list[Value]:
    """``[function(*item) for item in items]``, on Ray."""
    return list(_map(function, (tuple(item) for item in items), concurrency, asked))


def scatter_gather[Item, Value, Result](
    function: Callable[[list[Item]], Value],
    items: Iterable[Item],
    gather: Callable[[Iterator[Value]], Result],
    *,
    size: int,
    concurrency: int | None = None,
    **asked: Any,
) -> Result:
    """``gather`` of what ``function`` makes of each ``size`` items, on Ray; it gets them as they come, in order."""
    if size < 1:
        raise ValueError(f"size must be 1 or more, not {size!r}.")
    return gather(_map(function, ((batch,) for batch in _batches(items, size)), concurrency, asked))


def _batches[Item](items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    batch: list[Item] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _map[Value](
    function: Callable[..., Value],
    calls: Iterable[tuple[Any, ...]],
    concurrency: int | None,
    asked: dict[str, Any],
) -> Iterator[Value]:
    if "runtime_env" in asked:
        raise ValueError("runtime_env cannot be given here: what runs beside a task has the task's environment.")
    if concurrency is not None and concurrency < 1:
        raise ValueError(f"concurrency must be 1 or more, not {concurrency!r}.")
    options = resources.ray_options(resources.parse(asked), {}, None)
    ray = _joined()
    from ray import cloudpickle

    most = concurrency or max(1, int(AHEAD * ray.cluster_resources().get("CPU", 1)))
    # Nothing is tried again behind the caller's back.
    remote = ray.remote(_call).options(max_retries=0, name=getattr(function, "__name__", "call"), **options)
    environment = _environment()
    under_way: deque[Any] = deque()
    try:
        for call in calls:
            if len(under_way) >= most:
                yield ray.get(under_way.popleft())
            under_way.append(remote.remote(environment, cloudpickle.dumps((function, call))))
        while under_way:
            yield ray.get(under_way.popleft())
    finally:
        # One has failed, or nobody wants the rest.
        for reference in under_way:
            ray.cancel(reference)


@cache
def _environment() -> dict[str, Any]:
    """
    What to load where the calls are executed, and always the same: a process there loads one project. Inside a run it
    is what its foreman had this process load, because processes of that foreman execute the calls.
    """
    here = {"settings": os.environ["DJANGO_SETTINGS_MODULE"], "path": list(sys.path)}
    return loaded_environment() or here


def _joined() -> Any:
    """Ray, joined: the one that this process is in already, that of its job (RAY_ADDRESS), or the configured one."""
    try:
        import ray
    except ImportError:
        raise ImproperlyConfigured(
            "To call functions on Ray it has to be installed: pip install 'django-manta[ray]'"
        ) from None
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS") or _configured_address()
        if address == "local":
            # Nobody else can reach it. Ray's own default may become another one.
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        ray.init(address=address, log_to_driver=False)
    return ray


def _configured_address() -> str:
    for backend in task_backends.all(initialized_only=False):
        if isinstance(backend, MantaBackend):
            address: str = backend.config.ray["ADDRESS"]
            return address
    return "local"


def _call(environment: dict[str, Any], pickled: bytes) -> Any:
    from ray import cloudpickle

    from django_manta.execution import tending

    load_django(environment)
    function, arguments = cloudpickle.loads(pickled)
    # Ray keeps its processes: a connection that one call has opened is checked before the next one uses it.
    callers = tending.begin()
    try:
        return function(*arguments)
    finally:
        tending.end(callers)
