"""
Whether a process on Ray is alive, asked on its own node.

Ray takes a process for alive as long as the connection between it and its node is open, and a process that a task has
forked holds that open when the first one is dead. The operating system of the node knows better.
"""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_manta.execution.runners.ray import printed

if TYPE_CHECKING:
    from django_manta.execution.runners.ray.held import Chunk

#: A node has this long to answer. It may have to start a process for that.
ANSWER_SECONDS = 60.0


def is_alive(pid: int) -> bool:
    """
    Whether that process of this machine is one that executes tasks for Ray. Runs as a Ray task.

    Ray gives its processes titles, and a task may give its process another one; but all of a node are children of the
    same raylet, as the process that executes this is.
    """
    try:
        about = Path(f"/proc/{pid}")
        if Path("/proc/self").exists():
            state, parent, *_ = (about / "stat").read_text().rpartition(")")[2].split()
            is_of_ray = int(parent) == os.getppid() or (about / "cmdline").read_bytes().startswith(b"ray::")
            return state not in ("Z", "X") and is_of_ray
        os.kill(pid, 0)
    except (OSError, ValueError):
        return False
    return True


async def is_dead(chunk: "Chunk") -> bool:
    """Whether the process that executed a chunk is known to be dead. False also if its node cannot say."""
    place = printed.Reference.parse(chunk.log + printed.part((0, 0)))
    if place is None or not chunk.pid:
        return False
    with contextlib.suppress(Exception):
        return not await asyncio.wait_for(_ask(place.node, chunk), ANSWER_SECONDS)
    return False


async def _ask(node: str, chunk: "Chunk") -> bool:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {
        "name": "manta: is a process alive",
        "num_cpus": 0,
        "max_retries": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
    }
    for kind in {id(held.kind): held.kind for held in chunk.held.values()}.values():
        # Where this package is installed there.
        if kind.options.get("runtime_env"):
            options["runtime_env"] = kind.options["runtime_env"]
    return bool(await ray.remote(is_alive).options(**options).remote(chunk.pid))
