"""
Reads what an attempt printed from the node that it is, or was, on.

For commands: a driver of their own, for the moment. Where the files are on this machine nobody has to be asked.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from django_manta.execution.runners.ray import envoy, messages, printed
from django_manta.execution.runners.ray.dashboard import Away

#: How long Ray may take to read a file, or to say where one is.
ANSWER_SECONDS = 30.0


def read(reference: printed.Reference, address: str) -> str:
    """What an attempt printed. Raise LookupError if that is no more, Away if nobody can be asked."""
    found = printed.read(reference.log, reference.out, reference.err)
    if found is None and address == "local":
        raise LookupError("Ray does not have its log any more.")
    if found is None:
        with _driver(address):
            found = _read_there(reference)
    if found is None:
        raise LookupError("Ray does not have its log any more.")
    return found


def find(address: str, namespace: str, foremen: Sequence[tuple[str, str]], key: str) -> str:
    """The reference of an attempt that is under way: its foreman knows. Empty if it has not begun."""
    if address == "local":
        raise Away("Only its own worker can ask the Ray that it has started (ADDRESS is 'local').")
    with _driver(address):
        for name, incarnation in reversed(foremen):
            told = _ask(name, namespace, messages.say("whereabouts", keys=[key]))
            if told is not None and told["incarnation"] == incarnation and key in told.get("places", {}):
                return str(told["places"][key])
    return ""


@contextlib.contextmanager
def _driver(address: str) -> Iterator[None]:
    try:
        # Ray itself would try for minutes, and not say why.
        envoy.probe(address)
    except OSError as error:
        raise Away(f"Ray does not answer at {address}: {error}.") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise Away("Ray is not installed here (pip install 'django-manta[ray]').") from None
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:
        raise Away(f"Ray at {address} could not be joined: {type(error).__name__}: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _read_there(reference: printed.Reference) -> str | None:
    import ray
    from ray import cloudpickle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Sent as it stands: a process of Ray that is not ours need not know this package.
    cloudpickle.register_pickle_by_value(printed)
    try:
        there = NodeAffinitySchedulingStrategy(reference.node, soft=False)
        remote = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(printed.read)
        asked = remote.remote(reference.log, reference.out, reference.err)
    finally:
        cloudpickle.unregister_pickle_by_value(printed)
    try:
        found: str | None = ray.get(asked, timeout=ANSWER_SECONDS)
    except Exception as error:
        raise Away(f"The node that has its log does not answer: {type(error).__name__}.") from None
    return found


def _ask(name: str, namespace: str, text: str) -> dict[str, Any] | None:
    """What a foreman answers; None if it is gone, or does not know the question."""
    import ray

    try:
        foreman = ray.get_actor(name, namespace)
        return messages.hear(ray.get(foreman.speak.remote(text), timeout=ANSWER_SECONDS))
    except (ValueError, messages.UnknownProtocol, ray.exceptions.RayError):
        return None
